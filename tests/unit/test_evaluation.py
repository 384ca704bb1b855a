"""Off-policy evaluation against the estimators' definitions, written out as loops over episodes."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import offtrace as ot
from offtrace.evaluation import Log, LogError, compare, engines, estimate, parts
from offtrace.evaluation.behaviour import PRIOR
from offtrace.evaluation.estimation import drawn_range, evaluate, settings_of
from offtrace.evaluation.resampling import Resamples

X, A, GAMMA = 5, 2, 0.9
GENERATOR = np.random.default_rng(0)
P = GENERATOR.dirichlet(np.full(X, 0.5), size=(X, A))
R = GENERATOR.normal(size=(X, A))
PI = GENERATOR.dirichlet(np.full(A, 2.0), size=X)
MU = 0.5 * PI + 0.5 / A
END = 0.2
"""Probability with which a step ends the episode."""


def exact() -> tuple[np.ndarray, float]:
    """Return Q^π, and its value for a uniform start, from the Bellman equation."""
    ahead = np.einsum("xa,xay->xy", PI, P) * (1 - END)
    v = np.linalg.solve(np.eye(X) - GAMMA * ahead, (PI * R).sum(axis=1))
    return R + GAMMA * (1 - END) * P @ v, float(v.mean())


def simulated(num_episodes: int, seed: int, *, most_steps: int = 1000) -> Log:
    generator = np.random.default_rng(seed)
    rows = []
    for episode in range(num_episodes):
        x = generator.integers(X)
        for step in range(most_steps):
            a = generator.choice(A, p=MU[x])
            y = generator.choice(X, p=P[x, a])
            ends = generator.random() < END
            cut = step == most_steps - 1 and not ends
            rows.append((episode, step, x, a, R[x, a] + generator.normal(), ends, cut, MU[x, a], y))
            if ends:
                break
            x = y
    names = ("episode", "step", "state", "action", "reward", "terminated", "truncated", "behaviour_probability")
    return Log.from_columns(dict(zip((*names, "next_state"), map(np.array, zip(*rows, strict=True)), strict=True)))


@pytest.fixture(scope="module")
def log() -> Log:
    return simulated(60, 1)


def episodes(log: Log) -> list[slice]:
    return [slice(a, b) for a, b in zip(log.first[:-1], log.first[1:], strict=True)]


def by_definition(log: Log, q: np.ndarray) -> dict[str, float]:
    """Return every estimate by its formula; `q` is the model of the doubly robust forms, of the whole log."""
    assert log.state is not None
    assert log.mu_a is not None
    num_steps = int(log.lengths.max())
    n = log.num_episodes
    rho = np.empty((n, num_steps))
    reward = np.zeros((n, num_steps))
    error = np.zeros((n, num_steps))
    start = np.empty(n)
    v = (PI * q).sum(axis=1)
    for i, rows in enumerate(episodes(log)):
        x, a, r = log.state[rows], log.action[rows], log.reward[rows]
        weights = np.cumprod(PI[x, a] / log.mu_a[rows])
        rho[i] = np.append(weights, np.full(num_steps - len(x), weights[-1]))  # absorbed after the end
        reward[i, : len(x)] = r
        after = np.append(v[x[1:]], 0.0)
        error[i, : len(x)] = r + GAMMA * after - q[x, a]
        start[i] = v[x[0]]
    discount = GAMMA ** np.arange(num_steps)
    returns = reward @ discount
    mean_weights = rho / rho.mean(axis=0)
    return {
        "is": float(np.mean(rho[:, -1] * returns)),
        "wis": float(np.sum(rho[:, -1] * returns) / rho[:, -1].sum()),
        "pdis": float(np.mean((rho * reward) @ discount)),
        "wpdis": float(np.mean((mean_weights * reward) @ discount)),
        "dr": float(np.mean(start + (rho * error) @ discount)),
        "wdr": float(np.mean(start + (mean_weights * error) @ discount)),
        "logged": float(returns.mean()),
    }


def test_importance_sampling_and_doubly_robust_forms_are_their_formulas(log: Log) -> None:
    found = estimate(log, target=PI, gamma=GAMMA, num_folds=1, estimators=ot.evaluation.ESTIMATORS)
    model = estimate(log, target=PI, gamma=GAMMA, trace="one_step", estimators=[]).q
    wanted = by_definition(log, model)
    for name, value in wanted.items():
        given = found.logged.value if name == "logged" else found[name].value
        assert given == pytest.approx(value, rel=1e-12), name
    assert found["model"].value == pytest.approx(found["fqe"].value, abs=1e-8)


@pytest.mark.parametrize("trace", [ot.Retrace(0.9), ot.TreeBackup(1.0), ot.Watkins(0.8), ot.RBIS(0.9)], ids=str)
def test_the_fitted_q_is_where_the_mean_correction_of_every_pair_is_zero(log: Log, trace: ot.Trace) -> None:
    """Δ_t is summed up step by step within every episode, with c from the trace's formula for one step."""
    q = estimate(log, target=PI, gamma=GAMMA, trace=trace, estimators=[]).q
    assert log.state is not None
    assert log.mu_a is not None
    v = (PI * q).sum(axis=1)
    sums = np.zeros((X, A))
    for rows in episodes(log):
        x, a = log.state[rows], log.action[rows]
        ratio = PI[x, a] / log.mu_a[rows]
        delta = log.reward[rows] + GAMMA * np.append(v[x[1:]], 0.0) - q[x, a]
        for t in range(len(x)):
            beta = 1.0
            for s in range(t, len(x)):
                if s > t:
                    beta = next_beta(trace, beta, ratio, q, x, a, t, s)
                sums[x[t], a[t]] += GAMMA ** (s - t) * beta * delta[s]
    np.testing.assert_allclose(sums, 0.0, atol=1e-5)


