"""The doctor: correct functions are right, every known mistake is found in its own variants only, two mistakes
at once never get a wrong name, and other mistakes get evidence."""

import functools
import importlib
import importlib.util
import itertools
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loops import each

import offtrace as ot
from offtrace.doctor import MISTAKES, Mistake, Verdict, check, search
from offtrace.doctor.candidates import libraries
from offtrace.doctor.golden import GOLDEN, WINDOWS, _rough
from offtrace.doctor.recursion import (
    ALGORITHMS,
    EQUATION,
    RIGHT,
    RIGHT_TWO_NETWORKS,
    Switches,
    error_base,
    switched,
    targets,
)
from offtrace.doctor.verdict import THEORY
from offtrace.doctor.windows import GAMMA, LAMBDA, GoldenWindow
from offtrace.returns import reference

ENTRIES = list(MISTAKES.values())
VARIANTS = [(entry.name, i) for entry in ENTRIES for i in range(len(entry.variants))]


def variant(switches: Switches, algorithm: str = "retrace") -> Callable[..., np.ndarray]:
    """Return a function of arrays that computes the reference with these switches; it takes all ends and λ."""

    def target(
        q, pi, mu, a, r, terminated, truncated, reset, mask, next_q, next_pi, next_a, lambda_, gamma
    ) -> np.ndarray:
        after = zip(range(len(r)), _rows(next_q), _rows(next_pi), strict=True)
        window = GoldenWindow(
            name="",
            q=_rows(q),
            pi=_rows(pi),
            mu=_rows(mu),
            a=(*map(int, a), int(next_a[-1])),
            r=tuple(map(float, r)),
            terminated=tuple(map(bool, terminated)),
            truncated=tuple(map(bool, truncated)),
            starts=tuple(map(bool, reset)),
            real=tuple(bool(x) for x in mask),
            true_next=tuple(after),
            gamma=float(gamma),
        )
        g = np.array(targets(window, algorithm, float(lambda_), switches))
        return g - error_base(window, algorithm, switches)[: window.n] if switches.two_networks else g

    return target


def adapted(switches: Switches, algorithm: str = "retrace", lam: float | None = None) -> Callable[[Any], np.ndarray]:
    """Return the same as a function of one window; it reads λ unless `lam` is given."""
    target = variant(switches, algorithm)

    def of_a_window(window: Any) -> np.ndarray:
        names = ("q", "pi", "mu", "a", "r", "terminated", "truncated", "reset", "mask", "next_q", "next_pi", "next_a")
        arrays = {name: getattr(window, name) for name in names}
        if switches.two_networks:
            assert window.q_online.shape == window.q.shape  # to read it says that there are two
        return target(**arrays, lambda_=window.lambda_ if lam is None else lam, gamma=window.gamma)

    return of_a_window


def broken(entry: Mistake, i: int) -> Switches:
    """Return the switches with one mistake."""
    return (
        switched(entry.variants[i], right=RIGHT_TWO_NETWORKS[0] if entry.needs == "two_networks" else RIGHT) or RIGHT
    )


def _rows(values: Any) -> tuple[tuple[float, ...], ...]:
    return tuple(map(tuple, np.asarray(values, dtype=float).tolist()))


def unseen() -> list[GoldenWindow]:
    """Return windows that the doctor does not use."""
    rng = random.Random(7)
    other = ((1, (1.5, -2.0), 0.25),)
    return [
        *(_rough("", rng, n) for n in (1, 2, 3, 5)),
        *(_rough("", rng, 4, terminated=ends) for ends in ((0,), (1,), (3,), (1, 2))),
        _rough("", rng, 4, truncated=(1,), true_next=other),
        _rough("", rng, 5, truncated=(1,), dummy=(2,)),
        _rough("", rng, 3, truncated=(2,)),
    ]


def numbers(
    windows: list[GoldenWindow], switches: Switches, algorithm: str = "retrace", lam: float = LAMBDA
) -> np.ndarray:
    rows = [np.array(targets(w, algorithm, lam, switches))[np.array(w.real)] for w in windows]
    return np.concatenate(rows)


def reproduces(verdict: Verdict, names: tuple[str, ...], switches: Switches) -> bool:
    """Return whether a variant of the named mistakes gives the same numbers in other windows."""
    wanted = numbers(unseen(), switches)
    for changes in itertools.product(*(MISTAKES[name].variants for name in names)):
        candidate = switched(*changes)
        assert verdict.trace is not None
        if candidate is not None:
            got = numbers(unseen(), candidate, verdict.trace, verdict.lambda_ or 0.0)
            if np.allclose(got, wanted, rtol=1e-9, atol=1e-9):
                return True
    return False


# -- the reference behind it ------------------------------------------------------------------------------------


