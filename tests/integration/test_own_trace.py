"""A trace written outside the package works wherever a trace does; a row of `TRACES` brings everything it needs."""

import dataclasses
import importlib
import inspect
import sys
from types import ModuleType

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import offtrace as ot
from offtrace import online, operators
from offtrace.agent.spec import TrainSpec
from offtrace.doctor.verdict import THEORY, TITLES
from offtrace.report.names import named
from offtrace.scores import is_baseline

MODULE = '''
"""Traces of somebody's own."""

from dataclasses import dataclass
from typing import Any

import offtrace as ot


@dataclass(frozen=True)
class HalfRetrace(ot.Trace):
    """c = λ/2 min(1, π/μ): Retrace(λ/2)."""

    needs_mu = True
    safe = True

    def factor(self, likelihoods, **_):
        return 0.5 * likelihoods.clipped_ratio()


class HalfAware(ot.TrajectoryAware):
    """The same, as a trajectory-aware trace."""

    safe = True

    def next_beta(self, xp, reach):
        return reach.beta * reach.lambda_ * 0.5 * xp.where(reach.ratio < 1, reach.ratio, 1)


def half(pi_a, mu_a):
    """The same at λ = 0.8, as a function."""
    return 0.4 * ot.Retrace(1.0)(pi_a=pi_a, mu_a=mu_a)


class Half:
    """The same as a callable object."""

    def __call__(self, *, pi_a, mu_a, **_):
        return half(pi_a, mu_a)
'''

SAME = ot.Retrace(0.4)
MARKOV = ["HalfRetrace", "half", "Half"]
ALL = [*MARKOV, "HalfAware"]


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    folder = tmp_path_factory.mktemp("somebody")
    (folder / "somebodys_traces.py").write_text(MODULE, encoding="utf-8")
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module("somebodys_traces")
    finally:
        sys.path.remove(str(folder))


def value(mine: ModuleType, name: str) -> object:
    """A trace at λ = 0.8, however it is written."""
    given = getattr(mine, name)
    if not inspect.isclass(given):
        return given
    return given(0.8) if issubclass(given, ot.Trace) else given()


def window() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    n, batch, num_actions = 5, 3, 4
    pi = rng.dirichlet(np.ones(num_actions), (n + 1, batch))
    return {
        "q": rng.normal(size=(n + 1, batch, num_actions)),
        "a": rng.integers(num_actions, size=(n, batch)),
        "r": rng.normal(size=(n, batch)),
        "discount": np.full((n, batch), 0.9),
        "pi": pi,
        "mu_a": rng.uniform(0.2, 1, (n, batch)),
    }


@pytest.mark.parametrize("make", [np.asarray, jnp.asarray, torch.tensor], ids=["numpy", "jax", "torch"])
@pytest.mark.parametrize("name", ALL)
def test_targets(mine: ModuleType, name: str, make) -> None:
    given = {key: make(array) for key, array in window().items()}
    right = np.asarray(ot.targets(**given, trace=SAME))
    np.testing.assert_allclose(np.asarray(ot.targets(**given, trace=value(mine, name))), right, rtol=1e-5)


def small() -> tuple[ot.FiniteMDP, np.ndarray, np.ndarray]:
    mdp = ot.mdp.chain(num_states=4, gamma=0.9, slip=0.2)
    rng = np.random.default_rng(1)
    pi, mu = rng.dirichlet(np.ones(mdp.num_actions), (2, mdp.num_states))
    return mdp, pi, mu


@pytest.mark.parametrize("name", ALL)
def test_tabular_learning(mine: ModuleType, name: str) -> None:
    mdp, pi, mu = small()
    trace = value(mine, name)
    for learn, options in ((online.evaluate, {"pi": pi, "mu": mu}), (online.control, {})):
        options = {**options, "num_episodes": 20, "max_steps": 20, "seed": 2}
        learned = learn(mdp, trace=trace, **options)
        np.testing.assert_allclose(learned.q, learn(mdp, trace=SAME, **options).q, rtol=1e-9, atol=1e-12)


def test_a_sweep_takes_the_class_and_the_function(mine: ModuleType) -> None:
    mdp, _, _ = small()
    grid = online.sweep(mdp, traces=[mine.HalfRetrace, mine.half], lambdas=[0.4, 0.8], num_episodes=5, keep_q=True)
    assert grid.axes["trace"] == ("half_retrace", "half")
    np.testing.assert_allclose(grid.q[1, 0], grid.q[0, 1])  # λ = 0.8 of the class is the function
    np.testing.assert_array_equal(grid.q[1, 0], grid.q[1, 1])  # a function has no λ