def next_beta(
    trace: Any, beta: float, ratio: np.ndarray, q: np.ndarray, x: np.ndarray, a: np.ndarray, t: int, s: int
) -> float:
    """Return the product of the coefficients from step t + 1 to s, given the one up to s − 1."""
    if isinstance(trace, ot.Retrace):
        return beta * trace.lambda_ * min(1.0, ratio[s])
    if isinstance(trace, ot.TreeBackup):
        return beta * trace.lambda_ * PI[x[s], a[s]]
    if isinstance(trace, ot.Watkins):
        return beta * trace.lambda_ * float(q[x[s], a[s]] == q[x[s]].max())
    assert isinstance(trace, ot.RBIS)
    return min(trace.lambda_ ** (s - t), beta * ratio[s])


def test_the_influence_of_an_episode_is_what_one_more_of_it_moves() -> None:
    """Against the estimate with one episode counted twice; the difference is of second order."""
    log = simulated(600, 8)
    names = ["is", "wis", "pdis", "wpdis", "fqe"]
    settings: dict[str, Any] = {"target": PI, "gamma": GAMMA, "trace": ot.Retrace(0.9), "estimators": names}
    found = estimate(log, **settings)
    for i in (0, 7, 23):
        more = with_episode_twice(log, i)
        again = estimate(more, **settings)
        for one in found.estimates:
            moved = (again[one.name].value - one.value) * more.num_episodes
            influence = found.influence[one.name]
            assert moved == pytest.approx(influence[i], abs=0.1 * influence.std()), (one.name, i)
            assert abs(influence.mean()) < 1e-6


def with_episode_twice(log: Log, i: int) -> Log:
    rows = np.append(np.arange(log.num_steps), np.arange(log.first[i], log.first[i + 1]))
    names = ("action", "reward", "terminated", "truncated", "state", "successor", "mu_a")
    columns = {name: getattr(log, name)[rows] for name in names}
    return Log(first=np.append(log.first, len(rows)), **columns)


