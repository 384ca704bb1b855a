"""Specs: input checks by name, rule and value; defaults; JSON and back."""

import dataclasses
import json
import math
from pathlib import PurePath
from typing import Any

import numpy as np
import pytest
from loops import each

import offtrace as ot
from offtrace.agent import spec as module
from offtrace.agent.field_rules import CHOICES, OPTIONAL, POSITIVE, SHARES, SWITCHES, WHOLE
from offtrace.agent.spec import (
    ADDED,
    DEFAULTS,
    PAPER,
    Plan,
    TrainSpec,
    differences,
    from_json,
    full_name,
    resolved,
    to_json,
)
from offtrace.experiments.encoding import fingerprint

FIELDS = {f.name: f for f in dataclasses.fields(TrainSpec)}

WRONG: list[tuple[str, Any, str]] = [
    *((name, value, "a whole number of at least") for name in WHOLE for value in (WHOLE[name] - 1, 2.0, True, "3")),
    *((name, value, r"in \[0, 1\]") for name in SHARES for value in (-0.01, 1.01, math.nan, "0.5", True)),
    *((name, value, "a finite number above 0") for name in POSITIVE for value in (0, -1.0, math.inf, math.nan, "1")),
    *((name, value, "one of ") for name in CHOICES for value in ("", "nonsense", 3)),
    *((name, value, "True or False") for name in SWITCHES for value in (1, "yes")),
    *(
        (name, value, "a dict from names")
        for name in ("options", "trace_options")
        for value in ([], {1: 2}, {"a": [1]}, {"a": None}, {"a": math.nan})
    ),
    *((name, value, "a text") for name in ("trace_source", "trace_title") for value in (None, 3)),
    *(("hidden_sizes", value, "whole numbers of at least 1") for value in ((), (0,), (2.0,), ("3",), (True,), 3)),
    *(
        ("observation_scale", value, "finite numbers above 0")
        for value in (3.0, "12", (0.0,), (math.nan,), (math.inf,), ("3",), (True,), (1.0, -1.0))
    ),
    *((name, 2**31, "under 2³¹") for name in ("seed", "num_steps")),
    *(("env", value, "the name of an environment") for value in ("", None, 3)),
]


@each(("name", "value", "rule"), WRONG)
def test_refused_by_name_rule_and_value(name: str, value: Any, rule: str) -> None:
    with pytest.raises(ValueError, match=f"`{name}` must be .*{rule}") as caught:
        TrainSpec(**{"env": "pocket/catch", name: value})
    assert str(caught.value).endswith((f"got {value!r}.", f"got {value}."))
    assert "\n" not in str(caught.value)


def test_numbers_of_other_libraries_become_those_of_python() -> None:
    """0.9 in float32 is λ = 0.9, not 0.899999976, so that a run has the same name and settings."""
    given = TrainSpec("pocket/catch", seed=np.int64(3), lambda_=np.float32(0.9), gamma=np.array(0.5), double=np.True_)
    same = TrainSpec("pocket/catch", seed=3, lambda_=0.9, gamma=0.5, double=True)
    assert given == same
    assert to_json(given) == to_json(same)
    assert TrainSpec("pocket/catch", hidden_sizes=np.array([64, 32])).hidden_sizes == (64, 32)
    assert type(TrainSpec("pocket/catch", hidden_sizes=np.array([64])).hidden_sizes[0]) is int
    with pytest.raises(ValueError, match="`seed` must be a whole number of at least 0"):
        TrainSpec("pocket/catch", seed=np.float32(3))


@each("name", list(WHOLE))
def test_only_the_seed_and_the_ticks_between_evaluations_may_be_0(name: str) -> None:
    if name in ("seed", "evaluation_ticks"):
        assert getattr(TrainSpec("pocket/catch", **{name: 0}), name) == 0
    else:
        with pytest.raises(ValueError, match=f"`{name}` must be a whole number of at least 1 "):
            TrainSpec("pocket/catch", **{name: 0})


def test_every_field_has_a_rule() -> None:
    """A new field needs an input check."""
    others = {"env", "trace", "hidden_sizes", "options", "trace_options", "trace_source", "trace_title"}
    others |= {"observation_scale"}
    assert {*WHOLE, *SHARES, *POSITIVE, *CHOICES, *SWITCHES, *others} == set(FIELDS)


