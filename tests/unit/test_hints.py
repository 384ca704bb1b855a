"""A run in which no episode differs from another is told so, and no other."""

import dataclasses
import math

import pytest

from offtrace.agent.hints import Hints
from offtrace.agent.spec import Plan, TrainSpec, resolved
from offtrace.agent.telemetry import TickRecord, Watcher, as_watcher

TOTAL = 100_000


def curve(returns: list[float], lengths: list[float] | None = None) -> list[list[TickRecord]]:
    """Return a history of ten episodes per tick, of equal numbers of steps."""
    history = []
    for i, value in enumerate(returns):
        length = 200.0 if lengths is None else lengths[i]
        steps = (i + 1) * TOTAL // len(returns)
        history.append([TickRecord(i, steps, 1, 10, value, length, 0.1, 1e-3, *[math.nan] * 7, ())])
    return history


def told(history: list[list[TickRecord]], plan: Plan) -> list[int]:
    """Return the ticks after which the hint is given."""
    hints = Hints([plan], TOTAL)
    return [i for i in range(len(history)) if hints.after_tick(history[: i + 1])]


@pytest.fixture(scope="module")
def plan() -> Plan:
    return resolved(TrainSpec(env="MountainCar-v0"))


def test_told_once_and_at_the_end(plan: Plan) -> None:
    flat = curve([-200.0] * 20)
    assert told(flat, plan) == [4]  # a quarter of the run
    hint = Hints([plan], TOTAL).after_tick(flat[:5])
    assert hint is not None
    for part in ("nearly all of 50 had", "200 steps", "return of -200", "--options max_episode_steps 1000"):
        assert part in hint
    assert "--random-action-steps" not in hint  # they last several steps already
    plain = dataclasses.replace(plan, random_action_steps=1)
    assert "--random-action-steps 100" in str(Hints([plain], TOTAL).after_tick(flat[:5]))
    assert Hints([plan], TOTAL).at_end(flat, [[-200.0] * 5]) is not None
    assert Hints([plan], TOTAL).at_end(flat, [[-200.0] * 4 + [-131.0]]) is None  # the greedy policy finds the goal


def test_runs_that_learn_are_not_disturbed(plan: Plan) -> None:
    cart_pole = [21.0, 35.0, 180.0, *[500.0] * 17]
    falls = [math.nan, *cart_pole]
    for returns, lengths in (
        (cart_pole, cart_pole),  # constant at the top, not from the beginning
        (falls, falls),
        ([-200.0] * 4 + [-190.0] + [-130.0] * 15, None),  # late
        ([-0.2, 0.1, -0.1, *[1.0] * 17], [9.0] * 20),  # episodes of one length, such as those of catch
        ([1.0] * 20, [200.0 - 5 * i for i in range(20)]),  # one return, reached sooner and sooner
    ):
        assert told(curve(returns, lengths), plan) == []
        assert Hints([plan], TOTAL).at_end(curve(returns, lengths), [[1.0]]) is None
    evaluated = [[tick[0]._replace(evaluation=-150.0)] for tick in curve([-200.0] * 20)]
    assert told(evaluated, plan) == []


def test_a_population_says_how_many(plan: Plan) -> None:
    flat, fine = curve([-200.0] * 8), curve([-200.0 + i for i in range(8)])
    both = [[*one, *other] for one, other in zip(fine, flat, strict=True)]
    hint = Hints([plan, resolved(TrainSpec(env="MountainCar-v0", seed=1))], TOTAL).after_tick(both[:3])
    assert hint is not None
    assert hint.startswith("1 of 2 runs, such as MountainCar-v0  Retrace(λ = 1)  seed 1: ")


def test_a_function_is_a_watcher() -> None:
    records = curve([1.0])[0]
    seen: list[object] = []
    as_watcher(seen.append, several=False).on_tick(records)
    as_watcher(seen.append, several=True).on_tick(records)
    assert seen == [records[0], records]
    mine = Watcher()
    assert as_watcher(mine, several=False) is mine
    as_watcher(None, several=False).on_tick(records)
    for wrong in (3, Watcher):
        with pytest.raises(ValueError, match="`watcher` must be a function, or an instance"):
            as_watcher(wrong, several=False)
