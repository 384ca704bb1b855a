"""The safety table: its verdicts, numbers and words, against matrices and small MDPs worked out by hand."""

import json
import math

import numpy as np
import pytest

import offtrace as ot
from offtrace import mdp as mdps
from offtrace import operators, policies
from offtrace.mdp import FiniteMDP
from offtrace.safety import analysis as analysis_module


def stay_or_go(target: float = 0.9) -> tuple[FiniteMDP, np.ndarray, np.ndarray]:
    """Two states; action 0 stays, 1 goes. π goes with 0.9, μ stays with 0.9.

    On (+1, −1) P^π multiplies by −0.8 and P^μ by 0.8, so A does by −γd(1 + λ)/(1 − γdλ), d = 0.8: Q(λ) diverges
    beyond λ = (1 − γd)/(2γd) = 0.28/1.44, and is promised to converge below (1 − γ)/(2γd) = 0.1/1.44.
    """
    p = np.zeros((2, 2, 2))
    p[0, 0, 0] = p[1, 0, 1] = p[0, 1, 1] = p[1, 1, 0] = 1
    pi = np.array([[1 - target, target]] * 2)
    return FiniteMDP(p=p, r=[[1.0, 0.0], [0.0, 1.0]], gamma=0.9), pi, pi[:, ::-1].copy()


def frozen_lake(epsilon: float = 0.3) -> tuple[FiniteMDP, np.ndarray, np.ndarray]:
    mdp = mdps.from_gymnasium("FrozenLake-v1", gamma=0.99)
    q = operators.q_star(mdp)
    return mdp, policies.greedy(q), policies.epsilon_greedy(q, epsilon)


def test_q_lambda_diverges_where_it_must() -> None:
    mdp, pi, mu = stay_or_go()
    table = ot.analyze(mdp, pi=pi, mu=mu, traces=["q_lambda", "retrace"], lambdas=[0.05, 0.13, 0.5])
    verdicts = [table.row("q_lambda", x).verdict for x in (0.05, 0.13, 0.5)]
    assert verdicts == ["by theorem", "here", "diverges"]  # 0.05 ≤ π/μ = 1/9 everywhere
    assert table.row("q_lambda", 0.5).radius == pytest.approx(0.72 * 1.5 / (1 - 0.36))  # 1.6875
    assert math.isinf(table.row("q_lambda", 0.5).iterations)
    assert table.q_lambda_bound == pytest.approx(0.1 / (0.9 * 1.6))
    assert table.q_star_bound == pytest.approx(0.1 / 1.8)
    assert table.largest_lambdas == {"q_lambda": pytest.approx(0.28 / 1.44, abs=1e-3)}
    assert {row.verdict for row in table if row.trace == "retrace"} == {"by theorem"}
    assert table.best.verdict == "by theorem"
    assert "DIVERGES" in str(table)


def test_every_trace_has_its_rows() -> None:
    mdp, pi, mu = frozen_lake()
    table = ot.analyze(mdp, pi=pi, mu=mu)
    assert [row.label for row in table][:4] == [
        "one_step",
        *(f"importance_sampling({x})" for x in ("0.5", "0.9", "1")),
    ]
    assert {row.trace for row in table} == set(ot.TRACES)
    for row in table:
        if ot.TRACES[row.trace].safe:
            assert row.verdict == "by theorem"
            assert row.contraction <= mdp.gamma + 1e-9
            assert row.radius <= row.contraction + 1e-9
    assert table.row("importance_sampling", 1.0).contraction == pytest.approx(0, abs=1e-9)
    assert math.isinf(table.row("importance_sampling", 1.0).target_variance)
    assert table.row("importance_sampling", 1.0).variance_radius > 1