def test_traces_of_the_trajectory_have_the_standard_error_of_their_markov_form() -> None:
    """With λ = 0 every trace is one step, by the jackknife or by the adjoint equation."""
    found = estimate(simulated(400, 2), target=PI, gamma=GAMMA, trace=ot.RBIS(0.0), estimators=["fqe"])
    assert found["RBIS(lambda_=0.0)"].value == pytest.approx(found["fqe"].value, abs=1e-8)
    assert found["RBIS(lambda_=0.0)"].standard_error == pytest.approx(found["fqe"].standard_error, rel=0.3)


def test_one_feature_per_state_is_a_table(log: Log) -> None:
    assert log.state is not None
    assert log.successor is not None
    one_hot = replace(log, state=None, observation=np.eye(X)[log.state], successor=np.eye(X)[log.successor])
    settings: dict[str, Any] = {"gamma": GAMMA, "trace": ot.Retrace(0.9), "traces": [ot.Watkins(0.9)]}
    table = estimate(log, target=PI, **settings)
    linear = estimate(one_hot, target=lambda x: x @ PI, features=lambda x: x, **settings)
    for one in table.estimates:
        assert linear[one.name].value == pytest.approx(one.value, abs=1e-6), one.name
        assert linear[one.name].standard_error == pytest.approx(one.standard_error, abs=1e-6), one.name
    np.testing.assert_allclose(linear.q, table.q, atol=1e-5)


def test_the_estimates_of_a_large_log_are_near_the_truth() -> None:
    q, value = exact()
    found = estimate(simulated(3000, 3), target=PI, gamma=GAMMA, trace=ot.Retrace(0.9))
    for one in found.estimates:
        assert abs(one.value - value) < 4 * one.standard_error, one.name
        low, high = one.bootstrap
        assert low < one.value < high
        assert high - low == pytest.approx(one.interval[1] - one.interval[0], rel=0.25), one.name
    assert np.abs(found.q - q).max() < 0.3
    assert found.verdict.answer == "yes"


def test_an_episode_that_is_cut_has_no_target_at_the_cut() -> None:
    """Without a successor, what follows is unknown: the row is left out, not taken for an end."""
    cut = simulated(200, 4, most_steps=2)
    without = replace(cut, successor=None)
    assert cut.truncated.any()
    assert (estimate(cut, target=PI, gamma=GAMMA).q != estimate(without, target=PI, gamma=GAMMA).q).any()
    found = estimate(without, target=PI, gamma=GAMMA)
    assert found.diagnostics.truncated_share == pytest.approx(cut.truncated.sum() / cut.num_episodes)
    assert any("does not have the state after the cut" in line for line in found.verdict.warnings)
    assert any("add a model's value" in line for line in estimate(cut, target=PI, gamma=GAMMA).verdict.warnings)
    same = compare(simulated(1000, 9, most_steps=2), targets={"mu": MU}, gamma=GAMMA)
    assert not same.differences[0].told  # the log's own value ends at the cut


