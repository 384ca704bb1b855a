"""The exact operators: against closed forms, plain loops and enumeration; the large solvers against the dense."""

import itertools
import warnings

import numpy as np
import pytest
import scipy.sparse

import offtrace as ot
from offtrace import mdp as mdps
from offtrace import operators, policies
from offtrace.mdp import FiniteMDP
from offtrace.operators import banded, general, products, solvers, spectrum

MARKOV = [name for name, cls in ot.TRACES.items() if cls.markov]


def random_policy(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    policy = rng.exponential(size=shape)
    return policy / policy.sum(1, keepdims=True)


def ending(rng: np.random.Generator, *, gamma: float = 0.9, num_states: int = 30) -> FiniteMDP:
    """Random, with rewards by transition and ends of every share."""
    base = mdps.garnet(num_states, 3, 4, gamma=gamma, seed=rng)
    shape = (num_states * 3, num_states)
    p = scipy.sparse.csr_array((base.probability, base.successor, base.first), shape=shape)
    r, ends = p.copy(), p.copy()
    r.data = rng.normal(size=len(r.data))
    ends.data = np.where(rng.random(len(ends.data)) < 0.3, rng.random(len(ends.data)), 0)
    return FiniteMDP(p=p, r=r, gamma=gamma, terminates=ends)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes every MDP count as large."""
    monkeypatch.setattr(products, "is_small", lambda mdp: False)


# -- closed forms and plain loops ----------------------------------------------------------------------------


def test_two_states_by_hand() -> None:
    """From 0 to 1 for sure, and 1 stays with ½ or ends: V(1) = 2 + ½·0.8·V(1), V(0) = 1 + 0.8 V(1)."""
    p = [[[0.0, 1.0]], [[0.0, 1.0]]]
    mdp = FiniteMDP(p=p, r=[[1.0], [2.0]], gamma=0.8, terminates=[[0.0], [0.5]])
    v1 = 2 / (1 - 0.4)
    assert operators.q_pi(mdp, [[1.0], [1.0]]).ravel() == pytest.approx([1 + 0.8 * v1, v1], abs=1e-14)


def test_random_walk_has_known_values() -> None:
    """Sutton and Barto's 19 states, γ = 1, ends −1 and +1: V(i) = i/10 − 1, i = 1 … 19."""
    mdp = mdps.random_walk()
    solution = operators.evaluate(mdp, np.full(mdp.shape, 0.5))
    assert solution.v == pytest.approx(np.arange(1, 20) / 10 - 1, abs=1e-12)
    assert solution.error_bound == np.inf  # γ = 1 bounds nothing; the residual is what is known
    assert solution.residual < 1e-12


@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.99])
def test_q_star_against_value_iteration(gamma: float) -> None:
    mdp = ending(np.random.default_rng(1), gamma=gamma)
    p, q = mdp.dense(), np.zeros(mdp.shape)
    going = np.zeros_like(p).reshape(-1, mdp.num_states)
    np.add.at(going, (mdp.rows, mdp.successor), mdp.probability * (1 - mdp.ends))
    for _ in range(4000):
        q = mdp.r + gamma * (going @ q.max(1)).reshape(mdp.shape)
    solution = operators.optimise(mdp)
    assert abs(solution.q - q).max() < 1e-10
    assert solution.residual < 1e-12


def test_q_star_is_the_best_of_all_policies() -> None:
    mdp = ending(np.random.default_rng(2), num_states=4)
    best = np.full(mdp.shape, -np.inf)
    for actions in itertools.product(range(3), repeat=4):
        best = np.maximum(best, operators.q_pi(mdp, np.eye(3)[list(actions)]))
    assert operators.q_star(mdp) == pytest.approx(best, abs=1e-11)


def test_lambda_operator_at_its_ends() -> None:
    """λ = 0 is T^π and λ = 1 is Q^π, which the paper's printed sum is not (Deviation D1)."""
    rng = np.random.default_rng(3)
    mdp = ending(rng)
    pi, q = random_policy(rng, mdp.shape), rng.normal(size=mdp.shape)
    assert operators.t_lambda(mdp, q, pi=pi, lambda_=0.0) == pytest.approx(operators.t_pi(mdp, q, pi=pi), abs=1e-13)
    assert operators.t_lambda(mdp, q, pi=pi, lambda_=1.0) == pytest.approx(operators.q_pi(mdp, pi), abs=1e-11)
    series, power = np.zeros(mdp.shape), q
    for n in range(400):
        power = operators.t_pi(mdp, power, pi=pi)
        series += (1 - 0.7) * 0.7**n * power
    assert operators.t_lambda(mdp, q, pi=pi, lambda_=0.7) == pytest.approx(series, abs=1e-11)