@pytest.mark.parametrize("name", [name for name, f in FIELDS.items() if f.default is not None and name != "clamp"])
def test_none_is_only_for_what_can_be_chosen(name: str) -> None:
    with pytest.raises((ValueError, TypeError)):
        TrainSpec(**{"env": "pocket/catch", name: None})


@pytest.mark.parametrize("name", [name for name, f in FIELDS.items() if f.default is None and name not in OPTIONAL])
def test_a_plan_has_nothing_left_to_choose(name: str) -> None:
    with pytest.raises(ValueError, match=f"`{name}` must be "):
        from_json({**to_json(resolved(TrainSpec(env="pocket/catch"))), name: None})


def test_a_near_miss_gets_a_hint() -> None:
    with pytest.raises(
        ValueError, match=r"`trace` must be one of dqn, .*; got 'treebackup'\. Did you mean 'tree_backup'\?"
    ):
        TrainSpec(env="pocket/catch", trace="treebackup")


def of_a_module(pi_a: Any) -> Any:
    return pi_a


@each(
    ("given", "trace", "lambda_", "options"),
    [
        ("retrace", "retrace", 1.0, {}),
        (ot.Retrace, "retrace", 1.0, {}),
        (ot.Retrace(0.9), "retrace", 0.9, {}),
        (ot.OneStep(), "one_step", 1.0, {}),
        (ot.QSigma(0.9, sigma=0.25), "q_sigma", 0.9, {"sigma": 0.25}),
        (ot.QSigma(0.9), "q_sigma", 0.9, {}),
        ("no_such_module:Mine", "no_such_module:Mine", 1.0, {}),  # it is not imported
        (of_a_module, f"{__name__}:of_a_module", 1.0, {}),
    ],
)
def test_a_spec_stores_the_name_and_the_parameters_of_a_trace(
    given: Any, trace: str, lambda_: float, options: dict[str, float]
) -> None:
    spec = TrainSpec(env="pocket/catch", trace=given)
    assert (spec.trace, spec.lambda_, spec.trace_options) == (trace, lambda_, options)


def test_a_trace_that_has_no_name_cannot_be_saved() -> None:
    def local(pi_a: Any) -> Any:
        return pi_a

    for given in (local, lambda pi_a: pi_a):
        spec = resolved(TrainSpec(env="pocket/catch", trace=given))
        assert spec.trace is given
        assert spec.title.endswith(f"{given.__name__}()  seed 0")
        with pytest.raises(
            ValueError, match=r"`trace`: .* has no name that can be imported\. To save it, define it in a"
        ):
            to_json(spec)
    mine = type("Mine", (ot.Trace,), {"__module__": "__main__", "__qualname__": "Mine"})
    with pytest.raises(ValueError, match="`trace`: Mine is defined in a script or a notebook"):
        to_json(resolved(TrainSpec(env="pocket/catch", trace=mine)))


def test_traces_that_are_refused() -> None:
    for given in (3, int, None):
        with pytest.raises(ValueError, match=r"`trace` must be a trace such as"):
            TrainSpec(env="pocket/catch", trace=given)
    with pytest.raises(
        ValueError, match=r"`lambda_` must be given once; got Retrace\(lambda_=0.9\) and lambda_=0.5\."
    ):
        TrainSpec(env="pocket/catch", trace=ot.Retrace(0.9), lambda_=0.5)
    with pytest.raises(ValueError, match=r"`trace` must have numbers as parameters in a spec; got lambda_ = array"):
        TrainSpec(env="pocket/catch", trace=ot.Retrace([0.9, 0.8]))
    with pytest.raises(ValueError, match=r"`trace`: a reference must look like `module:name`; got '\.\./x:y'"):
        TrainSpec(env="pocket/catch", trace="../x:y")


# -- what is chosen ------------------------------------------------------------------------------------------


def test_defaults() -> None:
    plan = resolved(TrainSpec(env="NothingTuned-v0"))
    assert plan.env == "gymnasium/NothingTuned-v0"
    for name, value in DEFAULTS.items():
        assert getattr(plan, name) == value
    assert (plan.epsilon_steps, plan.tick_steps) == (20_000, 2_000)
    assert all(getattr(plan, f.name) is not None for f in dataclasses.fields(Plan) if f.name not in OPTIONAL)