def test_actions_that_are_vectors_have_densities() -> None:
    """One step, μ = N(0, 1), π = N(0.5, 1), reward = action: the value of π is 0.5."""
    generator = np.random.default_rng(0)
    action = generator.normal(size=(4000, 1))
    number = np.arange(4000)
    density = -0.5 * action[:, 0] ** 2 - 0.5 * np.log(2 * np.pi)
    columns = {"episode": number, "step": 0 * number, "observation": np.zeros((4000, 1)), "action": action}
    columns |= {"reward": action[:, 0], "terminated": number >= 0, "truncated": number < 0}
    log = Log.from_columns({**columns, "behaviour_log_density": density})

    def policy(observation: np.ndarray, action: np.ndarray) -> np.ndarray:
        return -0.5 * (action[:, 0] - 0.5) ** 2 - 0.5 * np.log(2 * np.pi)

    found = estimate(log, target=policy, gamma=1.0)
    ratio = np.exp(0.5 * action[:, 0] - 0.125)
    assert found["is"].value == pytest.approx(np.mean(ratio * action[:, 0]))
    assert found["wis"].value == pytest.approx(np.sum(ratio * action[:, 0]) / ratio.sum())
    assert [one.name for one in found.estimates] == ["is", "wis", "pdis", "wpdis"]
    assert abs(found["wpdis"].value - 0.5) < 4 * found["wpdis"].standard_error
    assert found.q is None
    with pytest.raises(ValueError, match="must have `behaviour_log_density`"):
        estimate(Log.from_columns(columns), target=policy, gamma=1.0)
    with pytest.raises(ValueError, match="to log-densities"):
        estimate(log, target=PI, gamma=1.0)


# -- parts, threads, Ray ---------------------------------------------------------------------------


def test_parts_do_not_change_the_estimates(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = estimate(log, target=PI, gamma=GAMMA)
    monkeypatch.setattr(parts, "ROWS_PER_PART", 50)
    assert len(parts.cuts(log)) > 3
    in_parts = estimate(log, target=PI, gamma=GAMMA)
    for one in whole.estimates:
        assert in_parts[one.name].value == pytest.approx(one.value, abs=1e-8)
        assert in_parts[one.name].standard_error == pytest.approx(one.standard_error, abs=1e-7)
        np.testing.assert_allclose(in_parts[one.name].bootstrap, one.bootstrap, atol=1e-7)


def test_parts_are_whole_episodes(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "ROWS_PER_PART", 40)
    bounds = parts.cuts(log)
    pieces = [parts.take(log, *one) for one in bounds]
    np.testing.assert_array_equal(np.concatenate([one.reward for one in pieces]), log.reward)
    np.testing.assert_array_equal(np.concatenate([one.lengths for one in pieces]), log.lengths)
    with (
        pytest.raises(ValueError, match="`engine` must be one of local, ray; got 'dask'"),
        engines.make_engine(log, "dask"),
    ):
        pass


def test_bootstrap_samples_of_groups_have_the_spread_of_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).normal(size=5000)
    one_by_one = Resamples(5000, 400, seed=0).sum(values)
    monkeypatch.setattr("offtrace.evaluation.resampling.MAX_GROUPS", 500)
    in_groups = Resamples(5000, 400, seed=0)
    assert in_groups.num_groups == 500
    assert in_groups.sum(values).std() == pytest.approx(one_by_one.std(), rel=0.15)
    np.testing.assert_array_equal(in_groups.columns()[:, 1:].sum(axis=0), 500)


# -- μ ---------------------------------------------------------------------------------------------


def test_mu_is_counted_in_the_other_folds(log: Log) -> None:
    """μ̂ of a fold has (n + α p) / (N + α) from the other folds; without folds, from all episodes."""
    unknown = replace(log, mu_a=None)
    assert log.state is not None
    with engines.make_engine(unknown, "local") as engine:
        evaluate(engine, ot.evaluation.as_target(PI, log=unknown), settings_of(gamma=GAMMA), lambda *_: None)
        (mu_a,) = engine.map(lambda part: part.mu_a)
        (fold,) = engine.map(lambda part: np.repeat(part.labels["fold"], part.log.lengths))
    share = np.bincount(log.action, minlength=A) / log.num_steps
    for row in (0, 5, 40):
        here = (fold != fold[row]) & (log.state == log.state[row])
        taken = here & (log.action == log.action[row])
        wanted = (taken.sum() + PRIOR * share[log.action[row]]) / (here.sum() + PRIOR)
        assert mu_a[row] == pytest.approx(wanted)
    found = estimate(unknown, target=PI, gamma=GAMMA)
    assert found.behaviour is not None
    assert found.behaviour.method == "counts"
    assert found["is"].value != estimate(log, target=PI, gamma=GAMMA)["is"].value