def test_importance_sampling_solves_in_one_step() -> None:
    rng = np.random.default_rng(4)
    mdp = ending(rng)
    pi, mu, q = random_policy(rng, mdp.shape), random_policy(rng, mdp.shape), rng.normal(size=mdp.shape)
    solved = operators.general_operator(mdp, q, pi=pi, mu=mu, trace=ot.ImportanceSampling(1.0))
    assert solved == pytest.approx(operators.q_pi(mdp, pi), abs=1e-11)


# -- γ near 1 and at 1 ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", ["small", "large"])
def test_gamma_close_to_one(size: str, request: pytest.FixtureRequest) -> None:
    """The residual is under 1e-8, or a warning says so."""
    if size == "large":
        request.getfixturevalue("large")
    rng = np.random.default_rng(5)
    mdp = mdps.garnet(300, 3, 4, gamma=0.999999, seed=rng)
    pi = random_policy(rng, mdp.shape)
    for solve in (lambda: operators.evaluate(mdp, pi), lambda: operators.optimise(mdp)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            solution = solve()
        assert np.isfinite(solution.q).all()
        assert solution.residual < 1e-8 or any(issubclass(w.category, ot.operators.ResidualWarning) for w in caught)
        assert solution.residual < 1e-6


def test_a_residual_above_what_was_asked_is_said() -> None:
    poor = solvers.Solution(np.zeros((1, 1)), np.zeros(1), 1e-3, 1.0, 7, "sweeps")
    with pytest.warns(ot.operators.ResidualWarning, match=r"0\.001.*above `tol`"):
        solvers.checked(poor, 1e-8)


def test_gamma_one_needs_an_end() -> None:
    p = np.zeros((3, 2, 3))
    p[0, 0, 0] = p[0, 1, 1] = p[1, :, 2] = p[2, :, 2] = 1  # action 0 in state 0 stays for ever
    mdp = FiniteMDP(p=p, r=np.ones((3, 2)), gamma=1.0, terminates=[0.0, 0.0, 1.0])
    leaving = np.array([[0.0, 1.0], [0.5, 0.5], [0.5, 0.5]])
    assert operators.q_pi(mdp, leaving)[0, 1] == pytest.approx(2.0)  # one for each step, the second of which ends
    with pytest.raises(ValueError, match=r"`gamma` must be below 1 .* x = 0"):
        operators.q_pi(mdp, [[1.0, 0.0], [0.5, 0.5], [0.5, 0.5]])
    with pytest.raises(ValueError, match=r"`gamma` must be below 1 .*A loop through x = 0 earns 1 per step"):
        operators.q_star(mdp)


@pytest.mark.parametrize("call", [operators.q_star, lambda m: operators.q_pi(m, np.full(m.shape, 0.25))])
def test_gamma_one_without_ends_is_refused(call) -> None:
    with pytest.raises(ValueError, match="`gamma` must be below 1"):
        call(mdps.garnet(10, 4, 3, gamma=1.0, seed=0))


# -- shortest paths ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", ["small", "large"])
def test_the_cliff_has_its_shortest_path(size: str, request: pytest.FixtureRequest) -> None:
    """Thirteen steps of −1 along the edge (Sutton and Barto, Ex. 6.6): most policies never end, the best one does."""
    if size == "large":
        request.getfixturevalue("large")
    mdp = mdps.cliff_walking(gamma=1.0)
    solution = operators.optimise(mdp)
    assert float(solution.v @ mdp.start) == pytest.approx(-13, abs=1e-7)
    assert solution.residual < 1e-7


def test_reaching_a_goal_is_worth_more_than_going_round() -> None:
    """All steps cost nothing but the last one pays: V* is the chance to get there, as loops of 0 earn nothing."""
    mdp = mdps.random_walk(9, gamma=1.0)
    assert operators.optimise(mdp).v == pytest.approx(np.ones(9))
    slipping = mdps.chain(5, gamma=1.0, slip=0.25)
    odds = 0.25 / 0.75  # gambler's ruin: (1 − odds^i) / (1 − odds^6) from the i-th of 5 states
    chance = (1 - odds ** np.arange(1, 6)) / (1 - odds**6)
    assert operators.optimise(slipping).v == pytest.approx(chance, abs=1e-12)


def two_ways(stay: float, leave: float) -> FiniteMDP:
    """State 0: go round by way of state 1, which gives `stay` in all, or end with `leave`."""
    p = np.zeros((2, 2, 2))
    p[0, 0, 1] = p[1, :, 0] = p[0, 1, 0] = 1
    r = [[2.0 + stay, leave], [-2.0, -2.0]]
    return FiniteMDP(p=p, r=r, gamma=1.0, terminates=[[0.0, 1.0], [0.0, 0.0]])


def test_what_cannot_be_solved_undiscounted_says_why() -> None:
    assert operators.q_star(two_ways(stay=-1.0, leave=-50.0))[0] == pytest.approx([-51.0, -50.0])
    assert operators.q_star(two_ways(stay=0.0, leave=5.0))[0] == pytest.approx([5.0, 5.0])
    with pytest.raises(ValueError, match=r"A loop through x = \d earns 0\.5 per step"):
        operators.q_star(two_ways(stay=1.0, leave=50.0))
    with pytest.raises(ValueError, match=r"loop through x = 1 earns 0 in total, .* ending .* earns -5"):
        operators.q_star(two_ways(stay=0.0, leave=-3.0))
    p = np.eye(2)[:, None]
    with pytest.raises(ValueError, match=r"No policy ends an episode from x = 1: mark what ends with `terminates`"):
        operators.q_star(FiniteMDP(p=p, r=[[0.0], [-1.0]], gamma=1.0, terminates=[[0.5], [0.0]]))


def random_loops(rng: np.random.Generator) -> FiniteMDP:
    """Four states, two actions, rewards that are whole numbers, and a few ends: loops of every sign."""
    p, ends = np.zeros((4, 2, 4)), rng.random((4, 2)) < 0.3
    for x, a in np.ndindex(4, 2):
        p[x, a, rng.choice(4, 2, replace=False)] = 0.5 if rng.random() < 0.4 else [1.0, 0.0]
    return FiniteMDP(p=p, r=rng.integers(-2, 2, (4, 2)), gamma=1.0, terminates=ends)


def by_enumeration(mdp: FiniteMDP) -> np.ndarray | str:
    """V* of the best policy of those that end; `earns` or `costs` where another is better, `no policy` where none."""
    going = np.zeros((8, 4))
    np.add.at(going, (mdp.rows, mdp.successor), mdp.continuing)
    going, states = going.reshape(4, 2, 4), np.arange(4)
    policies, best = [], np.full(4, -np.inf)
    for actions in itertools.product(range(2), repeat=4):
        chain, r = going[states, list(actions)], mdp.r[states, list(actions)]
        if np.linalg.matrix_power(chain, 64).sum(1).max() < 0.999:
            best = np.maximum(best, np.linalg.solve(np.eye(4) - chain, r))
        else:
            policies.append((chain, r))
    if not np.isfinite(best).all():
        return "No policy"
    costs = False
    for chain, r in policies:
        often = sum(np.linalg.matrix_power(chain, t) for t in range(720, 780)) / 60  # all periods divide 60
        if (often @ r).max() > 1e-9:
            return "per step"
        recurrent = often.diagonal() > 1e-9
        costs = costs or bool((recurrent & (abs(often @ r) < 1e-9) & (best < -1e-9)).any())
    return "in total" if costs else best


def test_shortest_paths_against_all_policies() -> None:
    rng = np.random.default_rng(3)
    seen = set()
    for _ in range(150):
        mdp = random_loops(rng)
        expected = by_enumeration(mdp)
        seen.add(expected if isinstance(expected, str) else "solved")
        if isinstance(expected, str):
            with pytest.raises(ValueError, match=expected):
                operators.q_star(mdp)
        else:
            assert operators.q_star(mdp).max(1) == pytest.approx(expected, abs=1e-9)
    assert len(seen) == 4


# -- large as small ------------------------------------------------------------------------------------------


def cases() -> dict[str, FiniteMDP]:
    rng = np.random.default_rng(6)
    return {
        "mixing": mdps.garnet(250, 3, 4, gamma=0.99, seed=rng),
        "local": mdps.garnet(250, 3, 4, gamma=0.99, seed=rng, local=3),
        "ending": ending(rng, gamma=0.97, num_states=200),
        "walk": mdps.random_walk(99, gamma=0.999),
        "grid": mdps.grid_world((12, 12), gamma=0.995, slip=0.2),
    }


@pytest.mark.parametrize("name", ["mixing", "local", "ending", "walk", "grid"])
def test_large_solvers_agree_with_dense_ones(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mdp = cases()[name]
    rng = np.random.default_rng(7)
    pi, mu, q = random_policy(rng, mdp.shape), random_policy(rng, mdp.shape), rng.normal(size=mdp.shape)

    def everything() -> dict[str, np.ndarray]:
        given = {"pi": pi, "mu": mu, "trace": ot.Retrace(0.9)}
        w = mu * operators.coefficients(mdp, **given)
        return {
            "q_pi": operators.q_pi(mdp, pi),
            "q_star": operators.q_star(mdp),
            "t_lambda": operators.t_lambda(mdp, q, pi=pi, lambda_=0.8),
            "general": operators.general_operator(mdp, q, **given),
            "eta": operators.eta(mdp, **given),
            "variance": general.correction_moments(mdp, q, **given).variance,
            "radius": np.array(spectrum.contraction_radius(mdp, pi, w)),
            "state radius": np.array(spectrum.state_radius(mdp, w)),
        }

    small = everything()
    monkeypatch.setattr(products, "is_small", lambda _: False)
    for part, found in everything().items():
        scale = max(1.0, float(abs(small[part]).max()))
        assert found == pytest.approx(small[part], abs=5e-8 * scale), part  # `tol` is 1e-8, passed on a few times


def test_the_method_follows_the_spectrum(large: None) -> None:
    """Sweeps where bounds close in quickly, BiCGSTAB where successors are local, elimination where they are very
    near, by SuperLU if a few lead farther."""
    mixing, local, near = (mdps.garnet(3000, 4, 5, gamma=0.99, seed=0, local=within) for within in (None, 60, 3))
    successor = near.successor.copy()
    successor[7] = 1500
    strays = FiniteMDP(
        p=scipy.sparse.csr_array((near.probability, successor, near.first), shape=(12_000, 3000)),
        r=near.r,
        gamma=0.99,
    )
    pi = np.full(mixing.shape, 0.25)
    found = [operators.evaluate(mdp, pi) for mdp in (mixing, local, near, strays)]
    assert [solution.method for solution in found] == ["sweeps", "bicgstab", "banded", "superlu"]
    assert found[0].num_sweeps < 40
    assert all(solution.error_bound <= 1e-8 for solution in found)
    assert operators.optimise(mixing).method == "sweeps"
    assert operators.optimise(local).method == "policy iteration"


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5])
def test_sweeps_in_stages(share: float, large: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer passes, to the same values, whatever share of the states leads back to itself."""
    rng = np.random.default_rng(0)
    n = 1_000
    base = mdps.garnet(n, 2, 6, gamma=0.99, seed=1)
    p = scipy.sparse.csr_array((base.probability, base.successor, base.first), shape=(2 * n, n)).tolil()
    for x in rng.permutation(n)[: int(share * n)]:
        p[2 * x : 2 * x + 2] *= 0.4
        p[2 * x, x] += 0.6
        p[2 * x + 1, x] += 0.6
    mdp = FiniteMDP(p=p.tocsr(), r=base.r, gamma=0.99)
    pi = random_policy(rng, mdp.shape)
    monkeypatch.setattr(solvers, "MANY_TRANSITIONS", 0)
    chain = (pi[:, :, None] * p.toarray().reshape(n, 2, n)).sum(1)
    exact = np.linalg.solve(np.eye(n) - 0.99 * chain, (pi * mdp.r).sum(1))
    found = operators.evaluate(mdp, pi)
    assert abs(found.v - exact).max() <= 1e-8
    monkeypatch.setattr(solvers, "_staged", lambda *_: 0)
    plain = operators.evaluate(mdp, pi)
    assert abs(plain.v - exact).max() <= 1e-8
    if share < 0.5:
        assert found.method == plain.method == "sweeps"
        assert found.num_sweeps < 0.85 * plain.num_sweeps
    monkeypatch.undo()


@pytest.mark.parametrize("around", [False, True])
@pytest.mark.parametrize(("below", "above"), [(0, 1), (1, 0), (1, 1), (3, 3), (2, 7), (7, 2), (32, 32)])
@pytest.mark.parametrize("num_states", [128, 129, 700])
def test_elimination_along_a_band(num_states: int, below: int, above: int, around: bool) -> None:
    """Against a dense solve, with ends, and weights that are no policy."""
    rng = np.random.default_rng(below + 10 * above + num_states)
    num_pairs = 2 * num_states
    apart = rng.integers(-below, above + 1, size=(num_pairs, 3))
    apart[0], apart[-1] = -below, above  # as far around the end as it goes
    y = np.arange(num_pairs)[:, None] // 2 + apart
    y = y % num_states if around else y.clip(0, num_states - 1)
    p = np.zeros((num_pairs, num_states))
    np.add.at(p, (np.arange(num_pairs)[:, None], y), rng.dirichlet(np.ones(3), size=num_pairs))
    ends = np.where(rng.random(p.shape) < 0.1, rng.random(p.shape), 0)
    mdp = FiniteMDP(
        p=scipy.sparse.csr_array(p),
        r=np.zeros((num_states, 2)),
        gamma=0.99,
        terminates=scipy.sparse.csr_array(np.where(p > 0, ends, 0)),
    )
    band = banded.shape(mdp)
    assert band is not None
    assert (band.below, band.above) == (below, above)
    assert (band.border > 0) == around
    w, b = rng.random(mdp.shape) / 2, rng.normal(size=num_states)
    dense = np.eye(num_states) - 0.99 * products.state_matrix(mdp, w)
    assert banded.solve(mdp, w, b, band) == pytest.approx(np.linalg.solve(dense, b), abs=1e-10)


def test_a_band_that_is_too_wide_or_an_mdp_that_is_too_small_has_none() -> None:
    assert banded.shape(mdps.garnet(1000, 2, 5, gamma=0.9, seed=0, local=40)) is None
    assert banded.shape(mdps.garnet(100, 2, 5, gamma=0.9, seed=0, local=3)) is None


def test_what_goes_around_the_end_of_many_states_fades_out() -> None:
    """Entries of the border fall below the least number long before the end: no slow arithmetic, the same answer."""
    mdp = mdps.garnet(20_000, 2, 3, gamma=0.5, seed=0, local=2)
    pi = np.full(mdp.shape, 0.5)
    band = banded.shape(mdp)
    assert band is not None
    v = banded.solve(mdp, pi, products.expected(pi, mdp.r), band)
    q = products.backup(mdp, v, r=mdp.r)
    assert products.expected(pi, q) == pytest.approx(v, abs=1e-13)


def test_the_error_bound_is_one(large: None) -> None:
    """Against the dense answer: the truth lies within what is promised."""
    mdp = mdps.garnet(400, 3, 4, gamma=0.95, seed=8)
    pi = np.full(mdp.shape, 1 / 3)
    p = mdp.dense()
    v = np.linalg.solve(np.eye(400) - 0.95 * np.einsum("xa,xay->xy", pi, p), (pi * mdp.r).sum(1))
    for tol in (1e-2, 1e-5, 1e-8):
        solution = operators.evaluate(mdp, pi, tol=tol)
        assert abs(solution.v - v).max() <= max(tol, 1e-12)
        assert abs(solution.v - v).max() <= solution.error_bound + 1e-12


@pytest.mark.parametrize("threads", ["1", "3"])
def test_threads_do_not_change_the_answer(threads: str, large: None, monkeypatch: pytest.MonkeyPatch) -> None:
    mdp = mdps.garnet(60_000, 3, 4, gamma=0.9, seed=9)
    monkeypatch.setattr(solvers, "MANY_TRANSITIONS", 0)  # in stages, too
    pi = np.full(mdp.shape, 1 / 3)
    before = operators.q_pi(mdp, pi)
    monkeypatch.setenv("OFFTRACE_NUM_THREADS", threads)
    assert (operators.q_pi(mdp, pi) == before).all()


def test_a_sparse_p_is_not_copied() -> None:
    base = mdps.garnet(2000, 4, 5, gamma=0.99, seed=10)
    p = scipy.sparse.csr_array((base.probability, base.successor, base.first), shape=(8000, 2000))
    mdp = FiniteMDP(p=p, r=base.r, gamma=0.99)
    operators.evaluate(mdp, np.full(mdp.shape, 0.25))
    for ours, theirs in ((mdp.continuing, p.data), (mdp.successor, p.indices), (mdp.first, p.indptr)):
        assert np.shares_memory(ours, theirs)


# -- moments by enumeration ----------------------------------------------------------------------------------


def paths(mdp: FiniteMDP, mu: np.ndarray, x: int, a: int):
    """Every trajectory from (x, a) with its probability: [(x, a, k, ended)], by the definition."""
    for k in range(mdp.first[x * mdp.num_actions + a], mdp.first[x * mdp.num_actions + a + 1]):
        share = 0.0 if mdp.ends is None else mdp.ends[k]
        if share > 0:
            yield mdp.probability[k] * share, [(x, a, k, True)]
        if share < 1:
            y = int(mdp.successor[k])
            for b in range(mdp.num_actions):
                if mu[y, b] > 0:
                    for chance, rest in paths(mdp, mu, y, b):
                        yield mdp.probability[k] * (1 - share) * mu[y, b] * chance, [(x, a, k, False), *rest]


@pytest.mark.parametrize("name", MARKOV)
def test_moments_equal_those_of_all_paths(name: str) -> None:
    rng = np.random.default_rng(11)
    mdp = mdps.episodic(8, 2, 4, gamma=0.9, seed=rng)
    pi, mu, q = random_policy(rng, mdp.shape), random_policy(rng, mdp.shape), rng.normal(size=mdp.shape)
    trace = ot.as_trace(name) if name == "one_step" else ot.as_trace(name, lambda_=0.8)
    c = operators.coefficients(mdp, pi=pi, mu=mu, trace=trace, q=q)
    corrections = operators.correction_moments(mdp, q, pi=pi, mu=mu, trace=trace)
    sums = operators.trace_moments(mdp, pi=pi, mu=mu, trace=trace, q=q)
    v = (pi * q).sum(1)
    for x, a in np.ndindex(mdp.shape):
        total = np.zeros(5)
        for chance, path in paths(mdp, mu, x, a):
            correction = reached = 0.0
            weight = 1.0
            for t, (y, b, k, ended) in enumerate(path):
                weight *= c[y, b] * mdp.gamma if t else 1.0
                reward = mdp.r[y, b] if mdp.reward is None else mdp.reward[k]
                correction += weight * (reward + mdp.gamma * (not ended) * v[mdp.successor[k]] - q[y, b])
                reached += weight
            total += chance * np.array([1, correction, correction**2, reached, reached**2])
        assert total[0] == pytest.approx(1, abs=1e-12)
        assert corrections.mean[x, a] == pytest.approx(total[1], abs=1e-11)
        assert corrections.variance[x, a] == pytest.approx(total[2] - total[1] ** 2, abs=1e-10)
        assert sums.mean[x, a] == pytest.approx(total[3], abs=1e-11)
        assert sums.variance[x, a] == pytest.approx(total[4] - total[3] ** 2, abs=1e-10)


def test_when_the_variance_is_infinite() -> None:
    """One state, two actions: E_μ ρ² = Σ π²/μ, so importance sampling explodes where γ² Σ π²/μ ≥ 1."""
    mdp = FiniteMDP(p=np.ones((1, 2, 1)), r=[[0.0, 1.0]], gamma=0.9)
    pi, mu = np.array([[0.0, 1.0]]), np.array([[0.5, 0.5]])
    moments = operators.correction_moments(mdp, np.zeros((1, 2)), pi=pi, mu=mu, trace=ot.ImportanceSampling(1.0))
    assert moments.radius == pytest.approx(0.81 * 2)
    assert np.isinf(moments.variance).all()
    near = np.array([[0.2, 0.8]])
    moments = operators.correction_moments(mdp, np.zeros((1, 2)), pi=pi, mu=near, trace=ot.ImportanceSampling(0.9))
    assert moments.radius == pytest.approx(0.81 * 0.81 / 0.8)
    assert np.isfinite(moments.variance).all()


def second_moments(
    mdp: FiniteMDP, q: np.ndarray, pi: np.ndarray, mu: np.ndarray, c: np.ndarray, num_steps: int
) -> tuple[np.ndarray, np.ndarray]:
    """E Δ_T and E Δ_T² of the sum cut after T steps, by the length of the path, over pairs; no ends, r(x, a)."""
    p = mdp.dense().reshape(-1, mdp.num_states)
    delta = mdp.r.ravel()[:, None] + mdp.gamma * (pi * q).sum(1) - q.ravel()[:, None]
    first = second = np.zeros(mdp.shape)
    for _ in range(num_steps):
        u, z = (mu * c * first).sum(1), (mu * c**2 * second).sum(1)
        second = (p * (delta**2 + 2 * mdp.gamma * delta * u + mdp.gamma**2 * z)).sum(1).reshape(mdp.shape)
        first = (p * (delta + mdp.gamma * u)).sum(1).reshape(mdp.shape)
    return first, second


def test_a_component_that_meets_no_other_keeps_its_variance() -> None:
    """Two MDPs side by side are as each is alone, and what leads into both is infinite."""
    rng = np.random.default_rng(5)
    one, other = (mdps.garnet(3, 2, 2, gamma=0.9, seed=seed) for seed in (1, 2))
    p, r = np.zeros((7, 2, 7)), rng.normal(size=(7, 2))
    p[:3, :, :3], p[3:6, :, 3:6], p[6, 0, 1], p[6, 1, [1, 4]] = one.dense(), other.dense(), 1.0, 0.5
    pi, mu, q = np.tile([0.0, 1.0], (7, 1)), np.full((7, 2), 0.5), rng.normal(size=(7, 2))
    pi[:3] = 0.5  # on-policy in the first, so its traces are all 1
    mdp = FiniteMDP(p=p, r=r, gamma=0.9)
    moments = operators.correction_moments(mdp, q, pi=pi, mu=mu, trace=ot.ImportanceSampling(1.0))
    alone = operators.correction_moments(
        FiniteMDP(p=one.dense(), r=r[:3], gamma=0.9), q[:3], pi=pi[:3], mu=mu[:3], trace=ot.ImportanceSampling(1.0)
    )
    assert moments.radius > 1 > alone.radius
    assert moments.variance[:3] == pytest.approx(alone.variance, rel=1e-12)
    assert np.isinf(moments.variance[3:6]).all()
    assert np.isfinite(moments.variance[6]).tolist() == [True, False]


@pytest.mark.parametrize("size", ["small", "large"])
def test_without_noise_there_is_no_variance(size: str, request: pytest.FixtureRequest) -> None:
    """Where every TD error is 0; and where the later ones take back what the earlier gave, on every path."""
    if size == "large":
        request.getfixturevalue("large")
    p = np.zeros((3, 2, 3))
    p[np.arange(3), 0, [1, 2, 0]] = p[np.arange(3), 1, [2, 0, 1]] = 1
    mdp = FiniteMDP(p=p, r=np.arange(6).reshape(3, 2), gamma=0.9)
    pi, mu = np.tile([0.0, 1.0], (3, 1)), np.full((3, 2), 0.5)
    q = operators.q_pi(mdp, pi, tol=1e-13)
    moments = operators.correction_moments(mdp, q, pi=pi, mu=mu, trace=ot.ImportanceSampling(1.0))
    assert moments.radius > 1
    assert (moments.variance == 0).all()
    one = FiniteMDP(p=np.ones((1, 2, 1)), r=[[0.1 - 0.9, 10 - 0.9]], gamma=0.9)  # c·g is 1, so δ = g − γ·1
    moments = operators.correction_moments(
        one, np.zeros((1, 2)), pi=[[0.5, 0.5]], mu=[[0.1, 0.9]], trace=lambda *, pi_a, mu_a: np.array([10, 0.1])
    )
    assert moments.radius > 1
    assert moments.mean == pytest.approx(np.array([[0.1, 10.0]]), abs=1e-9)
    assert (moments.variance == 0).all()


def reducible(rng: np.random.Generator) -> tuple[FiniteMDP, np.ndarray, np.ndarray, np.ndarray]:
    """Five states, most steps forwards, with policies that are near in some of them, and TD errors of 0 in others."""
    p = np.zeros((5, 2, 5))
    for x, a in np.ndindex(5, 2):
        ahead = rng.integers(x if rng.random() < 0.8 else 0, 5, 2)
        p[x, a, ahead[0]] += 0.5
        p[x, a, ahead[1]] += 0.5
    mu = rng.uniform(0.05, 0.95, (5, 1))
    mu = np.concatenate([mu, 1 - mu], axis=1)
    near = rng.random((5, 1)) < 0.5
    pi = np.where(near, mu, random_policy(rng, (5, 2)))
    q, r = rng.normal(size=(5, 2)), rng.normal(size=(5, 2))
    quiet = rng.random(5) < 0.3
    q[quiet] = r[quiet] = 0
    return FiniteMDP(p=p, r=r, gamma=0.8), q, pi, mu


def test_variances_against_paths_of_every_length() -> None:
    rng = np.random.default_rng(6)
    finite = infinite = 0
    while min(finite, infinite) < 40:
        mdp, q, pi, mu = reducible(rng)
        moments = operators.correction_moments(mdp, q, pi=pi, mu=mu, trace=ot.ImportanceSampling(1.0))
        growth = abs(np.linalg.eigvals(mdp.gamma**2 * operators.p_cmu(mdp, c=(pi / mu) ** 2, mu=mu)))
        if growth.max() < 1 or ((growth > 0.8) & (growth < 1.1)).any():
            continue  # so near 1, no number of steps can tell
        first, second = second_moments(mdp, q, pi, mu, pi / mu, 150)
        is_infinite = second > 1.01 * second_moments(mdp, q, pi, mu, pi / mu, 120)[1] + 1e-9
        assert (is_infinite == np.isinf(moments.variance)).all()
        assert moments.variance[~is_infinite] == pytest.approx((second - first**2)[~is_infinite], rel=1e-9, abs=1e-9)
        finite, infinite = finite + int((~is_infinite).sum()), infinite + int(is_infinite.sum())


# -- spectra -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["retrace", "q_lambda"])
def test_norms_and_radius_are_those_of_the_matrix(name: str) -> None:
    rng = np.random.default_rng(12)
    mdp = ending(rng, gamma=0.95, num_states=12)
    pi, mu = policies.greedy(rng.normal(size=mdp.shape)), random_policy(rng, mdp.shape)
    trace = ot.as_trace(name, lambda_=1.0)
    matrix = operators.a_matrix(mdp, pi=pi, mu=mu, trace=trace)
    w = mu * operators.coefficients(mdp, pi=pi, mu=mu, trace=trace)
    assert spectrum.contraction_radius(mdp, pi, w) == pytest.approx(abs(np.linalg.eigvals(matrix)).max(), abs=1e-10)
    norms = itertools.islice(spectrum.contraction_norms(mdp, pi, w), 4)
    power = np.eye(len(matrix))
    for norm in norms:
        power = power @ matrix
        assert norm == pytest.approx(abs(power).sum(1).max(), abs=1e-10)


# -- refusals ------------------------------------------------------------------------------------------------


def test_a_trace_that_grows_is_refused() -> None:
    mdp = mdps.garnet(5, 2, 2, gamma=0.9, seed=13)
    half = np.full(mdp.shape, 0.5)
    with pytest.raises(
        ValueError, match=r"`trace` must not grow faster than `gamma` = 0.9 shrinks it; got growth by"
    ):
        operators.general_operator(mdp, mdp.r, pi=half, mu=half, trace=lambda *, pi_a, mu_a: 0 * pi_a + 1.2)


@pytest.mark.parametrize(
    ("broken", "text"),
    [
        ({"q": np.zeros((2, 2))}, r"`q` must have shape \(X, A\) = \(5, 2\); got \(2, 2\)"),
        ({"q": np.full((5, 2), np.nan)}, r"`q` must be finite; got nan at \(x, a\) = \(0, 0\)"),
        ({"pi": np.full((5, 2), 0.4)}, r"`pi` must have rows that sum to 1; got 0.8 at x = 0"),
        (
            {"mu": np.array([[1.5, -0.5]] * 5)},
            r"`mu` must be a probability in \[0, 1\]; got 1.5 at \(x, a\) = \(0, 0\)",
        ),
        (
            {"trace": lambda *, pi_a, mu_a: -pi_a},
            r"`trace` must return finite c of at least 0; got -0.5 at \(x, a\) = \(0, 0\)",
        ),
        ({"trace": lambda *, pi_a, mu_a: pi_a[:3]}, r"`trace` must return one c per action taken.*\(3,\)"),
        ({"trace": ot.Retrace(np.array([0.5, 0.9]))}, "`lambda_` must be one number"),
    ],
)
def test_wrong_arguments_are_refused(broken: dict, text: str) -> None:
    mdp = mdps.garnet(5, 2, 2, gamma=0.9, seed=13)
    given = {"q": mdp.r, "pi": np.full((5, 2), 0.5), "mu": np.full((5, 2), 0.5), "trace": ot.Retrace(1.0)}
    arguments = given | broken
    with pytest.raises(ValueError, match=text):
        operators.general_operator(mdp, arguments.pop("q"), **arguments)


def test_a_trajectory_aware_trace_that_cannot_be_followed_says_what_to_do() -> None:
    mdp = mdps.garnet(30, 3, 5, gamma=0.99, seed=14)
    rng = np.random.default_rng(14)
    pi, mu = random_policy(rng, mdp.shape), random_policy(rng, mdp.shape)
    with pytest.raises(ValueError, match=r"distinct paths; got .* Estimate R with `sampled_operator`"):
        operators.general_operator(mdp, mdp.r, pi=pi, mu=mu, trace=ot.RBIS(1.0))


def test_a_sampled_operator_covers_the_exact_one() -> None:
    """99.9 % intervals of 24 pairs, three traces: at most one outside is what chance allows."""
    rng = np.random.default_rng(15)
    mdp = mdps.episodic(12, 2, 5, gamma=0.9, seed=rng)
    pi, mu, q = random_policy(rng, mdp.shape), random_policy(rng, mdp.shape), rng.normal(size=mdp.shape)
    for trace in (ot.RecursiveRetrace(0.9), ot.RBIS(0.9), ot.TruncatedIS(0.9)):
        exact = operators.general_operator(mdp, q, pi=pi, mu=mu, trace=trace)
        found = operators.sampled_operator(mdp, q, pi=pi, mu=mu, trace=trace, num_trajectories=4000, seed=1)
        tiny = 1e-12
        assert ((exact < found.low - tiny) | (exact > found.high + tiny)).sum() <= 1
        assert found.standard_error.max() > 0