def test_the_later_table_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later sources win: all environments, this environment, the paper's RMSprop, DQN, the given value."""
    row = {
        "step_size": 0.5,
        "fill": 300,
        "window": 8,
        "num_windows": 5,
        "target_policy": "softmax",
        "epsilon_steps": 7,
    }
    monkeypatch.setattr(module, "TUNED", {"some/": {**row, "gamma": 0.5}, "some/thing": {"gamma": 0.25}})
    spec = TrainSpec(env="some/thing", num_steps=10_000)
    plan = resolved(spec)
    assert (plan.step_size, plan.fill, plan.window, plan.gamma, plan.epsilon_steps) == (0.5, 300, 8, 0.25, 7)
    assert resolved(dataclasses.replace(spec, env="some/other")).gamma == 0.5
    assert resolved(dataclasses.replace(spec, env="gymnasium/some/thing")).gamma == 0.25
    assert resolved(dataclasses.replace(spec, env="other/some/")).gamma == DEFAULTS["gamma"]
    paper = resolved(dataclasses.replace(spec, optimiser="rmsprop"))
    assert (paper.step_size, paper.regularisation) == tuple(PAPER["multi-step"].values())
    dqn = resolved(dataclasses.replace(spec, optimiser="rmsprop", trace="dqn"))
    assert (dqn.step_size, dqn.regularisation) == tuple(PAPER["dqn"].values())
    assert (dqn.window, dqn.num_windows, dqn.target_policy, dqn.double) == (1, 40, "greedy", False)
    given = {"step_size": 0.1, "num_windows": 3, "target_policy": "exploration", "double": True, "gamma": 0.0}
    final = resolved(dataclasses.replace(spec, optimiser="rmsprop", trace="dqn", **given))
    assert {name: getattr(final, name) for name in given} == given


def test_dqn_sees_as_many_transitions() -> None:
    plan = resolved(TrainSpec(env="NothingTuned-v0", trace="dqn"))
    assert (plan.window, plan.num_windows, plan.target_policy, plan.double) == (1, 64, "greedy", False)
    assert resolved(TrainSpec(env="NothingTuned-v0", trace="dqn", window=1)) == plan
    with pytest.raises(ValueError, match="`window` must be 1 for `trace='dqn'`; got 4"):
        resolved(TrainSpec(env="pocket/catch", trace="dqn", window=4))