def test_several_behaviour_policies_have_each_their_own_mu(log: Log) -> None:
    """Two policies that always take the same action: μ̂ of the pooled log is a half, of each policy 1."""
    half = log.num_episodes // 2
    policy = np.repeat(np.arange(log.num_episodes) < half, log.lengths).astype(np.int32)
    two = replace(
        log, action=policy.astype(np.int32), mu_a=None, behaviour_policy=policy, behaviour_names=("one", "other")
    )
    target = np.full((X, A), 0.5)
    assert estimate(two, target=target, gamma=GAMMA).behaviour.smallest > 0.75  # ty: ignore[unresolved-attribute]
    pooled = replace(two, behaviour_policy=None, behaviour_names=())
    assert estimate(pooled, target=target, gamma=GAMMA).behaviour.smallest < 0.6  # ty: ignore[unresolved-attribute]


def test_mu_by_regression_is_near_the_truth() -> None:
    many = simulated(600, 5)
    assert many.state is not None
    assert many.mu_a is not None
    observed = replace(many, state=None, observation=np.eye(X)[many.state], successor=None, mu_a=None)
    found = estimate(observed, target=lambda x: x @ PI, gamma=GAMMA, estimators=["is"])
    assert found.behaviour is not None
    assert found.behaviour.method == "logistic regression"
    assert found.behaviour.log_likelihood == pytest.approx(np.log(many.mu_a).mean(), abs=0.01)


# -- comparisons and verdicts ----------------------------------------------------------------------


def test_paired_differences(log: Log) -> None:
    better = np.zeros((X, A))
    better[np.arange(X), R.argmax(axis=1)] = 1
    worse = np.roll(better, 1, axis=1)
    found = compare(simulated(500, 6), targets={"good": better, "bad": worse}, gamma=GAMMA, estimator="fqe")
    assert found.ranking[0] == "good"
    assert found.ranking[-1] == "bad"
    (gap,) = [one for one in found.differences if {one.one, one.other} == {"good", "bad"}]
    assert gap.told
    good, bad = found.evaluations["good"], found.evaluations["bad"]
    assert gap.value == pytest.approx(good["fqe"].value - bad["fqe"].value)
    paired = good.influence["fqe"] - bad.influence["fqe"]
    assert gap.standard_error == pytest.approx(paired.std(ddof=1) / np.sqrt(500))
    with pytest.raises(ValueError, match="must not have the name 'logged'"):
        compare(log, targets={"logged": PI}, gamma=GAMMA)
    with pytest.raises(ValueError, match="at least one policy"):
        compare(log, targets=[], gamma=GAMMA)
    same = compare(log, targets=[PI, PI], gamma=GAMMA)
    assert len(same.evaluations) == 2
    assert not any(one.told for one in same.differences if "logged" not in (one.one, one.other))


def test_a_log_without_the_targets_actions_cannot_answer(log: Log) -> None:
    only_zero = replace(log, action=np.zeros_like(log.action))
    found = estimate(only_zero, target=np.full((X, A), 0.5), gamma=GAMMA)
    assert found.verdict.answer == "no"
    assert found.diagnostics.unseen_share == pytest.approx(0.5)
    both = compare(only_zero, targets={"half": np.full((X, A), 0.5)}, gamma=GAMMA, estimator="is")
    assert not any(one.told for one in both.differences)
    never = estimate(only_zero, target=np.eye(A)[np.ones(X, int)], gamma=GAMMA)
    assert never.verdict.answer == "no"
    assert never.diagnostics.num_possible == 0