@pytest.mark.parametrize("name", ["retrace", "q_lambda", "tree_backup", "watkins"])
def test_numbers_are_those_of_the_matrix(name: str) -> None:
    """The number of steps is the first k with ‖Aᵏ‖ ≤ accuracy, by plain powers."""
    mdp, pi, mu = frozen_lake()
    row = ot.analyze(mdp, pi=pi, mu=mu, traces=[name], lambdas=[0.9], accuracy=0.02).row(name)
    matrix = operators.a_matrix(mdp, pi=pi, mu=mu, trace=ot.as_trace(name, lambda_=0.9), q=operators.q_pi(mdp, pi))
    assert row.contraction == pytest.approx(abs(matrix).sum(1).max(), abs=1e-9)
    assert row.radius == pytest.approx(abs(np.linalg.eigvals(matrix)).max(), abs=1e-9)
    power, steps = matrix, 1
    while abs(power).sum(1).max() > 0.02:
        power, steps = power @ matrix, steps + 1
    assert row.iterations == steps
    moments = (
        operators.correction_moments(mdp, np.zeros(mdp.shape), pi=pi, mu=mu, trace=ot.as_trace(name, lambda_=0.9))
        if name != "watkins"
        else None
    )
    if moments is not None:
        assert row.target_variance == pytest.approx(moments.variance.mean())


def test_many_steps_are_extrapolated_by_the_radius() -> None:
    mdp = FiniteMDP(p=np.ones((1, 2, 1)), r=[[0.0, 1.0]], gamma=0.999)
    half = np.full((1, 2), 0.5)
    row = ot.analyze(mdp, pi=half, mu=half, traces=["one_step"]).row("one_step")
    assert row.iterations == pytest.approx(math.log(0.01) / math.log(0.999), abs=2)


def test_trajectory_aware_rows_sampled_and_exact_agree() -> None:
    rng = np.random.default_rng(0)
    mdp = mdps.episodic(10, 2, 4, gamma=0.9, seed=rng)
    pi, mu = rng.dirichlet([1, 1], 10), rng.dirichlet([1, 1], 10)
    setting = {"pi": pi, "mu": mu, "traces": ["rbis", "recursive_retrace", "truncated_is"], "lambdas": [0.9]}
    exact = ot.analyze(mdp, **setting)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("offtrace.safety.measures.FEW_PATHS", 0)
        sampled = ot.analyze(mdp, **setting, num_trajectories=4000)
    assert not any(row.sampled for row in exact)
    assert all(row.sampled for row in sampled)
    for one, other in zip(exact, sampled, strict=True):
        assert other.eta == pytest.approx(one.eta, abs=0.05)
        assert other.radius == pytest.approx(one.radius, abs=0.05)
        if one.trace != "truncated_is":
            assert abs(other.contraction - one.contraction) < 5 * other.standard_error + 1e-6
    assert "~ sampled, 4000 trajectories from each (x, a)" in " ".join(str(sampled).split())


def test_somebodys_own_trace() -> None:
    mdp, pi, mu = stay_or_go()

    def bold(*, pi_a, mu_a):
        return np.minimum(1.0, 2 * pi_a / mu_a)

    table = ot.analyze(mdp, pi=pi, mu=mu, traces=[bold, ot.Retrace(0.7)])
    assert [row.label for row in table] == ["bold", "retrace(0.7)"]
    assert table.row("bold").verdict in ("here", "diverges")
    assert table.row("retrace").lambda_ == 0.7


def test_on_policy_everything_up_to_the_ratio_is_safe() -> None:
    mdp, pi, _ = stay_or_go()
    table = ot.analyze(mdp, pi=pi, mu=pi, traces=["q_lambda", "retrace"])
    assert {row.verdict for row in table} == {"by theorem"}
    assert math.isinf(table.q_lambda_bound)
    assert "retrace as" not in str(table)  # of two that are the same, Retrace is shown


def test_what_mu_never_does_is_said() -> None:
    mdp, pi, _ = stay_or_go()
    mu = np.array([[1.0, 0.0], [0.1, 0.9]])
    table = ot.analyze(mdp, pi=pi, mu=mu, traces=["retrace"])
    assert table.uncovered.tolist() == [[False, True], [False, False]]
    assert any("(x, a) = (0, 1)" in note for note in table.notes())