@each("window", {window.name: window for window in WINDOWS})
@pytest.mark.parametrize("name", [name for name in ot.TRACES if ot.TRACES[name].markov])
def test_the_recursion_is_the_double_sum(window: GoldenWindow, name: str) -> None:
    """The recursion in plain Python against the double sum of the paper."""
    n = window.n
    trace = ot.as_trace(name, lambda_=LAMBDA if name != "one_step" else 0.0)
    inputs = (
        {"q": np.array(window.q), "pi": np.array(window.pi), "a": np.array(window.a[:n])} if trace.needs_q else {}
    )
    c = trace(pi_a=np.array(window.pi_a[:n]), mu_a=np.array(window.mu_a[:n]), **inputs)
    delta = reference.corrections(
        q_a=window.q_a[:n],
        expected_q=window.next_v,
        r=window.r,
        discount=[0.0 if end else GAMMA for end in window.terminated],
        c=c,
        reset=np.array(window.starts),
    )
    real = np.array(window.real)
    expected = (np.array(window.q_a[:n]) + delta)[real]
    assert np.array(targets(window, name, trace.lambda_))[real] == pytest.approx(expected, rel=1e-13, abs=1e-13)


@pytest.mark.parametrize("name", [name for name in ot.TRACES if not ot.TRACES[name].markov])
def test_trajectory_aware_traces_are_the_library_s(name: str) -> None:
    for w in WINDOWS:
        expected = ot.targets(**window_arguments(w), trace=ot.as_trace(name, lambda_=LAMBDA))
        real = np.array(w.real)
        assert np.array(targets(w, name, LAMBDA))[real] == pytest.approx(expected[real], rel=1e-13, abs=1e-13)


def window_arguments(w: GoldenWindow) -> dict[str, Any]:
    return {
        "q": np.array(w.q),
        "a": np.array(w.a[: w.n]),
        "r": np.array(w.r),
        "discount": np.where(w.terminated, 0.0, GAMMA),
        "pi": np.array(w.pi),
        "mu_a": np.array(w.mu_a[: w.n]),
        "expected_q": np.array(w.next_v),
        "reset": np.array(w.starts),
    }


def test_golden_windows_are_small_enough_for_paper() -> None:
    for w in GOLDEN:
        assert w.n <= 3
        for x in (*w.r, *(x for row in w.q for x in row)):
            assert x == int(x)
            assert abs(x) <= 16
        for row in (*w.pi, *w.mu):
            assert sum(row) == 1
            assert all(p > 0 for p in row)
            assert all((4 * p).is_integer() for p in row) or "tiny" in w.name
        assert all(q[0] != q[1] for q in w.q)  # no ties, so that greedy is one action
    assert [w.n for w in GOLDEN] == sorted(w.n for w in GOLDEN)


# -- right is found right ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name not in ("continuous_acer", "peng", "vtrace")])
def test_every_trace_is_recognised(name: str) -> None:
    """Continuous ACER with one dimension is Retrace."""
    verdict = check(variant(RIGHT, name), trace=None if THEORY[name].safe else name)
    assert verdict.right, verdict
    assert (verdict.trace, verdict.kind, verdict.mistakes) == (name, "right", ())
    assert verdict.lambda_ == (None if name == "one_step" else LAMBDA)
    assert not verdict.untested


@pytest.mark.parametrize(
    ("library", "layout"),
    [("numpy", "single"), ("numpy", "time-major"), ("torch", "single"), ("torch", "time-major"), ("jax", "single")],
)
def test_this_library_is_right(library: str, layout: str) -> None:
    if library != "numpy":
        pytest.importorskip(library)
    fn = functools.partial(ot.targets, trace=ot.Retrace(0.9))
    verdict = check(fn, convention=f"{layout} {library}")
    assert verdict.right, verdict
    assert verdict.trace == "retrace"
    assert verdict.lambda_ == pytest.approx(0.9, abs=1e-5)
    assert verdict.mistakes == ()
    assert not verdict.untested


def test_this_library_s_primitive_is_right() -> None:
    verdict = check(ot.corrections)
    assert verdict.right, verdict
    assert "TD errors" in verdict.output


def test_this_library_s_vtrace_and_peng_are_right() -> None:
    assert check(ot.vtrace_targets).trace == "vtrace"
    assert check(ot.peng_targets).trace == "peng"


def test_rlax_is_right_up_to_its_epsilon_which_is_named() -> None:
    rlax = pytest.importorskip("rlax")
    verdict = check(rlax.retrace)
    assert verdict.right, verdict
    assert verdict.mistakes == ("epsilon_added_to_mu",)
    assert "1e-08" in verdict.text()
    assert verdict.trace == "retrace"
    continuous = check(rlax.retrace_continuous)
    assert (continuous.right, continuous.mistakes) == (True, ()), continuous