@pytest.mark.parametrize(
    ("num_steps", "tick_steps", "fill"), [(1, 1_000, 1), (1_000, 1_000, 500), (10**9, 20_000, 1_000)]
)
def test_what_follows_from_the_length(num_steps: int, tick_steps: int, fill: int) -> None:
    plan = resolved(TrainSpec(env="NothingTuned-v0", num_steps=num_steps))
    assert (plan.num_steps, plan.tick_steps, plan.fill) == (num_steps, tick_steps, fill)
    assert plan.epsilon_steps == max(1, num_steps // 10)


@pytest.mark.parametrize("trace", ["dqn", *ot.TRACES])
def test_resolved_twice_is_resolved_once(trace: str) -> None:
    plan = resolved(TrainSpec(env="CartPole-v1", trace=trace))
    assert resolved(plan) == plan


@pytest.mark.parametrize(
    ("env", "full"),
    [
        ("CartPole-v1", "gymnasium/CartPole-v1"),
        ("gymnasium/CartPole-v1", "gymnasium/CartPole-v1"),
        ("pocket/catch", "pocket/catch"),
        ("pocket/cach", "pocket/cach"),
        ("module:Name-v0", "gymnasium/module:Name-v0"),
        ("a.module:space/Name-v0", "gymnasium/a.module:space/Name-v0"),
    ],
)
def test_full_name(env: str, full: str) -> None:
    assert full_name(env) == full
    assert full_name(full) == full


# -- names ---------------------------------------------------------------------------------------------------


def test_names() -> None:
    assert TrainSpec(env="minatar/breakout", seed=3).name == "minatar-breakout-retrace-3"
    assert resolved(TrainSpec(env="CartPole-v1", trace="dqn")).name == "CartPole-v1-dqn-0"
    assert TrainSpec(env="CartPole-v1", trace="dqn").title == "CartPole-v1  DQN  seed 0"
    assert TrainSpec(env="CartPole-v1", lambda_=0.9).title == "CartPole-v1  Retrace(λ = 0.9)  seed 0"


@pytest.mark.parametrize(
    "env",
    ["../../etc", "/etc/passwd", "..", ".", "a\nb", "a\x1b[31m", "a\0b", "..\\..\\c", "~", "-rf", "<b>", "$(x)"],
)
def test_names_are_harmless(env: str) -> None:
    """The name is one part of a path, on one line, neither hidden nor like an option."""
    name = TrainSpec(env=env).name
    assert PurePath(name).parts == (name,)
    assert name.isprintable()
    assert not set(name) & set("/\\<>$()~ ")
    assert name[0] not in ".-" or name.strip(".-") == "retrace-0"


# -- as data -------------------------------------------------------------------------------------------------


def test_through_json_and_back() -> None:
    plan = resolved(TrainSpec(env="pocket/catch", hidden_sizes=(3, 4), options={"rows": 5, "x": True}, clamp=None))
    there = json.loads(json.dumps(to_json(plan), allow_nan=False))
    assert from_json(there) == plan
    assert isinstance(from_json(there).hidden_sizes, tuple)
    assert differences(plan, from_json(there)) == {}


def test_factors_of_observations_are_in_the_json_where_there_are_some() -> None:
    plain = resolved(TrainSpec(env="pocket/catch"))
    assert plain.observation_scale == ()
    assert "observation_scale" not in to_json(plain)
    assert from_json(to_json(plain)) == plain
    for env in ("MountainCar-v0", "pocket/mountain_car"):
        plan = resolved(TrainSpec(env=env))
        there = json.loads(json.dumps(to_json(plan)))
        assert there["observation_scale"] == [1.0, 14.0]
        assert from_json(there) == plan
        assert resolved(TrainSpec(env=env, observation_scale=[2.0, 3.0])).observation_scale == (2.0, 3.0)


def test_json_of_another_version() -> None:
    there = to_json(resolved(TrainSpec(env="pocket/catch")))
    with pytest.raises(ValueError, match="a spec must not have 'added', 'later'; it was written by another version"):
        from_json({**there, "later": 1, "added": 2})
    with pytest.raises(ValueError, match="`gamma` must be in"):
        from_json({**there, "gamma": 2})
    with pytest.raises(ValueError, match="a spec must have 'gamma'; it was written by another version"):
        from_json({name: value for name, value in there.items() if name != "gamma"})


def test_records_of_older_versions_are_read() -> None:
    """Old records without a later field can be read, and fingerprints are unchanged, so that old sweeps resume."""
    plan = resolved(TrainSpec(env="pocket/catch", seed=3))
    there = to_json(plan)
    assert not set(there) & set(ADDED)
    assert from_json(there) == plan
    # by the version before `target_epsilon`
    assert fingerprint(there) == "03d2d4aa7fcf200141644a3c60499481c6905d2fec8f31e4a4656de67bf29d6a"
    dqn = to_json(resolved(TrainSpec(env="minatar/breakout", trace="dqn", seed=1)))
    assert fingerprint(dqn) == "21a14e1b9593c7df5d9a9147ea1583935e547f4c635ff591eb6f8eb552427814"
    new = to_json(resolved(TrainSpec(env="pocket/catch", seed=3, target_epsilon=0.1)))
    assert new["target_epsilon"] == 0.1
    assert fingerprint(new) != fingerprint(there)


def test_a_target_epsilon_needs_a_target_that_explores() -> None:
    with pytest.raises(ValueError, match="`target_epsilon` must come with the target policy `exploration`"):
        TrainSpec(env="pocket/catch", target_policy="greedy", target_epsilon=0.1)
    with pytest.raises(ValueError, match="`target_epsilon` must come with the target policy `exploration`"):
        resolved(TrainSpec(env="pocket/catch", trace="dqn", target_epsilon=0.1))


def test_differences_have_both_values() -> None:
    one, other = TrainSpec(env="pocket/catch"), TrainSpec(env="pocket/catch", seed=2, options={"rows": 5})
    assert differences(one, other) == {"seed": (0, 2), "options": ({}, {"rows": 5})}