def test_from_data_says_what_is_unknown() -> None:
    rng = np.random.default_rng(1)
    x, a = rng.integers(3, size=400), rng.integers(2, size=400)
    a = np.where(x == 2, 0, a)  # action 1 is never taken in state 2
    model = mdps.from_data(
        states=x,
        actions=a,
        rewards=rng.normal(size=400),
        next_states=(x + a) % 3,
        terminated=rng.random(400) < 0.1,
        gamma=0.9,
    )
    table = ot.analyze(model, pi=np.full((3, 2), 0.5))
    assert table.mu == pytest.approx(model.mu)
    text = " ".join(table.notes())
    assert "Counted from 400 transitions" in text
    assert "Never seen: 1 of 6 pairs" in text
    assert "50% of its choices (x = 2)" in text


def test_as_dict_is_json_and_complete() -> None:
    mdp, pi, mu = frozen_lake()
    table = ot.analyze(mdp, pi=pi, mu=mu, traces=["importance_sampling", "retrace"])
    plain = json.loads(json.dumps(table.as_dict(), allow_nan=False))
    assert plain["rows"][2]["target_variance"] == "inf"
    assert plain["rows"][3]["contraction"] == table.rows[3].contraction
    assert plain["recommendation"] == table.recommendation


def test_it_reads_in_80_columns() -> None:
    mdp, pi, mu = frozen_lake()
    text = str(ot.analyze(mdp, pi=pi, mu=mu))
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text.replace("c₁…cₜ", "")


def test_the_recommendation_is_the_cheapest_safe_row() -> None:
    mdp, pi, mu = frozen_lake()
    table = ot.analyze(mdp, pi=pi, mu=mu)
    safe = [row for row in table if row.verdict == "by theorem"]
    assert table.best.cost == min(row.cost for row in safe)
    assert table.recommendation.startswith(f"Use {table.best.label}:")


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"mu": None}, TypeError, "`mu` must be given"),
        ({"accuracy": 0}, ValueError, r"`accuracy` must be in \(0, 1\)"),
        ({"lambdas": [2.0]}, ValueError, r"`lambda_` of ImportanceSampling must be in \[0, 1\]; got 2"),
        ({"lambdas": []}, ValueError, "`lambdas` must not be empty"),
        ({"traces": ["retrase"]}, ValueError, "Did you mean 'retrace'"),
        ({"traces": [3]}, TypeError, "`trace` must be a trace such as .*, or a function that returns c; got 3"),
        ({"pi": np.ones((2, 2))}, ValueError, "`pi` must have rows that sum to 1; got 2 at x = 0"),
    ],
)
def test_wrong_input_is_refused(change: dict, error: type, text: str) -> None:
    mdp, pi, mu = stay_or_go()
    with pytest.raises(error, match=text):
        ot.analyze(mdp, **{"pi": pi, "mu": mu} | change)


class Halving(ot.TrajectoryAware):
    """As the documentation says it: a subclass with `next_beta`, and nothing else."""

    def next_beta(self, xp, reach):
        return 0.5 * reach.beta


def test_a_trace_of_ones_own_that_depends_on_the_path() -> None:
    mdp = ot.mdp.chain(3, slip=0.2)
    half = np.full(mdp.shape, 0.5)
    analysis = ot.analyze(mdp, pi=half, mu=half, traces=[Halving(0.9), ot.Retrace(0.5)], num_trajectories=50)
    own, known = analysis.rows
    assert (own.trace, own.verdict) == ("halving", "here")  # nothing is promised of it
    assert own.radius == pytest.approx(known.radius, abs=1e-9)  # on-policy, β = 2^−t is that of Retrace(½)
    assert "halving" in str(analysis)


def test_a_factor_that_is_nothing_is_not_less_than_that() -> None:
    mdp = ot.mdp.chain(3)
    half = np.full(mdp.shape, 0.5)
    text = str(ot.analyze(mdp, pi=half, mu=half, traces=[ot.Retrace(1.0), ot.ImportanceSampling(1.0)]))
    assert "-0.000" not in text
    assert analysis_module._factor(-1e-17) == "0.000"


def test_names_are_not_markup() -> None:
    mdp = ot.mdp.chain(3)
    mdp.name = "[/x]"
    half = np.full(mdp.shape, 0.5)

    def named(*, pi_a, mu_a):
        return 0.5 * np.minimum(1, pi_a / mu_a)

    named.__name__ = "[/y]"
    text = str(ot.analyze(mdp, pi=half, mu=half, traces=[named]))
    assert "[/x]" in text
    assert "[/y]" in text