# -- every known mistake ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "i"), VARIANTS)
def test_every_mistake_is_found_in_its_own_variant_and_in_no_other(name: str, i: int) -> None:
    entry = MISTAKES[name]
    verdict = check(adapted(broken(entry, i)))
    assert verdict.mistakes == (name,), verdict
    assert verdict.alternatives == ()
    assert verdict.trace == "retrace"
    small = "epsilon" in name and entry.variants[i]["epsilon"] <= 1e-6
    assert verdict.right == small
    assert verdict.window is not None
    assert verdict.given != pytest.approx(verdict.expected, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("name", ["rbis", "truncated_is", "recursive_retrace", "tree_backup", "q_sigma", "watkins"])
def test_lambda_is_found_for_every_kind_of_trace(name: str) -> None:
    verdict = check(fixed(variant(RIGHT, name), 0.6), convention="single numpy", trace=name)
    assert (verdict.right, verdict.trace, verdict.lambda_) == (True, name, 0.6), verdict


@pytest.mark.parametrize("entry", [e for e in ENTRIES if not e.name.startswith("lambda_")], ids=lambda e: e.name)
def test_mistakes_are_found_where_lambda_is_unknown(entry: Any) -> None:
    """λ is inferred together with the mistake; 0.6 is not a common default."""
    verdict = check(adapted(broken(entry, -1), lam=0.6))
    assert verdict.mistakes == (entry.name,), verdict
    assert verdict.lambda_ == 0.6


def fixed(fn: Callable[..., np.ndarray], lam: float) -> Callable[..., np.ndarray]:
    def without_lambda(q, pi, mu, a, r, terminated, truncated, reset, mask, next_q, next_pi, next_a, gamma):
        return fn(q, pi, mu, a, r, terminated, truncated, reset, mask, next_q, next_pi, next_a, lam, gamma)

    return without_lambda


@pytest.mark.parametrize("trace", ["tree_backup", "importance_sampling", "q_lambda"])
def test_mistakes_are_found_in_other_traces(trace: str) -> None:
    """If the trace uses the term: Q(λ) has the same c everywhere, and TB does not use μ."""
    for entry in (entry for entry in ENTRIES if entry.needs != "two_networks"):
        switches = switched(entry.variants[0]) or RIGHT
        verdict = check(adapted(switches, trace))
        wanted, right = (numbers(list(WINDOWS), h, trace) for h in (switches, RIGHT))
        if np.allclose(wanted, right):
            assert verdict.right or verdict.kind == "ignored"
        elif verdict.kind in ("right", "ignored"):
            named = numbers(unseen(), RIGHT, verdict.trace or "", verdict.lambda_ or 0.0)
            assert named == pytest.approx(numbers(unseen(), switches, trace))
        else:
            explanations = verdict.alternatives or (verdict.mistakes,)
            assert (entry.name,) in explanations, verdict


def test_two_mistakes_are_never_given_a_wrong_name() -> None:
    """Every explanation reproduces the function in windows that the doctor does not use."""
    seen = dict.fromkeys(("mistake", "mistakes", "ambiguous", "right", "unknown"), 0)
    for first, second in itertools.islice(
        itertools.combinations([entry for entry in ENTRIES if not entry.needs], 2), 0, None, 4
    ):  # each is in six or seven of these
        switches = switched(first.variants[0], second.variants[0])
        if switches is None:
            continue
        verdict = check(adapted(switches))
        seen[verdict.kind] += 1
        if verdict.kind == "right":
            got = numbers(unseen(), RIGHT, verdict.trace or "", verdict.lambda_ or 0.0)
            if not verdict.mistakes:
                assert got == pytest.approx(numbers(unseen(), switches)), verdict
            continue
        assert verdict.kind != "unknown", verdict
        explanations = verdict.alternatives or (verdict.mistakes,)
        assert all(reproduces(verdict, names, switches) for names in explanations), (first.name, second.name, verdict)
    assert seen["mistakes"] > 50
    assert seen["right"] <= 1


def test_three_mistakes_are_evidence_or_true() -> None:
    """Three mistakes get two names only if one of them changes nothing."""
    rng = random.Random(3)
    kinds = []
    for _ in range(25):
        switches = switched(*(rng.choice(entry.variants) for entry in rng.sample(ENTRIES, 3)))
        if switches is None:
            continue
        verdict = check(adapted(switches))
        kinds.append(verdict.kind)
        if verdict.kind != "unknown":
            assert all(reproduces(verdict, names, switches) for names in verdict.alternatives or (verdict.mistakes,))
    assert kinds.count("unknown") > len(kinds) / 2


def test_entries_are_complete() -> None:
    for name, entry in MISTAKES.items():
        assert name == entry.name
        assert entry.where in EQUATION
        assert entry.sentence.endswith(".")
        assert entry.remedy.endswith(".")
        assert all(switched(change) is not None for change in entry.variants)


# -- conventions ------------------------------------------------------------------------------------------------
# The same recursion behind the signatures that people write.


def retrace(q, a, r, discount, pi, mu_a, lam, *, shift=1) -> np.ndarray:
    """One stream; `shift` 0 uses c one step early."""
    n, v = len(r), (q * pi).sum(-1)
    g = np.zeros(n)
    for t in reversed(range(n)):
        g[t] = r[t] + discount[t] * v[t + 1]
        if t + 1 < n:
            c = lam * min(1.0, pi[t + shift, a[t + shift]] / mu_a[t + shift])
            g[t] += discount[t] * c * (g[t + 1] - q[t + 1, a[t + 1]])
    return g


def taken(rows: np.ndarray, a: np.ndarray) -> np.ndarray:
    return np.array([rows[t, a[t]] for t in range(len(a))])


def softmax(x: np.ndarray) -> np.ndarray:
    return np.exp(x) / np.exp(x).sum(-1, keepdims=True)


def streams(axis: int, *arrays: np.ndarray) -> list[list[np.ndarray]]:
    assert all(x.ndim >= 2 for x in arrays)
    return [[np.take(x, b, axis=axis) for x in arrays] for b in range(arrays[0].shape[axis])]


def single_stream(q, a, r, discount, pi, mu, lam):
    return retrace(q, a, r, discount, pi, taken(mu, a), lam)


def time_major_logits(q, actions, rewards, not_done, pi_logits, mu_logits, gamma, lam=0.95):
    columns = []
    for x, a, r, alive, p, m in streams(1, q, actions, rewards, not_done, pi_logits, mu_logits):
        assert len(x) == len(r) + 1
        columns.append(retrace(x, a, r, gamma * alive, softmax(p), taken(softmax(m), a), lam) - taken(x, a))
    return np.stack(columns, axis=1)


def batch_major_loss(q_values, actions, rewards, dones, target_probs, behaviour_probs, gamma, lambda_):
    errors = []
    for x, a, r, done, p, m in streams(0, q_values, actions, rewards, dones, target_probs, behaviour_probs):
        assert len(x) == len(r) + 1
        errors.append(retrace(x, a, r, gamma * (1 - done), p, taken(m, a), lambda_) - taken(x, a))
    return 0.5 * np.mean(np.square(errors))


def q_and_v_with_ratios(q_a, v, rewards, discounts, rho):
    g = np.zeros(len(rewards))
    for t in reversed(range(len(rewards))):
        g[t] = rewards[t] + discounts[t] * v[t + 1]
        if t + 1 < len(g):
            g[t] += discounts[t] * min(1.0, rho[t + 1]) * (g[t + 1] - q_a[t + 1])
    return g


def log_probabilities_of_taken_actions(q_a, next_v, r, terminated, truncated, log_pi, log_mu, gamma, lmbda):
    delta = r + gamma * (1 - terminated) * next_v - q_a
    c = lmbda * np.exp(np.minimum(0, log_pi - log_mu))
    for t in reversed(range(len(r) - 1)):
        delta[t] += gamma * (1 - (terminated | truncated)[t]) * c[t + 1] * delta[t + 1]
    return {"td_error": delta, "loss": 0.5 * delta**2}


def shifted_as_in_rlax(q_tm1, q_t, a_tm1, a_t, r_t, discount_t, pi_t, mu_t, lambda_):
    n, v = len(r_t), (pi_t * q_t).sum(-1)
    g = r_t + discount_t * v
    for t in reversed(range(n - 1)):
        c = lambda_ * min(1.0, pi_t[t, a_t[t]] / mu_t[t, a_t[t]])
        g[t] += discount_t[t] * c * (g[t + 1] - q_t[t, a_t[t]])
    return g - taken(q_tm1, a_tm1)


SIGNATURES = {
    single_stream: ("single stream", "targets", LAMBDA),
    time_major_logits: ("time-major", "TD errors", LAMBDA),
    batch_major_loss: ("batch-major", "a loss, half the mean squared", LAMBDA),
    q_and_v_with_ratios: ("single stream", "targets", 1.0),
    log_probabilities_of_taken_actions: ("single stream", "TD errors", LAMBDA),
    shifted_as_in_rlax: ("single stream", "TD errors", LAMBDA),
}


@pytest.mark.parametrize("fn", SIGNATURES, ids=lambda fn: fn.__name__)
def test_conventions_are_found_by_trying(fn: Callable[..., Any]) -> None:
    layout, output, lam = SIGNATURES[fn]
    verdict = check(fn)
    assert verdict.right, verdict
    assert verdict.trace == "retrace"
    assert verdict.mistakes == ()
    assert verdict.lambda_ == lam
    assert layout in verdict.convention
    assert output in verdict.output


def test_torch_functions_get_tensors() -> None:
    torch = pytest.importorskip("torch")

    def batch_major(q, actions, rewards, dones, pi, mu_a, gamma: float, lam: float):
        q_a = torch.gather(q[:, :-1], -1, actions.unsqueeze(-1)).squeeze(-1)
        pi_a = torch.gather(pi[:, :-1], -1, actions.unsqueeze(-1)).squeeze(-1)
        discount = gamma * (~dones).float()
        v = (pi * q).sum(-1)[:, 1:]
        c = lam * (pi_a / mu_a).clamp(max=1.0)
        carry, out = torch.zeros_like(rewards[:, 0]), []
        for t in reversed(range(rewards.shape[1])):
            carry = rewards[:, t] + discount[:, t] * (v[:, t] + carry) - q_a[:, t]
            out.insert(0, carry + q_a[:, t])
            carry = c[:, t] * carry
        return torch.stack(out, dim=1)

    verdict = check(batch_major, convention="torch")
    assert verdict.right, verdict
    assert verdict.convention.startswith("batch-major; PyTorch")
    assert verdict.tolerance == 2e-5


def test_jax_functions_get_jax_arrays() -> None:
    jax = pytest.importorskip("jax")

    def scanned(q_a, v, r, discount, rho):
        def step(carry, row):
            r, discount, v, rho, q_a = row
            g = r + discount * (v + carry)
            return jax.numpy.minimum(1.0, rho) * (g - q_a), g

        return jax.lax.scan(step, 0.0, (r, discount, v[1:], rho, q_a), reverse=True)[1]

    verdict = check(scanned, convention="single jax")
    assert (verdict.right, verdict.trace, verdict.lambda_) == (True, "retrace", 1.0), verdict


def test_a_function_of_one_window_is_its_own_convention() -> None:
    def adapter(window):
        return retrace(window.q, window.a, window.r, window.discount, window.pi, window.mu_a, window.lambda_)

    assert check(adapter).right
    other = check(
        functools.partial(retrace, shift=0),
        convention=lambda fn, w: fn(w.q, w.a, w.r, w.discount, w.pi, w.mu_a, w.lambda_),
    )
    assert other.mistakes == ("c_one_step_early",)


def test_what_an_adapter_may_ask_for() -> None:
    def adapter(window):
        return window.colour

    with pytest.raises(
        ValueError,
        match=r"your adapter raised AttributeError at test_doctor\.py:\d+: a window has no `colour`.*next_v",
    ):
        check(adapter)


def test_no_convention() -> None:
    def strange(q, colour):
        return q

    with pytest.raises(ValueError, match=r"(?s)`colour`.*def adapter\(window\)"):
        check(strange)

    def empty(q, a, r, discount, pi, mu, lam):
        return None

    with pytest.raises(ValueError, match=r"(?s)fits no known convention.*def adapter"):
        check(empty)
    with pytest.raises(ValueError, match="`convention` must consist of the words"):
        check(single_stream, convention="sideways")


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_a_library_that_is_missing(monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    monkeypatch.setitem(sys.modules, library, None)

    def lazy(q, a, r, discount, pi):
        importlib.import_module(library)

    def adapter(window):
        importlib.import_module(library)

    remedy = rf"which is not installed\. Install it: pip install 'offtrace\[{library}\]'\."
    for fn in (lazy, adapter):
        with pytest.raises(ValueError, match=f"`{fn.__name__}` needs `{library}`, {remedy}$"):
            check(fn)
    with pytest.raises(ValueError, match=f"`convention` must name a library that is installed; got '{library}'"):
        check(single_stream, convention=f"single {library}")


# -- mistakes as people make them -------------------------------------------------------------------------------


def early(q, a, r, discount, pi, mu, lam):
    return retrace(q, a, r, discount, pi, taken(mu, a), lam, shift=0)


def epsilon(q, a, r, discount, pi, mu, lam):
    return retrace(q, a, r, discount, pi, taken(mu, a) + 1e-6, lam)


def twice(q, a, r, discount, pi, mu, lam):
    return retrace(q, a, r, discount, pi, taken(mu, a), lam * lam)


def unused(q, a, r, discount, pi, mu, lam):
    return retrace(q, a, r, discount, pi, taken(mu, a), 1.0)


def rolled(q, a, r, discount, pi, mu, lam):
    return retrace(q, a, np.roll(r, -1), discount, pi, taken(mu, a), lam)


def stale_policy(q, a, r, discount, pi, mu, lam):
    v = (pi[:-1] * q[1:]).sum(-1)
    g = r + discount * v
    for t in reversed(range(len(r) - 1)):
        c = lam * min(1.0, pi[t + 1, a[t + 1]] / mu[t + 1, a[t + 1]])
        g[t] += discount[t] * c * (g[t + 1] - q[t + 1, a[t + 1]])
    return g


def uncut(q, a, r, done, pi, mu, gamma, lam):
    delta = r + gamma * (1 - done) * (pi * q).sum(-1)[1:] - taken(q, a)
    for t in reversed(range(len(r) - 1)):
        delta[t] += gamma * lam * min(1.0, pi[t + 1, a[t + 1]] / mu[t + 1, a[t + 1]]) * delta[t + 1]
    return delta


def greedy_loss(q, a, r, done, pi, mu, gamma, lam):
    value = np.concatenate([q[:1] * 0, q[1:].max(-1, keepdims=True) * np.ones(2)[None]])
    g = retrace(value, np.zeros_like(a), r, gamma * (1 - done), pi, np.ones(len(a)), 0.0)
    for t in reversed(range(len(r) - 1)):
        c = lam * min(1.0, pi[t + 1, a[t + 1]] / mu[t + 1, a[t + 1]])
        g[t] += gamma * (1 - done[t]) * c * (g[t + 1] - q[t + 1, a[t + 1]])
    return ((g - taken(q, a)) ** 2).mean()


HAND_WRITTEN = {
    early: "c_one_step_early",
    epsilon: "epsilon_added_to_mu",
    twice: "lambda_twice",
    unused: "lambda_left_out",
    rolled: "reward_one_step_early",
    stale_policy: "policy_of_wrong_state",
    uncut: "trace_not_cut",
    greedy_loss: "expectation_is_max",
}


@pytest.mark.parametrize("fn", HAND_WRITTEN, ids=lambda fn: fn.__name__)
def test_mistakes_written_by_hand(fn: Callable[..., Any]) -> None:
    """These numbers do not come from the doctor's own reference."""
    verdict = check(fn)
    assert verdict.mistakes == (HAND_WRITTEN[fn],), verdict
    assert verdict.trace == "retrace"


def test_the_numbers_in_the_verdict_are_the_function_s_own() -> None:
    verdict = check(early)
    assert verdict.window is not None
    assert verdict.step is not None
    w = verdict.window
    arguments = window_arguments(w)
    given = early(*(arguments[k] for k in ("q", "a", "r", "discount", "pi")), np.array(w.mu), LAMBDA)
    right = ot.targets(**arguments, trace=ot.Retrace(LAMBDA))
    assert verdict.given == given[verdict.step]
    assert verdict.expected == pytest.approx(right[verdict.step])
    assert verdict.given_row == pytest.approx(given)
    assert verdict.term == "c_{t+1}"


def test_another_trace_is_called_by_its_name() -> None:
    def unclipped(q, a, r, discount, pi, mu, lam):
        v = (pi * q).sum(-1)
        g = r + discount * v[1:]
        for t in reversed(range(len(r) - 1)):
            c = lam * pi[t + 1, a[t + 1]] / mu[t + 1, a[t + 1]]
            g[t] += discount[t] * c * (g[t + 1] - q[t + 1, a[t + 1]])
        return g

    assert (check(unclipped).right, check(unclipped).trace) == (True, "importance_sampling")
    named = check(unclipped, trace="retrace")
    assert (named.right, named.kind, named.trace) == (False, "another", "importance_sampling")
    assert "DIFFERENT ALGORITHM" in named.text()


def test_lambda_that_the_function_does_not_take() -> None:
    def fixed(q, a, r, discount, pi, mu):
        return retrace(q, a, r, discount, pi, taken(mu, a), 0.81)

    found = check(fixed)
    assert (found.right, found.lambda_, found.lambda_known) == (True, 0.81, False)
    assert check(fixed, lambda_=0.9).mistakes == ("lambda_twice",)
    other = check(fixed, lambda_=0.8)
    assert (other.right, other.kind, other.lambda_) == (False, "another", 0.81)


# -- what is not in the list ------------------------------------------------------------------------------------


def test_an_unlisted_mistake_gets_evidence() -> None:
    """The verdict has the first wrong window and step, and the inputs with a wrong effect."""

    def leaky(q, a, r, discount, pi, mu, lam):
        return retrace(q, a, r, discount, pi, taken(mu, a), lam) + 0.125 * mu[0, 0] * r[-1]

    verdict = check(leaky)
    assert (verdict.right, verdict.kind, verdict.mistakes) == (False, "unknown", ())
    assert verdict.trace == "retrace"
    assert verdict.window is GOLDEN[0]
    assert verdict.step == 0
    assert verdict.given == 1.5 + 0.0625
    assert verdict.expected == 1.5
    assert any("depends on μ(·|x_0), but should not" in line for line in verdict.evidence)

    def ignores_large_rewards(q, a, r, discount, pi, mu, lam):
        return retrace(q, a, np.minimum(r, 1.0), discount, pi, taken(mu, a), lam)

    verdict = check(ignores_large_rewards)
    assert verdict.kind == "unknown"
    assert any("does not depend on r_0, but should" in line for line in verdict.evidence)


def test_no_text_is_wider_than_a_terminal() -> None:
    functions = (early, uncut, single_stream, time_major_logits, greedy_loss, stale_policy, epsilon)
    for verdict in (*map(check, functions), check(single_stream, trace="tree_backup")):
        assert all(len(line) <= 80 for line in str(verdict).splitlines()), verdict


def test_ties_are_told_and_not_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two entries that cannot be told apart are both named."""
    monkeypatch.setitem(MISTAKES, "other_name", MISTAKES["c_one_step_early"]._replace(name="other_name"))
    search.guesses.cache_clear()
    try:
        verdict = check(early)
    finally:
        search.guesses.cache_clear()
    assert (verdict.right, verdict.kind, verdict.mistakes) == (False, "ambiguous", ())
    assert verdict.alternatives == (("c_one_step_early",), ("other_name",))
    assert "2 explanations fit" in verdict.text()


def test_a_function_without_ends_or_bootstrap() -> None:
    """Ends that the arguments cannot express are not reported as mistakes."""

    def endless(q, a, r, pi, mu, gamma, lam):
        discount = np.full(len(r), gamma)
        discount[-1] = 0
        return retrace(q, a, r, discount, pi, taken(mu, a), lam)

    verdict = check(endless)
    assert verdict.mistakes == ("no_bootstrap",)
    assert any("not tested: ends of episodes" in note for note in verdict.notes)


def test_the_function_s_own_error_is_told() -> None:
    def unfinished(q, a, r, discount, pi, mu, lam):
        return helper_that_is_missing(q)  # noqa: F821

    with pytest.raises(ValueError, match="helper_that_is_missing"):
        check(unfinished)


def test_the_page_says_what_the_doctor_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example of docs/doctor.md has this output, and the page lists every mistake."""
    page = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text(encoding="utf-8")
    source = page.split("```python\n", 1)[1].split("```", 1)[0]
    shown = page.split("```text\n", 1)[1].split("```", 1)[0]
    (tmp_path / "my_losses.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    verdict = check(importlib.import_module("my_losses").retrace_targets)
    assert str(verdict).strip() == shown.strip()
    for entry in ENTRIES:
        assert f"`{entry.name}`" in page
        assert entry.title in page


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match="`trace` must be one of"):
        check(early, trace="retraced")
    with pytest.raises(ValueError, match="`lambda_` must be in"):
        check(early, lambda_=2.0)
    not_a_function: Any = 3
    with pytest.raises(TypeError, match="`fn` must be a function"):
        check(not_a_function)


# -- what a user who expects Retrace needs to hear ----------------------------------------------------------------


def carried(q, a, r, discount, pi, c, values=None) -> np.ndarray:
    """The recursion with any c, and any values in place of E_π Q."""
    g = r + discount * ((pi * q).sum(-1) if values is None else values)[1:]
    for t in reversed(range(len(r) - 1)):
        g[t] += discount[t] * c[t + 1] * (g[t + 1] - q[t + 1, a[t + 1]])
    return g


def clipped(pi, mu, a, lam) -> np.ndarray:
    return lam * np.minimum(1.0, taken(pi, a) / taken(mu, a))


def ignores_mu(q, a, r, discount, pi, mu, lam):
    return carried(q, a, r, discount, pi, np.full(len(r), lam))


def test_mu_that_is_taken_and_never_read() -> None:
    verdict = check(ignores_mu)
    assert (verdict.right, verdict.kind, verdict.trace) == (False, "ignored", "q_lambda")
    text = " ".join(verdict.text().split())
    assert "takes `mu` and never reads it" in text
    assert "NOT SAFE" in text
    assert "λ < (1−γ)/(γε)" in text
    assert check(ignores_mu, trace="q_lambda").right  # if it is named


def test_what_theory_says_of_each_trace_is_told() -> None:
    """Safe by Theorem 1, as the traces themselves declare; Peng's and V-trace are not in Table 1."""
    for name in ot.TRACES:
        assert THEORY[name].safe == ot.TRACES[name].safe
        assert THEORY[name].safe or THEORY[name].text
    assert set(THEORY) == set(ALGORITHMS)
    for name, says in (("truncated_is", "NOT SAFE: min(1, Πρ)"), ("importance_sampling", "variance may be infinite")):
        text = " ".join(str(check(adapted(RIGHT, name))).split())
        assert text.startswith("RIGHT")
        assert says in text


def inverted(q, a, r, discount, pi, mu, lam):
    return carried(q, a, r, discount, pi, clipped(mu, pi, a, lam))


def clipped_at_two(q, a, r, discount, pi, mu, lam):
    return carried(q, a, r, discount, pi, lam * np.minimum(2.0, taken(pi, a) / taken(mu, a)))


def normalised(q, a, r, discount, pi, mu, lam):
    rho = taken(pi, a) / taken(mu, a)
    return carried(q, a, r, discount, pi, lam * np.minimum(1.0, rho / rho.mean()))


def under_mu(q, a, r, discount, pi, mu, lam):
    return carried(q, a, r, discount, pi, clipped(pi, mu, a, lam), (mu * q).sum(-1))


@pytest.mark.parametrize(
    ("fn", "name", "kind"),
    [
        (inverted, "ratio_inverted", "mistake"),
        (clipped_at_two, "clip_not_at_one", "variant"),
        (normalised, "ratio_normalised", "mistake"),
        (under_mu, "expectation_under_mu", "mistake"),
    ],
)
def test_what_stands_in_c_or_for_the_expectation_is_named(fn: Callable[..., Any], name: str, kind: str) -> None:
    verdict = check(fn)
    assert (verdict.mistakes, verdict.kind, verdict.right) == ((name,), kind, False), verdict
    assert ("c̄ = 2" in verdict.text()) == (fn is clipped_at_two)


def with_two(q_online, q_target, a, r, discount, pi, mu, lam):
    return carried(q_target, a, r, discount, pi, clipped(pi, mu, a, lam)) - taken(q_online, a)


def with_online_baseline(q, q_target, a, r, discount, pi, mu, lam):
    """Deviation D12: the paper does not say whose Q(x, a) is inside the TD errors."""
    q_a = taken(q, a)
    delta = r + discount * (pi * q_target).sum(-1)[1:] - q_a
    c = clipped(pi, mu, a, lam)
    for t in reversed(range(len(r) - 1)):
        delta[t] += discount[t] * c[t + 1] * delta[t + 1]
    return q_a + delta


def swapped(online_q, target_q, a, r, discount, pi, mu, lam):
    return with_two(target_q, online_q, a, r, discount, pi, mu, lam)


def error_of_the_target(q_values, target_q_values, a, r, discount, pi, mu, lam):
    return with_two(target_q_values, target_q_values, a, r, discount, pi, mu, lam)


def with_next_of_the_target(q_values, next_q_target, a, r, discount, next_pi, pi, mu, lam, shift=1):
    q_a, c = taken(q_values, a), clipped(pi, mu, a, lam)
    delta = r + discount * (next_pi * next_q_target).sum(-1) - q_a
    for t in reversed(range(len(r) - 1)):
        delta[t] += discount[t] * c[t + shift] * delta[t + 1]
    return delta


def test_two_networks_are_told_apart() -> None:
    assert check(functools.partial(with_next_of_the_target, shift=1)).right
    early_c = check(functools.partial(with_next_of_the_target, shift=0))
    assert (early_c.mistakes, early_c.two_networks) == (("c_one_step_early",), True)
    assert check(with_two).right
    assert "comes from the target network" in " ".join(check(with_two).text().split())
    assert check(with_online_baseline).right
    assert check(swapped).mistakes == ("networks_swapped",)
    assert check(error_of_the_target).mistakes == ("error_of_target_network",)


def test_the_paper_s_clamp_is_not_wrong_and_hides_nothing() -> None:
    """App. F: corrections clamped to [−1, 1], then divided by the window's length."""

    def correction(q, a, r, discount, pi, mu, lam, *, shift=1):
        return np.clip(retrace(q, a, r, discount, pi, taken(mu, a), lam, shift=shift) - taken(q, a), -1, 1)

    def target(q, a, r, discount, pi, mu, lam):
        return taken(q, a) + correction(q, a, r, discount, pi, mu, lam)

    def shared(q, a, r, discount, pi, mu, lam):
        return correction(q, a, r, discount, pi, mu, lam) / len(r)

    for fn in (functools.partial(correction, shift=1), target, shared):
        verdict = check(fn)
        assert (verdict.right, verdict.trace) == (True, "retrace"), verdict
        assert "App. F" in verdict.text()
    assert check(functools.partial(correction, shift=0)).mistakes == ("c_one_step_early",)
    for entry in (entry for entry in ENTRIES if entry.needs != "two_networks" and not entry.harmless):
        assert not check(clamped(adapted(broken(entry, 0)))).right, entry.name


def clamped(adapter: Callable[[Any], np.ndarray]) -> Callable[[Any], np.ndarray]:
    def of_a_window(window: Any) -> np.ndarray:
        return np.clip(adapter(window) - window.q_a, -1, 1)

    return of_a_window


def test_rounding_is_told_from_mistakes() -> None:
    def half(q, a, r, discount, pi, mu, lam):
        q, r, discount, pi = (x.astype(np.float16) for x in (q, r, discount, pi))
        return carried(q, a, r, discount, pi, clipped(pi.astype(np.float64), mu, a, lam).astype(np.float16))

    def single(q, a, r, discount, pi, mu, lam):
        q, r, discount, pi, mu = (x.astype(np.float32) for x in (q, r, discount, pi, mu))
        return carried(q, a, r, discount, pi, clipped(pi, mu, a, np.float32(lam))).astype(np.float64)

    assert (check(half).kind, check(half).right) == ("rounded", False)
    assert "float16" in check(half).text()
    assert check(single).right
    assert "float32" in check(single).text()


def test_a_library_that_is_imported_inside_the_function() -> None:
    def lazy(q):
        import torch

        return torch.zeros(1)

    def nested(q):
        def inner(x):
            import jax.numpy as jnp

            return jnp.zeros(1)

        return inner(q)

    for fn, name in ((lazy, "torch"), (nested, "jax")):
        if importlib.util.find_spec(name):
            assert libraries(fn)[0] == name


def test_gamma_inside_the_function() -> None:
    def fixed_gamma(q, a, r, done, pi, mu):
        return retrace(q, a, r, 0.97 * (1 - done), pi, taken(mu, a), 0.9)

    verdict = check(fixed_gamma)
    assert (verdict.right, verdict.lambda_, verdict.gamma) == (True, 0.9, 0.97), verdict


@pytest.mark.parametrize("leave", [lambda: sys.exit(0), lambda: os._exit(0)], ids=["sys.exit", "os._exit"])
def test_a_function_that_leaves_is_not_right(leave: Callable[[], None], capsys: pytest.CaptureFixture[str]) -> None:
    def leaving(q, a, r, discount, pi, mu, lam):
        print("RIGHT: `leaving` is Retrace.")
        leave()

    with pytest.raises(ValueError, match="it called"):
        check(leaving)
    assert capsys.readouterr().out == ""
    assert os._exit.__module__ != "offtrace.doctor.conventions"


# -- variants that no entry was written for ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def variants() -> Any:
    path = Path(__file__).parents[2] / "simulations" / "doctor_variants.py"
    spec = importlib.util.spec_from_file_location("doctor_variants", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("lambda_inside_the_clip", ["min(λ, π/μ)"]),
        ("clipped_as_in_ppo", ["clipped to [0.8, 1.2]"]),
        ("normalised_over_the_batch", ["divided by its mean over batch and window"]),
        ("carried_without_gamma", ["γ is missing"]),
        ("product_from_the_start", ["the product starts in row 0"]),
        ("never_turned_round", ["reverse order"]),
        ("trace_cut_by_the_next_done", ["by the done of step t+1"]),
        ("baseline_of_the_last_action", ["Q(x_{t+1}, a_t)"]),
        ("three_at_once", ["λ²·min(1, π(a_t)/μ(a_t))", "μ(·|x_{t+1})"]),
        ("bootstrap_discounted_twice", ["γπ"]),
        ("reshaped_for_transposed", ["streams of a batch are mixed"]),
    ],
)
def test_terms_are_measured(variants: Any, name: str, says: list[str]) -> None:
    verdict = check(getattr(variants, name))
    assert (verdict.right, verdict.kind) == (False, "unknown")
    assert len(verdict.terms) >= len(says)
    for text in says:
        assert any(text in term for term in verdict.terms), verdict.terms
    assert all(len(line) <= 80 for line in verdict.text().splitlines())


@pytest.mark.parametrize("name", ["double_sum", "matrix_inverse", "lower_triangle", "einsum_and_where"])
def test_right_ones_in_other_styles_are_right(variants: Any, name: str) -> None:
    verdict = check(getattr(variants, name))
    assert (verdict.right, verdict.trace, verdict.mistakes) == (True, "retrace", ()), verdict


def test_what_is_right_in_small_windows_alone_is_not_right(variants: Any) -> None:
    verdict = check(variants.quotients_of_products)
    assert (verdict.right, verdict.kind) == (False, "fragile")
    assert any("c is often 0" in line for line in verdict.evidence)

    def other_gamma(q, a, r, pi, mu, gamma, lam):
        return retrace(q, a, r, np.full(len(r), 1 - gamma), pi, taken(mu, a), lam)  # γ = 1/2 is 1 − γ

    assert not check(other_gamma).right