def test_a_policy_that_no_episode_could_come_from() -> None:
    """What weighs episodes is left out; the rest is the limit of policies that take all actions."""
    log = simulated(200, 3)
    policy = np.eye(A)[MU.argmin(axis=1)]
    takes = policy[log.state, log.action] > 0
    rows = np.concatenate([np.arange(one.start, one.stop) for one in episodes(log) if not takes[one].all()])
    names = ("state", "action", "reward", "terminated", "truncated")
    columns = {name: getattr(log, name)[rows] for name in names}
    first = np.isin(rows, log.first)
    columns |= {
        "episode": np.cumsum(first),
        "next_state": log.successor[rows],
        "behaviour_probability": log.mu_a[rows],
    }
    columns["step"] = np.arange(len(rows)) - np.maximum.accumulate(np.where(first, np.arange(len(rows)), 0))
    found = estimate(columns, target=policy, gamma=GAMMA)
    assert found.diagnostics.num_possible == 0
    assert list(found) == ["Retrace(lambda_=1.0)", "fqe"]
    assert found.verdict.estimate == "Retrace(lambda_=1.0)"
    assert any("No episode of the log could come from" in line for line in found.verdict.warnings)
    nearly = estimate(columns, target=(1 - 1e-12) * policy + 1e-12 / A, gamma=GAMMA)
    assert nearly.diagnostics.num_possible > 0
    assert len(list(nearly)) > 2
    for name in found:
        assert found[name].value == pytest.approx(nearly[name].value, abs=1e-9)
    both = compare(columns, targets={"policy": policy, "pi": PI}, gamma=GAMMA)
    assert "wdr" in list(both.evaluations["pi"])
    assert "wdr" not in list(both.evaluations["policy"])
    names = ("state", "next_state", "action", "behaviour_probability")
    vectors = {name: values for name, values in columns.items() if name not in names}
    vectors["observation"] = vectors["action"] = np.zeros((len(rows), 2))
    vectors["behaviour_log_density"] = np.zeros(len(rows))
    with pytest.raises(LogError, match="no episode could come from the target policy"):
        estimate(vectors, target=lambda x, a: np.full(len(x), -np.inf), gamma=GAMMA)


def test_an_estimate_by_the_name_of_its_trace(log: Log) -> None:
    found = estimate(log, target=PI, gamma=GAMMA, lambda_=0.9, estimators=["fqe"])
    assert found["retrace"] is found["Retrace(lambda_=0.9)"]
    assert list(found) == ["Retrace(lambda_=0.9)", "fqe"]
    several = estimate(log, target=PI, gamma=GAMMA, lambda_=0.9, traces=[ot.Retrace(0.5)], estimators=[])
    for name in ("retrace", "tree_backup", "wis"):
        with pytest.raises(KeyError, match="there are Retrace"):
            several[name]


def test_few_effective_episodes_are_said_aloud() -> None:
    far = np.eye(A)[MU.argmin(axis=1)]
    found = estimate(simulated(150, 7), target=far, gamma=GAMMA)
    assert found.diagnostics.effective_episodes < 100
    assert found.verdict.answer == "with care"
    assert found.verdict.estimate == repr(ot.Retrace(1.0))
    assert "worth" in found.verdict.warnings[0]


@pytest.mark.parametrize(
    ("num_rewarded", "answer"), [(0, "no"), (2, "no"), (3, "with care"), (19, "with care"), (20, "yes")]
)
def test_rare_rewards_are_said_aloud(num_rewarded: int, answer: str) -> None:
    full = simulated(400, 8)
    ends = full.first[1:] - 1
    reward = np.zeros(full.num_steps)
    reward[ends[::20][:num_rewarded]] = -2.0
    found = estimate(replace(full, reward=reward), target=MU, gamma=GAMMA)
    assert found.diagnostics.num_rewarded == num_rewarded
    assert found.verdict.answer == answer
    said = [line for line in found.verdict.warnings if f"in only {num_rewarded} of 400 episodes" in line]
    assert len(said) == (0 < num_rewarded < 20)


