"""The ticks of a run, and what is recorded of each one."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from offtrace.agent.population import TickSummary
from offtrace.agent.program import Probe
from offtrace.agent.runtimes import HasActors, Runtime
from offtrace.agent.spec import Plan
from offtrace.agent.telemetry import NOT_FINITE, TickRecord


class Loop:
    """The position of a run: a number of finished ticks, and perhaps a part of the next one.

    Tick 0 is the untrained agent, tick 1 fills the memory, the others learn.
    """

    def __init__(self, runtime: Runtime, num_steps: Sequence[int] = (), state: Any = None) -> None:
        """`num_steps` are the steps after each finished tick."""
        self.runtime = runtime
        self.state = state
        self.number = len(num_steps)
        """Number of the next tick."""
        self.event = ""
        """An event for the records of the next tick."""
        fill = math.ceil(runtime.program.fill / runtime.program.rounds)
        steps = runtime.program.rounds * runtime.program.num_actors  # per iteration
        per_tick = max(1, round(runtime.specs[0].tick_steps / steps))
        self._num_iterations = {"fill": fill, "learn": per_tick}
        done = fill * steps
        if len(num_steps) > 1:
            done = num_steps[-1]
        num_learning = max(0, math.ceil((runtime.specs[0].num_steps - done) / (per_tick * steps)))
        self.num_ticks = max(2, self.number) + num_learning
        self.total_steps = done + num_learning * per_tick * steps

    def tick(self, stop: Callable[[], bool] = lambda: False) -> list[TickRecord] | None:
        """Run the next tick and return a record per member; None if `stop` returned True before its end.

        The next call continues where this one stopped.
        """
        runtime = self.runtime
        number = self.number
        summary = None
        if number == 0:
            self.state = runtime.start()
        else:
            learns = number > 1
            num_iterations = self._num_iterations["learn" if learns else "fill"]
            self.state, summary = runtime.advance(self.state, num_iterations, learns=learns, stop=stop)
            if summary is None:
                return None
        evaluations = None
        if self._is_evaluated(number):
            num_episodes = max(1, runtime.specs[0].evaluation_episodes // 5)
            found = runtime.evaluate(self.state, number, num_episodes, stop=stop)
            if found is None:
                return None
            evaluations = found[0].mean(-1)
        records = _tick_records(runtime, self.state, number, summary, evaluations)
        if self.event:
            records = [record._replace(events=(*record.events, self.event)) for record in records]
            self.event = ""
        runtime.end_tick(self.state)
        self.number += 1
        return records

    def _is_evaluated(self, number: int) -> bool:
        """Return True every `evaluation_ticks`; the final evaluation covers the last tick."""
        period = self.runtime.specs[0].evaluation_ticks
        return bool(period) and number % period == 0 and number < self.num_ticks - 1


def _tick_records(
    runtime: Runtime, state: Any, number: int, summary: TickSummary | None, evaluations: np.ndarray | None
) -> list[TickRecord]:
    num_steps, num_updates = runtime.counts(state)
    probe = None
    if number > 1:
        probe = runtime.probe(state, number)
    records = []
    for i, spec in enumerate(runtime.specs):
        record = _untrained(spec)._replace(tick=number, num_steps=num_steps, num_updates=num_updates)
        if summary is not None:
            record = _with_summary(record, summary, i)._replace(
                events=_events(spec, runtime.max_return, summary, probe, i)
            )
        if probe is not None:
            record = _with_probe(record, probe, i)
        if isinstance(runtime, HasActors) and summary is not None:
            record = record._replace(actors=runtime.actors_record(state))
        if evaluations is not None:
            record = record._replace(evaluation=float(evaluations[i]))
        records.append(record)
    return records


def _untrained(spec: Plan) -> TickRecord:
    """Return the record of an agent of which nothing has been measured."""
    return TickRecord(
        tick=0,
        num_steps=0,
        num_updates=0,
        num_episodes=0,
        episode_return=math.nan,
        episode_length=math.nan,
        epsilon=1.0,
        step_size=spec.step_size,
        loss=math.nan,
        q=math.nan,
        c=math.nan,
        cut=math.nan,
        effective_length=math.nan,
        off_policy=math.nan,
        gradient=math.nan,
        off_policy_by_age=(math.nan,) * 5,
    )


def _with_summary(record: TickRecord, summary: TickSummary, i: int) -> TickRecord:
    num_episodes = int(summary.num_episodes[i])
    record = record._replace(
        num_episodes=num_episodes, loss=float(summary.loss[i]), gradient=float(summary.gradient[i])
    )
    if not num_episodes:
        return record
    return record._replace(
        episode_return=float(summary.total_return[i]) / num_episodes,
        episode_length=float(summary.total_length[i]) / num_episodes,
    )


def _with_probe(record: TickRecord, probe: Probe, i: int) -> TickRecord:
    metrics = probe.metrics
    return record._replace(
        epsilon=float(probe.epsilon[i]),
        step_size=float(probe.step_size[i]),
        q=float(metrics.q[i]),
        c=float(metrics.c[i]),
        cut=float(metrics.cut[i]),
        effective_length=float(metrics.effective_length[i]),
        off_policy=float(metrics.off_policy[i]),
        off_policy_by_age=tuple(float(value) for value in probe.off_policy_by_age[i]),
    )


def _events(
    spec: Plan, max_return: float | None, summary: TickSummary, probe: Probe | None, i: int
) -> tuple[str, ...]:
    """Return warnings: updates that were not applied, and values beyond any possible return."""
    events = []
    num_refused = int(summary.num_refused[i])
    if num_refused:
        events.append(f"{num_refused} updates were not applied: their loss or gradient was {NOT_FINITE}")
    if probe is None:
        return tuple(events)
    bound = math.inf
    if spec.gamma < 1:
        bound = float(probe.largest_reward[i]) / (1 - spec.gamma)
    if max_return is not None and max_return > 0 and spec.reward_clamp is None:
        bound = min(bound, max_return)
    largest = float(probe.metrics.largest_q[i])
    if not math.isfinite(largest):
        events.append(f"Q is {NOT_FINITE}")
    elif largest > 2 * max(bound, 1):  # networks overshoot the bound, but not to twice its size
        events.append(f"|Q| reached {largest:.4g}, beyond any possible return of {bound:.4g}")
    return tuple(events)