@pytest.mark.parametrize("name", MARKOV)
def test_operators(mine: ModuleType, name: str) -> None:
    mdp, pi, mu = small()
    given = {"pi": pi, "mu": mu}
    trace = value(mine, name)
    for operator in (operators.eta, operators.coefficients, operators.reach, operators.a_matrix):
        np.testing.assert_allclose(operator(mdp, **given, trace=trace), operator(mdp, **given, trace=SAME))
    q = np.zeros(mdp.shape)
    got = operators.general_operator(mdp, q, **given, trace=trace)
    np.testing.assert_allclose(got, operators.general_operator(mdp, q, **given, trace=SAME))


@pytest.mark.parametrize("given", ["retrace", ot.Retrace, ot.Retrace(1.0)], ids=["name", "class", "value"])
def test_operators_take_a_name_a_class_or_a_value(given: object) -> None:
    mdp, pi, mu = small()
    right = operators.eta(mdp, pi=pi, mu=mu, trace=ot.Retrace(1.0))
    np.testing.assert_array_equal(operators.eta(mdp, pi=pi, mu=mu, trace=given), right)


def test_analyze(mine: ModuleType) -> None:
    mdp, pi, mu = small()
    traces = [mine.HalfRetrace, mine.HalfAware(0.8), mine.half, SAME]
    analysis = ot.analyze(mdp, pi=pi, mu=mu, traces=traces, lambdas=[0.5, 0.8], num_trajectories=20)
    labels = [row.label for row in analysis]
    assert labels == ["half_retrace(0.5)", "half_retrace(0.8)", "half_aware(0.8)", "half", "retrace(0.4)"]
    right = analysis.row("retrace").contraction
    for name, lambda_ in (("half_retrace", 0.8), ("half", None)):
        assert analysis.row(name, lambda_).contraction == pytest.approx(right)
        assert analysis.row(name, lambda_).verdict == "by theorem"
    assert "half_aware" in str(analysis)


def test_the_agent_says_what_it_needs(mine: ModuleType) -> None:
    for given in (mine.HalfRetrace, mine.HalfRetrace(0.8), mine.half):
        with pytest.raises(ValueError, match=r"`trace` must be the name of a trace in `ot.TRACES`, or 'dqn'; got "):
            TrainSpec(env="pocket/catch", trace=given)


def test_names(mine: ModuleType) -> None:
    assert (mine.HalfRetrace.name, mine.HalfRetrace.title) == ("half_retrace", "HalfRetrace(λ)")
    assert named("half_retrace") == "half_retrace"  # a stored result knows the name alone
    assert mine.HalfRetrace.safe_for_control
    assert not mine.HalfAware.safe_for_control  # Theorem 2 is about Markov traces


# -- a row of TRACES -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", ot.TRACES.values(), ids=ot.TRACES)
def test_one_class_and_one_row_are_all_that_a_trace_needs(cls: type[ot.Trace]) -> None:
    """Names, facts and theory come from the class, in every part of the package that shows them."""
    assert ot.as_trace(cls.name, 0.5) == ot.as_trace(cls, 0.5)
    assert named(cls.name) == cls.title
    assert TITLES[cls.name].startswith(cls.full_name)
    assert THEORY[cls.name][:2] == (cls.safe, cls.theory)
    assert is_baseline(cls.name) == (not cls.has_lambda)
    shown = TrainSpec(env="pocket/catch", trace=cls.name, lambda_=0.5).title
    assert cls.title.replace("λ", "λ = 0.5") in shown
    assert dataclasses.is_dataclass(cls)


@pytest.mark.parametrize("cls", ot.TRACES.values(), ids=ot.TRACES)
def test_a_row_works_wherever_a_trace_does(cls: type[ot.Trace]) -> None:
    given = window()
    np.testing.assert_array_equal(ot.targets(**given, trace=cls.name), ot.targets(**given, trace=ot.as_trace(cls)))
    mdp, pi, mu = small()
    assert np.isfinite(online.evaluate(mdp, pi=pi, mu=mu, trace=cls.name, num_episodes=2, max_steps=5).q).all()
    if cls.markov:
        q = np.zeros(mdp.shape)
        assert operators.eta(mdp, pi=pi, mu=mu, trace=cls.name, q=q).shape == mdp.shape