def test_uneven_weights_of_rare_rewards_are_said_aloud() -> None:
    """Of 4,000 episodes 25 have a reward. Five weigh so much that all 25 are worth eight of the target policy."""
    num_episodes = 4000
    rewarded = np.arange(num_episodes) % 160 == 0
    rare = np.arange(num_episodes) % 800 == 0
    log = Log(
        first=np.arange(num_episodes + 1),
        state=np.zeros(num_episodes, int),
        action=np.where(rare, 0, 1),
        reward=rewarded.astype(float),
        terminated=np.ones(num_episodes, bool),
        truncated=np.zeros(num_episodes, bool),
        mu_a=np.where(rare, 0.02, 0.98),
    )
    found = estimate(log, target=np.array([[0.2, 0.8]]), gamma=1.0)
    weight = np.where(rare, 10.0, 0.8 / 0.98)
    assert found.diagnostics.effective_rewarded == pytest.approx(
        weight[rewarded].sum() ** 2 / (weight[rewarded] ** 2).sum()
    )
    assert found.diagnostics.effective_episodes > 100
    assert found.verdict.estimate == repr(ot.Retrace(1.0))
    assert any("The 25 episodes with a reward are worth 8." in line for line in found.verdict.warnings)


def test_a_few_episodes_that_all_have_rewards_are_no_rare_rewards() -> None:
    few = simulated(10, 9)
    found = estimate(few, target=MU, gamma=GAMMA)
    assert found.diagnostics.num_rewarded == 10
    assert found.verdict.answer == "with care"
    assert not any("reward other than 0" in line for line in found.verdict.warnings)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"gamma": "0.9"}, "`gamma` must be in .* got '0.9'"),
    ({"gamma": 1.5}, r"`gamma` must be in \[0, 1\]; got 1.5"),
    ({"confidence": 1.0}, "`confidence` must be between 0 and 1; got 1.0"),
    ({"estimators": ["mc"]}, "`estimators` must be among is, wis.*got 'mc'"),
    ({"num_folds": 0}, "`num_folds` must be at least 1; got 0"),
    ({"num_bootstrap": 1}, "`num_bootstrap` must be from 2 to 100,000; got 1"),
    ({"num_bootstrap": 100_001}, "`num_bootstrap` must be from 2 to 100,000; got 100001"),
    ({"target": np.full((2, 2), 0.5)}, "`state` must be below 2"),
]


@pytest.mark.parametrize(
    ("change", "message"), WRONG, ids=lambda one: next(iter(one)) if isinstance(one, dict) else ""
)
def test_wrong_settings_are_refused(log: Log, change: dict[str, Any], message: str) -> None:
    settings: dict[str, Any] = {"target": PI, "gamma": GAMMA, **change}
    run: Callable[..., Any] = estimate
    with pytest.raises(ValueError, match=message):
        run(log, **settings)


def test_bootstrap_samples_do_not_depend_on_how_many_are_drawn_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(1).normal(size=30)
    whole = Resamples(30, 50, seed=2).sum(values)
    monkeypatch.setattr("offtrace.evaluation.resampling.NUMBERS_AT_ONCE", 70)
    np.testing.assert_array_equal(Resamples(30, 50, seed=2).sum(values), whole)


def test_the_chart_holds_the_interval_of_the_estimate_to_read(log: Log) -> None:
    found = estimate(log, target=PI, gamma=GAMMA)
    assert found.verdict.answer != "no"
    wide = {found.verdict.estimate: (-90.0, 70.0), "is": (-500.0, 500.0)}
    rows = tuple(replace(one, interval=wide.get(one.name, one.interval)) for one in found.estimates)
    low, high = drawn_range([replace(found, estimates=rows)])
    assert (low, high) == (-90.0, 70.0)
    refused = replace(found, estimates=rows, verdict=replace(found.verdict, answer="no"))
    low, high = drawn_range([refused])
    assert -90 < low < high < 70
    assert all(low <= one.value <= high for one in rows)
