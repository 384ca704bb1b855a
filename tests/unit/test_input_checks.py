"""The input checks of `targets`, `corrections` and the traces, in each array library: wrong, unusual and huge inputs.

An error is checked for its type and for what its text names: the argument in backticks, the value or the place, and
the remedy; never for the whole sentence. `docs/reliability.md` lists what each kind of input gets.
"""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import oracle
import pytest
import torch
from builders import windows
from builders.windows import Arrays, changed, correction_arguments, taken
from loops import each
from precision import double_precision
from refusals import refusal, says

import offtrace as ot

NUMPY, JAX, TORCH, GRAD = "numpy", "jax", "torch", "torch, differentiable"
WAYS = (NUMPY, JAX, TORCH, GRAD)
"""PyTorch is listed twice: with a gradient it runs other code and other checks."""

RETRACE = ot.Retrace(0.9)
N, B, A = 6, 2, 3  # one shape for most tests, so that JAX compiles it once
NAN, INF = np.nan, np.inf


class OwnTruncatedIS(ot.TruncatedIS):
    """A user's trajectory-aware trace: the numbers of ours, computed by the generic code."""


def own_tree_backup(*, pi_a: Any, **_: Any) -> Any:
    """A user's function."""
    return 0.9 * pi_a


EVERY_TRACE = {name: cls(0.9) for name, cls in ot.TRACES.items()} | {
    "a user's": own_tree_backup,
    "a user's, trajectory-aware": OwnTruncatedIS(0.9),
}
ONE_OF_EACH_PATH = {
    name: EVERY_TRACE[name]
    for name in ("retrace", "watkins", "rbis", "q_sigma", "a user's", "a user's, trajectory-aware")
}
EVERY_WAY = pytest.mark.parametrize("way", WAYS)
EVERY_LIBRARY = pytest.mark.parametrize("way", [NUMPY, JAX, TORCH])
BY_TRACE = each("trace", EVERY_TRACE)
BY_PATH = each("trace", ONE_OF_EACH_PATH)


# -- helpers --------------------------------------------------------------------------------------------------

window = partial(windows.window, dtype="float32")  # the precision that most users have


def give(way: str, value: Any) -> Any:
    """Convert a NumPy array to an array of the library; return anything else, such as a list, as it is."""
    if not isinstance(value, np.ndarray) or way == NUMPY:
        return value
    return jnp.asarray(value) if way == JAX else torch.from_numpy(value.copy())


def take(out: Any) -> np.ndarray:
    return out.detach().numpy() if isinstance(out, torch.Tensor) else np.asarray(out)


def given(way: str, arrays: Arrays) -> Arrays:
    out = {name: give(way, value) for name, value in arrays.items()}
    if way == GRAD:
        floats = (v for v in out.values() if isinstance(v, torch.Tensor) and v.is_floating_point())
        next(floats).requires_grad_()
    return out


def raw_targets(way: str, arrays: Arrays, trace: Any = RETRACE, **options: Any) -> Any:
    return ot.targets(
        **given(way, arrays), trace=trace, **options, **({"stop_gradient": False} if way == GRAD else {})
    )


def targets(way: str, arrays: Arrays, trace: Any = RETRACE, **options: Any) -> np.ndarray:
    return take(raw_targets(way, arrays, trace, **options))


def corrections(way: str, arrays: Arrays, **options: Any) -> np.ndarray:
    return take(ot.corrections(**given(way, arrays), **options))


def overrides(arrays: Arrays) -> Arrays:
    """Return the arguments that replace `q`, `pi` and `a`, with the values that these would give."""
    values = (arrays["pi"] * arrays["q"]).sum(-1)[1:]
    return {
        "q_a": taken(arrays["q"], arrays["a"]),
        "expected_q": values,
        "pi_a": taken(arrays["pi"], arrays["a"]),
    }


@contextlib.contextmanager
def precision(way: str, dtype: str) -> Iterator[None]:
    """Enable float64 in JAX where it is needed."""
    with double_precision() if way == JAX and dtype == "float64" else contextlib.nullcontext():
        yield


# -- rows of π sum to 1 ---------------------------------------------------------------------------------------


@EVERY_WAY
@each("total", [0.9, 1.1])
@each("t", [0, 2, N])  # N is the state that the last step bootstraps from
def test_rows_of_pi_must_sum_to_1(way: str, total: float, t: int) -> None:
    w = window()
    w["pi"][t, 1] *= np.float32(total)
    says(refusal(targets, way, w), "`pi`", "sum", f"{total:g}", f"t = {t}", "[1]", "Normalise")


@EVERY_WAY
@BY_TRACE
def test_rows_of_pi_must_sum_to_1_for_every_trace(way: str, trace: Any) -> None:
    w = window()
    w["pi"][2] *= np.float32(0.9)
    says(refusal(targets, way, w, trace), "`pi`", "0.9", "t = 2")


@EVERY_WAY
@each(("dtype", "passes", "refused"), [("float32", 5e-5, 5e-4), ("float64", 5e-7, 5e-6)])
def test_sums_of_pi_may_be_off_by_rounding(way: str, dtype: str, passes: float, refused: float) -> None:
    with precision(way, dtype):
        w = window(dtype=dtype)
        w["pi"][2] *= 1 + passes
        assert np.isfinite(targets(way, w)).all()
        w["pi"][2] *= 1 + refused
        says(refusal(targets, way, w), "`pi`", "t = 2")


# -- probabilities are not negative, but for rounding ---------------------------------------------------------


@EVERY_WAY
@each("value", [-0.7, 2.5])
def test_logits_given_as_pi_are_refused(way: str, value: float) -> None:
    w = changed(window(), "pi", (2, 1, 0), value)
    says(refusal(targets, way, w), "`pi` must be probabilities", f"{value:g}", "t = 2", "softmax")


@EVERY_WAY
def test_a_negative_pi_is_refused(way: str) -> None:
    w = changed(window(), "pi", (2, 1), [-1e-3, 0.5, 0.501])
    says(refusal(targets, way, w), "`pi`", "-0.001", "t = 2", "[1, 0]")


@EVERY_WAY
@each("name", ["pi_a", "mu_a"])
def test_a_negative_probability_of_the_action_is_refused(way: str, name: str) -> None:
    w = window()
    w |= {"pi_a": taken(w["pi"], w["a"])}
    says(
        refusal(targets, way, changed(w, name, (2, 1), -1e-3)),
        f"`{name}`",
        "-0.001",
        "t = 2",
        "[1]",
        f"`log_{name}=`",
    )


@EVERY_WAY
def test_probabilities_may_be_negative_by_rounding(way: str) -> None:
    clean = changed(window(), "pi", (2, 1), [0.0, 0.5, 0.5])
    rounded = changed(clean, "pi", (2, 1), [-1e-12, 0.5, 0.5])
    clean["a"][2, 1] = rounded["a"][2, 1] = 0  # also where the action was taken
    clean["mu_a"][3], rounded["mu_a"][3] = 1, 1 + 5e-5
    np.testing.assert_allclose(targets(way, rounded), targets(way, clean), atol=2e-4)


# -- μ(a_t) = 0 on an action that was taken: an error for traces that read μ ----------------------------------

READ_MU = [name for name, cls in ot.TRACES.items() if cls.needs_mu]
DO_NOT_READ_MU = [name for name, cls in ot.TRACES.items() if not cls.needs_mu]


@EVERY_WAY
@each("name", READ_MU)
def test_mu_of_0_is_refused_where_it_is_read(way: str, name: str) -> None:
    w = changed(window(), "mu_a", (2, 1), 0)
    says(refusal(targets, way, w, ot.as_trace(name)), "`mu_a`", "got 0", "t = 2", "[1]")


@EVERY_WAY
@each("name", READ_MU)
def test_mu_of_0_is_refused_as_a_logarithm(way: str, name: str) -> None:
    w = window()
    w["log_mu_a"] = np.log(w.pop("mu_a"))
    text = refusal(targets, way, changed(w, "log_mu_a", (2, 1), -INF), ot.as_trace(name))
    says(text, "`log_mu_a`", "-inf", "t = 2", "[1]")


@EVERY_WAY
@each("name", DO_NOT_READ_MU)
def test_mu_of_0_is_allowed_where_it_is_not_read(way: str, name: str) -> None:
    w, trace = window(), ot.TRACES[name](0.9)
    right = targets(way, w, trace)
    for mu in (0.0, -1.0, NAN):
        np.testing.assert_array_equal(targets(way, changed(w, "mu_a", 2, mu), trace), right)
    np.testing.assert_array_equal(targets(way, {k: v for k, v in w.items() if k != "mu_a"}, trace), right)


@EVERY_LIBRARY
@each("name", [name for name in READ_MU if ot.TRACES[name].markov])
def test_traces_refuse_a_mu_of_0(way: str, name: str) -> None:
    for mu in (0.0, -0.5, NAN):
        arrays = given(way, {"pi_a": np.array([0.5, 0.5]), "mu_a": np.array([0.5, mu])})
        says(refusal(ot.as_trace(name), **arrays), "`mu_a`", f"{mu:g}", "t = 1")


@EVERY_LIBRARY
@each("name", ["tree_backup", "q_lambda"])
def test_traces_that_do_not_read_mu_allow_0(way: str, name: str) -> None:
    pi_a, mu_a = np.array([0.5, 0.25]), np.zeros(2)
    c = take(ot.as_trace(name, lambda_=0.5)(pi_a=give(way, pi_a), mu_a=give(way, mu_a)))
    np.testing.assert_array_equal(c, 0.5 * pi_a if name == "tree_backup" else [0.5, 0.5])


# -- tiny μ(a_t): Retrace gives c = λ; a ratio of importance sampling that overflows is an error --------------

TINY = {"float32": [1e-30, 1e-40, 1e-45], "float64": [1e-30, 1e-310, 5e-324]}  # the last two are denormal


def tiny_mu(mu: float, dtype: str) -> tuple[Arrays, Arrays]:
    """A window with a tiny μ in row 3, and the same with the μ that makes the ratio 1."""
    w = window(dtype=dtype)
    w["pi"][3] = np.array([0.25, 0.5, 0.25], dtype)
    return changed(w, "mu_a", 3, mu), changed(w, "mu_a", 3, taken(w["pi"], w["a"])[3])


@EVERY_WAY
@each(("dtype", "mu"), [(dtype, mu) for dtype, mus in TINY.items() for mu in mus])
def test_retrace_is_lambda_where_mu_is_tiny(way: str, dtype: str, mu: float) -> None:
    with precision(way, dtype):
        tiny, on_policy = tiny_mu(mu, dtype)
        np.testing.assert_array_equal(targets(way, tiny), targets(way, on_policy))
        probability = np.array([0.5, 1.0], dtype)
        c = take(RETRACE(pi_a=give(way, probability), mu_a=give(way, np.full(2, mu, dtype))))
        np.testing.assert_array_equal(c, np.full(2, 0.9, dtype))
        logs = {"log_pi_a": np.log(probability), "log_mu_a": np.full(2, -700, dtype)}
        np.testing.assert_array_equal(take(RETRACE(**given(way, logs))), np.full(2, 0.9, dtype))


@EVERY_WAY
@each("name", [name for name in READ_MU if name not in ("importance_sampling", "q_sigma")])
def test_clipped_ratios_stay_finite(way: str, name: str) -> None:
    for mu in TINY["float32"]:
        tiny, _ = tiny_mu(mu, "float32")
        tiny["pi"][2] = [0, 1, 0]
        tiny["a"][2] = 0  # π = 0 one step before: 0 · ∞ is a way to make NaN
        assert np.isfinite(targets(way, tiny, ot.as_trace(name))).all()


@EVERY_WAY
@each("name", ["importance_sampling", "q_sigma"])
def test_a_ratio_that_overflows_is_refused(way: str, name: str) -> None:
    tiny, _ = tiny_mu(1e-40, "float32")
    says(refusal(targets, way, tiny, ot.as_trace(name)), "`mu_a`", "t = 3")


@EVERY_WAY
def test_a_ratio_of_logarithms_that_overflows_is_refused(way: str) -> None:
    w = window()
    w["log_mu_a"] = np.log(w.pop("mu_a"))
    text = refusal(targets, way, changed(w, "log_mu_a", 3, -800), ot.ImportanceSampling(1.0))
    says(text, "overflow", "t = 3", "ot.Retrace")


@EVERY_WAY
def test_a_ratio_that_overflows_but_is_not_read_is_allowed(way: str) -> None:
    """c_0 is never read, nor c where an episode starts; 0.5 / 1e-40 overflows, 1e-40 itself is a fine μ."""
    tiny, _ = tiny_mu(1e-40, "float32")
    tiny["mu_a"][0] = 1e-40
    tiny["discount"][2] = 0
    tiny["reset"] = np.zeros((N, B), bool)
    tiny["reset"][3] = True
    assert np.isfinite(targets(way, tiny, ot.ImportanceSampling(1.0))).all()


@EVERY_WAY
def test_a_product_of_ratios_that_overflows_is_refused(way: str) -> None:
    """Each ratio is finite, their product is not: refused, never an infinite target in silence."""
    w = changed(window(), "mu_a", ..., 1e-30)
    says(refusal(targets, way, w, ot.ImportanceSampling(1.0)), "overflow")


# -- probabilities are at most 1; a logarithm in their place is an error that names `log_mu_a=` ---------------


@EVERY_WAY
@each("name", ["pi_a", "mu_a"])
@each("value", [1.5, -1.6094379, -30.0])
def test_a_logarithm_given_as_a_probability_is_refused(way: str, name: str, value: float) -> None:
    w = window()
    w |= {"pi_a": taken(w["pi"], w["a"])}
    text = refusal(targets, way, changed(w, name, (2, 1), value))
    says(text, f"`{name}`", f"{value:.6g}", "t = 2", "[1]", f"`log_{name}=`")


@EVERY_WAY
def test_a_pi_above_1_is_refused(way: str) -> None:
    w = changed(window(), "pi", (2, 1), [1.5, 0.25, 0.25])
    says(refusal(targets, way, w), "`pi`", "1.5", "t = 2", "[1, 0]")


@EVERY_WAY
@each("num_actions", [2, 3])  # log ½ is above −1, log ⅓ below
def test_logarithms_given_as_pi_are_refused(way: str, num_actions: int) -> None:
    w = window(num_actions=num_actions)
    w["pi"] = np.full_like(w["pi"], -np.log(num_actions))
    says(refusal(targets, way, w), "`pi`", f"{-np.log(num_actions):.6g}", "t = 0", "log")


@EVERY_WAY
@each("name", ["log_pi_a", "log_mu_a"])
def test_a_logarithm_must_be_a_number(way: str, name: str) -> None:
    w = window()
    w["log_mu_a"], w["log_pi_a"] = np.log(w.pop("mu_a")), np.log(taken(w["pi"], w["a"]))
    says(refusal(targets, way, changed(w, name, (2, 1), NAN)), f"`{name}`", "nan", "t = 2", "[1]")
    says(refusal(targets, way, changed(w, name, (2, 1), INF)), f"`{name}`", "inf", "t = 2", "[1]")


@EVERY_LIBRARY
@each("name", ["pi_a", "mu_a"])
@each("value", [1.5, -2.5])
def test_traces_refuse_what_is_not_a_probability(way: str, name: str, value: float) -> None:
    arrays = changed({"pi_a": np.full(3, 0.5), "mu_a": np.full(3, 0.5)}, name, 1, value)
    says(refusal(RETRACE, **given(way, arrays)), f"`{name}`", f"{value:g}", "t = 1", f"`log_{name}=`")


# -- rewards, Q and discounts of steps are finite -------------------------------------------------------------


@EVERY_WAY
@each("name", ["r", "discount", "q_a", "expected_q"])
@each("t", [0, 2, N - 1])
def test_values_of_a_step_must_be_finite(way: str, name: str, t: int) -> None:
    w, p = window(), correction_arguments()
    w |= {k: v for k, v in overrides(w).items() if k == name}
    for value in (NAN, INF, -INF):
        parts = (f"`{name}`", str(value), f"t = {t}", "[1]")
        says(refusal(targets, way, changed(w, name, (t, 1), value)), *parts)
        says(refusal(corrections, way, changed(p, name, (t, 1), value)), *parts)


@EVERY_WAY
@each(("t", "action"), [(0, 0), (0, 1), (2, 0), (2, 1), (N, 1)])  # 0 is taken, 1 is not
def test_q_must_be_finite(way: str, t: int, action: int) -> None:
    w = changed(window(), "a", ..., 0)
    for value in (NAN, INF, -INF):
        says(refusal(targets, way, changed(w, "q", (t, 1, action), value)), "`q`", str(value), f"t = {t}", "[1")


@EVERY_WAY
def test_q_must_be_finite_at_an_action_that_only_mu_takes(way: str) -> None:
    """π = 0 keeps Q out of the expectation, but Q(x_t, a_t) is read all the same."""
    w = changed(changed(window(), "q", (2, 1, 0), NAN), "pi", (2, 1), [0, 0.5, 0.5])
    w["a"][2, 1] = 0
    says(refusal(targets, way, w), "`q`", "nan", "t = 2", "[1]")


@EVERY_WAY
@each("value", [NAN, INF])
def test_c_must_be_finite(way: str, value: float) -> None:
    says(
        refusal(corrections, way, changed(correction_arguments(), "c", (2, 1), value)),
        "`c`",
        str(value),
        "t = 2",
        "[1]",
    )
    assert np.isfinite(corrections(way, changed(correction_arguments(), "c", 0, value))).all()  # c_0 is never read


@EVERY_WAY
def test_pi_must_not_be_nan(way: str) -> None:
    says(refusal(targets, way, changed(window(), "pi", (2, 1, 0), NAN)), "`pi`", "nan", "t = 2", "[1, 0]")


@EVERY_WAY
def test_validate_false_lets_values_through(way: str) -> None:
    w = changed(window(), "r", (2, 1), NAN)
    out = targets(way, w, validate=False)
    assert np.isnan(out[:3, 1]).all()
    np.testing.assert_array_equal(out[:, 0], targets(way, window())[:, 0])
    np.testing.assert_array_equal(out[3:], targets(way, window())[3:])
    bad = changed(changed(w, "mu_a", 1, 0), "pi", 4, 7.0)
    targets(way, changed(bad, "discount", 3, 2.0), validate=False)
    assert np.isnan(corrections(way, changed(correction_arguments(), "r", 2, NAN), validate=False)[:3]).all()


# -- Q where π = 0 and masked rows are not read ---------------------------------------------------------------
#
#   row      0  1  2 │ 3  4 │ 5  6   7  │ 8
#            real    │ pad  │ real  dummy│ real      row 2 terminates: x_3 is not read, nor x_4 after a masked row
#   discount .9 .9 0          .9 .9        .9        row 6 is truncated: x_7 is its successor, and read

MASKED = [3, 4, 7]
UNREAD = [3, 4]
SIZE = 9


def padded(*, rubbish: bool) -> Arrays:
    w = window(SIZE)
    w |= {"reset": np.zeros((SIZE, B), bool), "mask": np.ones((SIZE, B), bool)}
    w["mask"][MASKED] = False
    w["reset"][[5, 8]] = True
    w["discount"][2] = 0
    floats = np.array([NAN, INF, -INF, -1.0, 1e38, 0.0], np.float32)
    actions = [np.iinfo(np.int64).min, -1, A, np.iinfo(np.int64).max, 2**32, 2**31]
    for name in ("r", "discount", "mu_a"):
        w[name][MASKED] = floats.reshape(3, B) if rubbish else 0.5
        floats = np.roll(floats, 1)
    w["a"][MASKED] = np.array(actions).reshape(3, B) if rubbish else 0
    for name in ("q", "pi"):
        w[name][UNREAD] = np.resize(floats, (2, B, A)) if rubbish else 1 / A
        floats = np.roll(floats, 1)
    return w


@EVERY_WAY
@BY_TRACE
@each("validate", [True, False])
def test_masked_rows_are_not_read(way: str, trace: Any, validate: bool) -> None:
    out = targets(way, padded(rubbish=True), trace, validate=validate)
    np.testing.assert_array_equal(out, targets(way, padded(rubbish=False), trace, validate=validate))
    assert np.isfinite(out).all()
    assert (out[MASKED] == 0).all()
    assert (out[[0, 1, 2, 5, 6, 8]] != 0).all()


@EVERY_WAY
@BY_TRACE
def test_masked_rows_of_what_replaces_q_are_not_read(way: str, trace: Any) -> None:
    def with_overrides(*, rubbish: bool) -> Arrays:
        w = padded(rubbish=rubbish)
        w |= overrides(padded(rubbish=False))
        for name, value in (("q_a", NAN), ("expected_q", INF), ("pi_a", -7.0)):
            w[name][MASKED] = value if rubbish else 0.5
        w["expected_q"][2] = NAN if rubbish else 0.5  # after the end of an episode
        return w

    out = targets(way, with_overrides(rubbish=True), trace)
    np.testing.assert_array_equal(out, targets(way, with_overrides(rubbish=False), trace))
    assert np.isfinite(out).all()
    assert (out[MASKED] == 0).all()


@EVERY_WAY
@each("trace", [RETRACE, ot.ContinuousACER(0.9), ot.RBIS(0.9)])
def test_masked_rows_of_logarithms_are_not_read(way: str, trace: Any) -> None:
    w = padded(rubbish=False)
    w |= {"log_mu_a": np.log(w.pop("mu_a")), "log_pi_a": np.log(taken(w["pi"], w["a"]))}
    rubbish = {k: v.copy() for k, v in w.items()}
    rubbish["log_mu_a"][MASKED], rubbish["log_pi_a"][MASKED] = -INF, NAN
    np.testing.assert_array_equal(targets(way, rubbish, trace), targets(way, w, trace))


@EVERY_WAY
@each("validate", [True, False])
def test_masked_rows_of_corrections_are_not_read(way: str, validate: bool) -> None:
    clean = correction_arguments(SIZE) | {k: v for k, v in padded(rubbish=False).items() if k in ("reset", "mask")}
    clean["discount"][2] = 0
    rubbish = {k: v.copy() for k, v in clean.items()}
    for name, value in (("q_a", NAN), ("expected_q", INF), ("r", -INF), ("discount", NAN), ("c", NAN)):
        rubbish[name][MASKED] = value
    rubbish["c"][clean["reset"]] = NAN
    rubbish["expected_q"][2] = NAN
    out = corrections(way, rubbish, validate=validate)
    np.testing.assert_array_equal(out, corrections(way, clean, validate=validate))
    assert (out[MASKED] == 0).all()


@EVERY_WAY
@BY_PATH
@each("validate", [True, False])
def test_the_first_and_last_row_may_be_masked(way: str, trace: Any, validate: bool) -> None:
    edges, clean = [0, -1], window(N)
    clean["mask"] = np.ones((N, B), bool)
    clean["mask"][edges] = False
    w = {k: v.copy() for k, v in clean.items()}
    w["a"][edges] = -1
    for name in ("r", "discount", "mu_a", "q", "pi"):  # x_n is the successor of a row that is none
        w[name][edges] = NAN
    out = targets(way, w, trace, validate=validate)
    np.testing.assert_array_equal(out, targets(way, clean, trace, validate=validate))
    assert np.isfinite(out).all()
    assert (out[edges] == 0).all()


@EVERY_WAY
def test_a_window_may_be_masked_as_a_whole(way: str) -> None:
    w = {k: np.full_like(v, -1 if k == "a" else NAN) for k, v in window().items()}
    out = targets(way, w | {"mask": np.zeros((N, B), bool)})
    np.testing.assert_array_equal(out, np.zeros((N, B)))


@EVERY_WAY
@BY_TRACE
@each("validate", [True, False])
def test_q_of_illegal_actions_is_not_read(way: str, trace: Any, validate: bool) -> None:
    w = legal(window())
    right = targets(way, changed(w, "q", (..., 2), -1e6), trace, validate=validate)
    for value in (-INF, NAN):
        out = targets(way, changed(w, "q", (..., 2), value), trace, validate=validate)
        np.testing.assert_allclose(out, right, rtol=1e-5, atol=1e-6)


def legal(w: Arrays) -> Arrays:
    """Return the same window, but neither π nor μ ever takes the last action."""
    pi = w["pi"].copy()
    pi[..., 2] = 0
    return w | {"a": w["a"] % 2, "pi": pi / pi.sum(-1, keepdims=True)}


def same_step() -> Arrays:
    """Row 3 starts another episode; row 2 was truncated, so x_3 is not its successor."""
    w = window()
    w["reset"] = np.zeros((N, B), bool)
    w["reset"][3, 1] = True
    return w


@EVERY_WAY
@BY_TRACE
def test_same_step_autoreset_needs_expected_q(way: str, trace: Any) -> None:
    says(refusal(targets, way, same_step(), trace), "`discount`", "0.9", "t = 2", "[1]", "`reset`", "`expected_q`")


@EVERY_WAY
@each("name", list(ot.TRACES))
def test_same_step_autoreset_takes_the_true_successor(way: str, name: str) -> None:
    w = same_step()
    w["expected_q"] = overrides(w)["expected_q"]
    w["expected_q"][2, 1] = 7.0  # the true successor's value, which is nowhere in q
    right, absolute = oracle.targets(name, 0.9, w)
    assert (np.abs(targets(way, w, ot.TRACES[name](0.9)) - right) <= 1e-5 * absolute).all()


@EVERY_WAY
def test_same_step_autoreset_after_a_termination(way: str) -> None:
    w = changed(same_step(), "discount", (2, 1), 0)
    right, absolute = oracle.targets("retrace", 0.9, w)
    assert (np.abs(targets(way, w) - right) <= 1e-5 * absolute).all()


# -- windows of no step and of one step -----------------------------------------------------------------------


@EVERY_WAY
@BY_TRACE
def test_no_steps_give_an_empty_result(way: str, trace: Any) -> None:
    ends = {name: np.zeros((0, B), bool) for name in ("reset", "mask")}
    for arrays in (window(0), window(0) | ends):
        for validate in (True, False):
            out = targets(way, arrays, trace, validate=validate)
            assert out.shape == (0, B)
            assert out.dtype == np.float32


@EVERY_WAY
@each("batch", [(), (2, 3)])
def test_no_steps_of_any_batch_give_an_empty_result(way: str, batch: tuple[int, ...]) -> None:
    assert targets(way, window(0, batch)).shape == (0, *batch)
    assert corrections(way, correction_arguments(0, batch)).shape == (0, *batch)


@EVERY_LIBRARY
@each("name", list(ot.TRACES))
def test_traces_of_no_steps_are_empty(way: str, name: str) -> None:
    trace, none = ot.as_trace(name), np.zeros(0, np.float32)
    call = trace if trace.markov else trace.betas
    extra = {"q": np.zeros((1, A)), "pi": np.zeros((1, A)), "a": np.zeros(0, int)} if trace.needs_q else {}
    assert take(call(**given(way, {"pi_a": none, "mu_a": none} | extra))).shape == (0,)


@EVERY_WAY
@BY_PATH
def test_one_step_is_exact(way: str, trace: Any) -> None:
    """Small binary fractions make r + γ Σ π Q exact, and a huge Q(x_0, a_0) must not cost it a single bit."""
    rng = np.random.default_rng(0)
    for dtype in ("float32",) if way == JAX else ("float32", "float64"):
        w = window(1, dtype=dtype)
        w["pi"][:], w["discount"][:] = [0.5, 0.25, 0.25], 0.75
        w["r"][:] = rng.integers(-64, 64, (1, B))
        w["q"][:] = rng.integers(-64, 64, (2, B, A))
        w["q"][0] *= 2.0**26 if dtype == "float32" else 2.0**56
        out = targets(way, w, trace)
        assert out.dtype == dtype
        np.testing.assert_array_equal(out, w["r"] + 0.75 * (w["pi"] * w["q"])[1:].sum(-1))


@EVERY_WAY
@BY_TRACE
def test_one_step_equals_the_one_step_trace(way: str, trace: Any) -> None:
    out, right = targets(way, window(1), trace), targets(way, window(1), ot.OneStep())
    if getattr(trace, "markov", True):
        np.testing.assert_array_equal(out, right)
    else:  # Σ π Q is added up by other code
        np.testing.assert_allclose(out, right, rtol=1e-6)


# -- γ and λ are in [0, 1]; γ = 1 is allowed on finite windows ------------------------------------------------

OUTSIDE = [-0.1, 1.1, NAN, INF, -INF]


@each("name", list(ot.TRACES))
def test_lambda_must_be_in_the_unit_interval(name: str) -> None:
    for value in OUTSIDE:
        says(refusal(ot.TRACES[name], value), "`lambda_`", ot.TRACES[name].__name__, "[0, 1]", f"{value:g}")
        says(refusal(ot.as_trace, name, lambda_=value), "`lambda_`", f"{value:g}")


@EVERY_LIBRARY
def test_every_lambda_of_an_array_must_be_in_the_unit_interval(way: str) -> None:
    for value in OUTSIDE:
        one, several = np.array(value, np.float32), np.array([0.5, value, 0.5], np.float32)
        says(refusal(ot.Retrace, give(way, one)), "`lambda_`", f"{value:g}")
        says(refusal(ot.Retrace, give(way, several)), "`lambda_`", f"{value:g}", "(1,)")


@EVERY_LIBRARY
@each(
    ("name", "parameter", "value"),
    [("q_sigma", "sigma", 1.5), ("soft_watkins", "kappa", -0.1), ("continuous_acer", "num_dims", 0.0)],
)
def test_other_parameters_of_traces_have_their_ranges(way: str, name: str, parameter: str, value: float) -> None:
    says(refusal(ot.TRACES[name], **{parameter: value}), f"`{parameter}`", f"{value:g}")
    says(refusal(ot.TRACES[name], **{parameter: give(way, np.array(value))}), f"`{parameter}`", f"{value:g}")


@each("value", ["0.9", "x", None, 1j, object(), {}, [[0.5], [0.5, 0.5]]])
def test_lambda_must_be_a_number(value: Any) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        ot.Retrace(value)
    says(str(caught.value), "`lambda_`", "Retrace")


@EVERY_WAY
@each("value", [-0.1, 1.1])
def test_the_discount_must_be_in_the_unit_interval(way: str, value: float) -> None:
    parts = ("`discount`", "[0, 1]", f"{value:g}", "t = 2", "[1]", "γ")
    says(refusal(targets, way, changed(window(), "discount", (2, 1), value)), *parts)
    says(refusal(corrections, way, changed(correction_arguments(), "discount", (2, 1), value)), *parts)


@EVERY_WAY
@BY_TRACE
def test_the_discount_may_be_0_or_1(way: str, trace: Any) -> None:
    for gamma in (0, 1):
        assert np.isfinite(targets(way, changed(window(), "discount", ..., gamma), trace)).all()


# -- shapes must match; nothing broadcasts --------------------------------------------------------------------


def resized(arrays: Arrays, name: str, shape: tuple[int, ...]) -> Arrays:
    return arrays | {name: np.resize(arrays[name], shape)}


STEPS = [(1, B), (N, 1), (N,), (B, N), (N + 1, B), (N, B, 1), (1, N, B), ()]
ROWS = [(1, B, A), (N, B, A), (N + 1, 1, A), (N + 1, B), (N + 1, A), (B, N + 1, A), (N + 2, B, A), ()]


@EVERY_LIBRARY
@each("name", ["a", "discount", "mu_a", "q_a", "expected_q", "pi_a", "reset", "mask"])
def test_arrays_of_steps_must_have_one_shape(way: str, name: str) -> None:
    w = window() | {"reset": np.zeros((N, B), bool), "mask": np.ones((N, B), bool)}
    w |= overrides(w)
    for shape in STEPS:
        bad = resized(w, name, shape)
        says(refusal(targets, way, bad), f"`{name}`", *(f"{k} {v.shape}" for k, v in bad.items()))


@EVERY_LIBRARY
@each("name", ["q", "pi"])
def test_q_and_pi_must_have_the_shape_of_the_window(way: str, name: str) -> None:
    for shape in ROWS:
        bad = resized(window(), name, shape)
        says(refusal(targets, way, bad), f"`{name}`", *(f"{k} {v.shape}" for k, v in bad.items()))


@EVERY_WAY
@each("num_actions", [0, 1, 2, 4])
def test_q_and_pi_must_have_the_same_actions(way: str, num_actions: int) -> None:
    w = window()
    w["pi"] = np.full((N + 1, B, num_actions), 1 / max(num_actions, 1), np.float32)
    says(refusal(targets, way, w), "`q`", "`pi`", str(w["q"].shape), str(w["pi"].shape))


@EVERY_WAY
def test_there_must_be_an_action(way: str) -> None:
    w = window() | {name: np.zeros((N + 1, B, 0), np.float32) for name in ("q", "pi")}
    says(refusal(targets, way, w), "`q`", "`pi`", str((N + 1, B, 0)))


@EVERY_WAY
@each("name", ["q_a", "expected_q", "discount", "c"])
def test_arguments_of_corrections_must_have_one_shape(way: str, name: str) -> None:
    for shape in STEPS:
        text = refusal(corrections, way, resized(correction_arguments(), name, shape))
        says(text, f"`{name}`", "`r`", str((N, B)), str(shape))


@EVERY_WAY
@each("trace", {"a user's": own_tree_backup, "retrace": RETRACE})
@each("validate", [True, False])
def test_shapes_are_checked_without_validation_too(way: str, trace: Any, validate: bool) -> None:
    w = window()
    w["mu_a"] = w["mu_a"][:1]
    says(refusal(targets, way, w, trace, validate=validate), "`mu_a`", str((1, B)), str((N, B)))


@EVERY_WAY
def test_c_of_a_users_trace_must_have_the_shape_of_the_steps(way: str) -> None:
    for shape in ((1,), (N,), (N, 1), (1, B), (N + 1, B), ()):
        c = give(TORCH if way == GRAD else way, np.zeros(shape, np.float32))
        says(refusal(targets, way, window(), lambda c=c, **_: c), "`c`", "`r`", str((N, B)), str(shape))


@EVERY_WAY
@each("name", [name for name in ot.TRACES if name != "one_step"])
@each("validate", [True, False])
def test_lambda_must_have_the_shape_of_the_steps(way: str, name: str, validate: bool) -> None:
    for shape in ((1,), (B,), (N, 1), (1, B), (N + 1,), (N, B, 1)):
        text = refusal(targets, way, window(), ot.TRACES[name](np.full(shape, 0.9)), validate=validate)
        says(text, "`lambda_`", str((N, B)), str(shape))


@EVERY_LIBRARY
@each("name", ["retrace", "importance_sampling", "tree_backup", "q_sigma"])
def test_traces_check_shapes(way: str, name: str) -> None:
    arrays = given(way, {"pi_a": np.full((4, 2), 0.5), "mu_a": np.full((1, 2), 0.5)})
    says(refusal(ot.as_trace(name), **arrays), "`pi_a`", "`mu_a`", "(4, 2)", "(1, 2)")
    text = refusal(ot.as_trace(name, lambda_=[0.5, 0.5, 0.5]), **arrays | {"mu_a": arrays["pi_a"]})
    says(text, "`lambda_`", "(3,)", "(4, 2)")


# -- actions are whole numbers from 0 to A − 1; a negative index does not wrap --------------------------------


@EVERY_WAY
@BY_PATH
def test_an_action_must_exist(way: str, trace: Any) -> None:
    for action in (-1, -A, A, 99, 2**31 - 1):
        text = refusal(targets, way, changed(window(), "a", (2, 1), action), trace)
        says(text, "`a`", f"0 … {A - 1}", str(action), "t = 2", "[1]", "`mask=False`")


@pytest.mark.parametrize("way", [NUMPY, TORCH, GRAD])
@BY_PATH
@each("replaced", [(), ("expected_q",), ("pi_a",), ("q_a",)])
def test_an_action_must_exist_without_validation_too(way: str, trace: Any, replaced: tuple[str, ...]) -> None:
    """The checks of values are off, and still nothing beyond the array is read, and nothing wraps."""
    w = window()
    w |= {k: v for k, v in overrides(w).items() if k in replaced}
    for action in (-1, A, 2**40):
        bad = changed(w, "a", (2, 1), action)
        says(refusal(targets, way, bad, trace, validate=False), "`a`", "t = 2", "[1]")


@EVERY_WAY
@each("dtype", ["float32", "float64", "bool"])
def test_actions_must_be_whole_numbers(way: str, dtype: str) -> None:
    w = window() | {"a": np.zeros((N, B), dtype)}
    for validate in (True, False):
        text = refusal(targets, way, w, error=TypeError, validate=validate)
        says(text, "`a`", "whole numbers", "float" if "float" in dtype else dtype)


@EVERY_WAY
@each("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_actions_may_be_whole_numbers_of_any_dtype(way: str, dtype: str) -> None:
    w = window()
    np.testing.assert_array_equal(targets(way, w | {"a": w["a"].astype(dtype)}), targets(way, w))


@EVERY_WAY
@each("trace", {"retrace": RETRACE, "a user's": own_tree_backup})
@each("dtype", ["int8", "uint8"])
def test_there_may_be_more_actions_than_the_dtype_counts(way: str, trace: Any, dtype: str) -> None:
    """A = 300 is 44 in eight bits: actions of a narrow dtype must not be compared in it."""
    w = window(num_actions=300)
    w["a"] %= 100
    narrow = w | {"a": w["a"].astype(dtype)}
    np.testing.assert_array_equal(targets(way, narrow, trace), targets(way, w, trace))


@each("value", [2**63, 2**64 - 1, 2**32])
def test_actions_beyond_int64_are_refused(value: int) -> None:
    w = window()
    w["a"] = changed({"a": w["a"].astype(np.uint64)}, "a", (2, 1), value)["a"]
    says(refusal(targets, NUMPY, w), "`a`", "t = 2", "[1]")


def test_jax_must_not_wrap_actions_of_64_bits_to_32() -> None:
    """Without x64 JAX keeps the lower half of a 64-bit whole number: 2³² would become the valid action 0."""
    w = given(JAX, window()) | {"a": changed(window(), "a", (2, 1), 2**32)["a"]}
    says(refusal(ot.targets, **w, trace=RETRACE), "`a`", "t = 2", "[1]")


# -- whole numbers and half precision are computed in at least float32 ----------------------------------------

HALF = ["float16", "bfloat16"]


def cast(way: str, value: np.ndarray, dtype: str) -> Any:
    if way in (TORCH, GRAD):
        return torch.from_numpy(value).to(getattr(torch, dtype))
    return (
        value.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
        if way == NUMPY
        else jnp.asarray(value, dtype)
    )


def exact_window() -> Arrays:
    """Return a window of numbers that every dtype holds exactly."""
    w = window()
    rng = np.random.default_rng(1)
    w["q"] = rng.integers(0, 200, w["q"].shape).astype(np.float32)
    w["r"] = rng.integers(0, 200, w["r"].shape).astype(np.float32)
    w["pi"][:], w["mu_a"][:], w["discount"][:] = [0.5, 0.25, 0.25], 0.5, 0.5
    return w


@EVERY_WAY
@BY_TRACE
@each("dtype", HALF)
def test_half_precision_is_computed_in_float32(way: str, trace: Any, dtype: str) -> None:
    w = exact_window()
    halves = {k: v if k == "a" else cast(way, v, dtype) for k, v in w.items()}
    out = targets(way, halves, trace)
    assert out.dtype == np.float32
    np.testing.assert_allclose(out, targets(way, w, trace), rtol=1e-6)


@EVERY_WAY
@each("dtype", HALF)
def test_half_precision_does_not_overflow(way: str, dtype: str) -> None:
    w = exact_window()
    w["r"][:], w["discount"][:], w["mu_a"][:] = 60000, 1, 0.125  # a few steps of it are beyond float16
    out = targets(way, {k: v if k == "a" else cast(way, v, dtype) for k, v in w.items()}, ot.Retrace(1.0))
    assert np.isfinite(out).all()
    assert (out[0] > 300_000).all()


@EVERY_WAY
@each("dtype", HALF)
def test_probabilities_in_half_precision_are_distributions(way: str, dtype: str) -> None:
    """Rows of π rounded to half precision no longer sum to 1 within float32's rounding; this is not an error."""
    w = window(num_actions=18)
    for name in ("pi", "mu_a"):
        w[name] = cast(way, w[name], dtype)
    assert np.isfinite(targets(way, w)).all()


@EVERY_WAY
@each("dtype", ["uint8", "int8", "int16", "int32"])
def test_whole_numbers_do_not_wrap(way: str, dtype: str) -> None:
    """r − Q(x, a) is negative in many places: in uint8 it would wrap."""
    w, p = exact_window(), correction_arguments()
    w |= {name: np.minimum(w[name], 127) for name in ("q", "r")}
    p |= {name: np.floor(p[name] * 127) for name in ("q_a", "expected_q", "r")}
    whole = {k: cast(way, v, dtype) if k in ("q", "r") else v for k, v in w.items()}
    out = targets(way, whole)
    assert out.dtype == np.float32
    np.testing.assert_array_equal(out, targets(way, w))
    whole = {k: cast(way, v, dtype) if k in ("q_a", "expected_q", "r") else v for k, v in p.items()}
    np.testing.assert_array_equal(corrections(way, whole), corrections(way, p))


@EVERY_LIBRARY
def test_whole_numbers_alone_do_not_wrap(way: str) -> None:
    w = {"q_a": [3, 200, 0], "expected_q": [0, 1, 250], "r": [1, 2, 255], "discount": [1, 1, 0], "c": [1, 1, 1]}
    out = corrections(way, {k: np.array(v, np.uint8) for k, v in w.items()})
    assert out.dtype in (np.float32, np.float64)
    np.testing.assert_array_equal(out, [-2 - 197 + 255, -197 + 255, 255])


@EVERY_WAY
def test_the_result_has_the_widest_floating_dtype(way: str) -> None:
    w = window()
    with precision(way, "float64"):
        for name in ("q", "r", "discount", "pi", "mu_a"):
            assert targets(way, w | {name: w[name].astype(np.float64)}).dtype == np.float64
        assert targets(way, w | {"r": np.ones((N, B), np.int64)}).dtype == np.float32
    if way == NUMPY:
        assert targets(way, w | {"r": w["r"].astype(np.longdouble)}).dtype == np.float64


@EVERY_LIBRARY
@each("dtype", HALF)
@each("name", [name for name, cls in ot.TRACES.items() if cls.markov and not cls.needs_q])
def test_traces_of_half_precision_are_float32(way: str, name: str, dtype: str) -> None:
    arrays = {k: cast(way, np.array(v, np.float32), dtype) for k, v in (("pi_a", [0.25, 1]), ("mu_a", [0.75, 0.5]))}
    whole = take(ot.TRACES[name](0.9)(pi_a=give(way, np.array([0.25, 1])), mu_a=give(way, np.array([0.75, 0.5]))))
    c = ot.TRACES[name](0.9)(**arrays)
    assert str(c.dtype).removeprefix("torch.") in ("float32", "float64")
    np.testing.assert_allclose(take(c), whole, rtol=1e-6)


# -- unusual arrays: the right answer or an error; inputs are never modified ----------------------------------
#
# Some arguments are unusual; the others are of the library, which decides.

STEP_ARGUMENTS = ("r", "a", "discount", "mu_a", "reset", "mask")


def with_odd(way: str, names: tuple[str, ...], odd: Callable[[np.ndarray], Any]) -> Arrays:
    w = window() | {"reset": np.zeros((N, B), bool), "mask": np.ones((N, B), bool)}
    out = given(way, {k: v for k, v in w.items() if k not in names})
    return out | {name: odd(w[name]) for name in names}


def reversed_in_memory(value: np.ndarray) -> np.ndarray:
    return value[::-1].copy()[::-1]


def every_second(value: np.ndarray) -> np.ndarray:
    return np.repeat(value, 2, axis=1)[:, ::2]


def read_only(value: np.ndarray) -> np.ndarray:
    value = value.copy()
    value.setflags(write=False)
    return value


def unaligned(value: np.ndarray) -> np.ndarray:
    raw = np.zeros(value.nbytes + 1, np.uint8)
    out = raw[1:].view(value.dtype).reshape(value.shape)
    out[...] = value
    return out


RIGHT = {
    "list": np.ndarray.tolist,
    "tuple": lambda value: tuple(map(tuple, value.tolist())),
    "list of arrays": list,
    "big-endian": lambda value: value.astype(value.dtype.newbyteorder(">")),
    "read-only": read_only,
    "Fortran order": np.asfortranarray,
    "reversed": reversed_in_memory,
    "strided": every_second,
    "unaligned": unaligned,
}


@EVERY_WAY
@each("odd", RIGHT)
@each("names", {"steps": STEP_ARGUMENTS, "rows": ("q", "pi")})
def test_unusual_arrays_give_the_right_answer(way: str, odd: Callable, names: tuple[str, ...]) -> None:
    w = with_odd(way, names, odd)
    before = [np.array(take(v)) for v in w.values()]
    out = ot.targets(**w, trace=RETRACE, stop_gradient=way != GRAD)
    assert isinstance(out, {NUMPY: np.ndarray, JAX: jax.Array}.get(way, torch.Tensor))
    np.testing.assert_allclose(take(out), targets(NUMPY, window()), rtol=1e-5)
    for value, copy in zip(w.values(), before, strict=True):
        np.testing.assert_array_equal(take(value), copy)


@EVERY_WAY
@each("odd", RIGHT)
def test_unusual_arrays_give_the_right_corrections(way: str, odd: Callable) -> None:
    w = correction_arguments()
    arrays = given(way, w) | {name: odd(w[name]) for name in ("r", "c", "q_a")}
    np.testing.assert_allclose(take(ot.corrections(**arrays)), corrections(NUMPY, w), rtol=1e-5)


def ragged(value: np.ndarray) -> list:
    rows = value.tolist()
    return [*rows[:-1], rows[-1][:-1]]


REFUSED = {
    "ragged": ragged,
    "text": lambda value: "reward",
    "list of text": lambda value: value.astype(str).tolist(),
    "array of text": lambda value: value.astype(str),
    "array of objects": lambda value: value.astype(object),
    "list with None": lambda value: [*value.tolist()[:-1], None],
    "complex": lambda value: value.astype(complex),
    "dates": lambda value: np.zeros(value.shape, "datetime64[s]"),
    "a dict": lambda value: {"values": value},
    "a set": lambda value: {1, 2},
}


@EVERY_WAY
@each("odd", REFUSED)
def test_what_is_not_an_array_of_numbers_is_refused(way: str, odd: Callable) -> None:
    for name in ("r", "a", "pi", "mu_a", "mask"):
        w = with_odd(way, (name,), odd)
        with pytest.raises((TypeError, ValueError)) as caught:
            ot.targets(**w, trace=RETRACE, stop_gradient=way != GRAD)
        says(str(caught.value), f"`{name}`")


@EVERY_WAY
@each("name", ["reset", "mask"])
@each("value", [0, 1.0, "yes"])
def test_reset_and_mask_must_be_boolean(way: str, name: str, value: Any) -> None:
    flags = np.full((N, B), value)
    arrays = given(way, window()) | {name: give(way, flags) if flags.dtype.kind != "U" else flags}
    with pytest.raises(TypeError) as caught:
        ot.targets(**arrays, trace=RETRACE, stop_gradient=way != GRAD)
    says(str(caught.value), f"`{name}`")


@EVERY_WAY
@each("number", [np.float32, np.float64, np.int32, float, int])
def test_a_time_axis_is_required(way: str, number: Callable) -> None:
    """One number per argument, and two rows of Q: near enough to a window to be taken for one."""
    w = window(1, ())
    arrays = {k: v if k in ("q", "pi") else give(way, np.array(number(1))) for k, v in w.items()}
    arrays |= {"a": give(way, np.array(0))}
    arrays["q"] = give(way, w["q"])
    says(refusal(ot.targets, **arrays, trace=RETRACE), "`r`", "time axis")


@EVERY_WAY
@each("number", [0.9, 1, np.float32(0.9)])
def test_one_discount_for_all_steps_is_refused(way: str, number: Any) -> None:
    """γ in the place of `discount`: the shape is wrong even for a window of one step."""
    for n in (1, N):
        says(refusal(targets, way, window(n, ()) | {"discount": number}), "`discount`", str((n,)), "()")


@EVERY_WAY
@BY_TRACE
def test_inputs_are_never_modified(way: str, trace: Any) -> None:
    arrays = given(way, padded(rubbish=True))
    before = {k: np.array(take(v)) for k, v in arrays.items()}
    for validate in (True, False):
        out = ot.targets(**arrays, trace=trace, validate=validate, stop_gradient=way != GRAD)
        for name, value in arrays.items():
            np.testing.assert_array_equal(take(value), before[name])
            assert not np.shares_memory(take(out), take(value))


@EVERY_WAY
def test_inputs_of_corrections_are_never_modified(way: str) -> None:
    for n in (0, 1, N):
        arrays = given(way, correction_arguments(n))
        before = {k: np.array(take(v)) for k, v in arrays.items()}
        out = ot.corrections(**arrays)
        for name, value in arrays.items():
            np.testing.assert_array_equal(take(value), before[name])
            assert not np.shares_memory(take(out), take(value))


def test_inputs_may_be_read_only() -> None:
    w = {k: read_only(v) for k, v in padded(rubbish=True).items()}
    for trace in ONE_OF_EACH_PATH.values():
        np.testing.assert_array_equal(targets(NUMPY, w, trace), targets(NUMPY, padded(rubbish=True), trace))


# -- joined episodes equal each episode alone, to the last bit where the recursion is sequential --------------


MODES = ["next-step", "same-step", "padding"]


def episodes_apart(way: str, trace: Any, mode: str, dtype: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the targets of each episode in a joined window, and alone.

    Alone they are computed by NumPy for JAX, which would compile every length.
    """
    case = oracle.joined(np.random.default_rng(3), batch=3, num_actions=4, mode=mode)

    def compute(way: str, arrays: Arrays) -> np.ndarray:
        return targets(way, {k: v.astype(dtype) if v.dtype.kind == "f" else v for k, v in arrays.items()}, trace)

    together = compute(way, case.arguments)
    for b, rows, alone in case.episodes:
        if mode == "same-step":
            alone = alone | {"expected_q": case.arguments["expected_q"][rows, b]}
        one = compute(NUMPY if way == JAX else way, {k: v[:, None] for k, v in alone.items()})
        yield together[rows, b], one[:, 0]


@pytest.mark.parametrize("way", [NUMPY, TORCH, GRAD])
@BY_TRACE
@each("mode", MODES)
def test_joined_episodes_equal_each_alone_to_the_last_bit(way: str, trace: Any, mode: str) -> None:
    for dtype in ("float32", "float64"):
        for among_others, alone in episodes_apart(way, trace, mode, dtype):
            np.testing.assert_array_equal(among_others, alone)


@each("mode", MODES)
def test_joined_episodes_equal_each_alone_to_rounding_in_jax(mode: str) -> None:
    for among_others, alone in episodes_apart(JAX, RETRACE, mode, "float32"):
        np.testing.assert_allclose(among_others, alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("way", [NUMPY, TORCH, GRAD])
@BY_TRACE
def test_invalid_values_of_a_neighbour_change_no_bit(way: str, trace: Any) -> None:
    """Invalid values in another batch element may change the path of a kernel, but not one bit of this element."""
    w = window(num_actions=18)
    w["mask"] = np.ones((N, B), bool)
    right = targets(way, w, trace)[:, 0]
    w["mask"][3:, 1] = False
    w["q"][4:, 1] = w["pi"][4:, 1] = w["r"][3:, 1] = w["mu_a"][3:, 1] = NAN
    np.testing.assert_array_equal(targets(way, w, trace)[:, 0], right)


# -- what follows a terminal step changes nothing before it ---------------------------------------------------

LAST = 2  # the step that terminates
LONG = 4100  # just beyond where the tree begins; 1025 is odd, which the tree has to join, too


def ended(n: int = N) -> Arrays:
    return changed(window(n), "discount", LAST, 0)


@EVERY_WAY
@BY_TRACE
def test_other_numbers_after_the_end_change_nothing(way: str, trace: Any) -> None:
    w, other = ended(), window(seed=1)
    for name in w:
        other[name][: LAST + 1] = w[name][: LAST + 1]
    np.testing.assert_array_equal(targets(way, other, trace)[: LAST + 1], targets(way, w, trace)[: LAST + 1])


@EVERY_WAY
@BY_TRACE
@each("name", ["r", "discount", "q", "pi", "mu_a"])
def test_invalid_numbers_after_the_end_change_nothing(way: str, trace: Any, name: str) -> None:
    w = ended()
    right = targets(way, w, trace, validate=False)[: LAST + 1]
    for value in (NAN, -INF, 0.0):
        bad = changed(w, name, slice(LAST + 1, None), value)
        with np.errstate(all="ignore"):  # NumPy may warn of them
            out = targets(way, bad, trace, validate=False)
        np.testing.assert_array_equal(out[: LAST + 1], right)


@EVERY_WAY
@each("name", ["q_a", "expected_q", "r", "discount", "c"])
@each(("n", "last"), [(N, LAST), (LONG, 700)])  # JAX folds a long window as a tree
def test_corrections_before_the_end_are_independent_of_what_follows(way: str, name: str, n: int, last: int) -> None:
    w = changed(correction_arguments(n), "discount", last, 0)
    for value in (NAN, INF, -INF):
        out = corrections(way, changed(w, name, slice(last + 1, None), value), validate=False)
        np.testing.assert_allclose(out[: last + 1], corrections(way, w)[: last + 1], rtol=1e-5)


@EVERY_WAY
@each("end", ["termination", "c = 0"])
@each("last", [LAST, 700])
def test_corrections_that_overflow_after_the_end_change_nothing(way: str, end: str, last: int) -> None:
    """Every input is valid. After the end, or after an action with π(a|x) = 0, Δ overflows float32; corrections
    before it do not depend on that."""
    w = correction_arguments(LONG)
    w["discount"][last + 1 :] = 1
    if end == "termination":
        w["discount"][last] = 0
    else:
        w["c"][last + 1] = 0
    grown = changed(w, "c", slice(last + 2, None), 10)
    np.testing.assert_allclose(corrections(way, grown)[: last + 1], corrections(way, w)[: last + 1], rtol=1e-5)


# -- a user's trace with c outside [0, π/μ]: a warning that Theorem 1 does not hold ---------------------------


def unsafe_window(pi: float = 0.25, mu: float = 0.5, dtype: str = "float32") -> Arrays:
    """π/μ is 1 everywhere but in row 3, where it is ½ unless told."""
    w = window(dtype=dtype)
    w["a"][:] = 0
    w["pi"][:], w["mu_a"][:] = [0.5, 0.25, 0.25], 0.5
    w["pi"][3], w["mu_a"][3] = [pi, 1 - pi, 0], mu
    return w


@EVERY_WAY
@each(
    ("c", "parts"),
    {
        "above": (lambda pi_a, mu_a: 0 * pi_a + 1, ("c = 1", "π/μ = 0.5", "t = 3", "[0]")),
        "below": (lambda pi_a, mu_a: -pi_a, ("c = -0.5", "π/μ = 1", "t = 1", "[0]")),  # c_0 is never read
    },
)
def test_a_users_c_outside_its_bounds_is_warned_of(way: str, c: Callable, parts: tuple[str, ...]) -> None:
    with pytest.warns(ot.UnsafeTraceWarning, match="Theorem 1") as caught:
        out = targets(way, unsafe_window(), c)
    says(str(caught[0].message), "`trace`", *parts)
    assert np.isfinite(out).all()  # a warning, not a refusal
    assert caught[0].filename == __file__  # where the user called it: `raw_targets` above


@EVERY_WAY
@each("mu", [1e-4, 1e-6])
def test_a_users_c_outside_its_bounds_is_warned_of_where_mu_is_small(way: str, mu: float) -> None:
    """π = 0, so any c > 0 is outside, however rarely the action is taken."""
    with pytest.warns(ot.UnsafeTraceWarning, match="Theorem 1"):
        targets(way, unsafe_window(pi=0.0, mu=mu), lambda pi_a, mu_a: 0 * pi_a + 0.9)


@EVERY_WAY
def test_a_users_c_outside_its_bounds_is_warned_of_with_logarithms(way: str) -> None:
    w = unsafe_window()
    w |= {"log_pi_a": np.log(taken(w["pi"], w["a"])), "log_mu_a": np.log(w.pop("mu_a"))}
    with pytest.warns(ot.UnsafeTraceWarning, match="Theorem 1"):
        targets(way, w, lambda log_pi_a, log_mu_a: 0 * log_pi_a + 1)


class Doubled(ot.Retrace):
    """A user's subclass of a trace: it has a name, and nothing is known about its safety."""

    name = "doubled"

    def factor(self, likelihoods: Any, **_: Any) -> Any:
        return 2 * likelihoods.ratio()


@EVERY_WAY
def test_a_users_class_outside_its_bounds_is_warned_of(way: str) -> None:
    with pytest.warns(ot.UnsafeTraceWarning, match="Theorem 1"):
        targets(way, unsafe_window(), Doubled(1.0))


@EVERY_WAY
@BY_TRACE
def test_traces_inside_their_bounds_do_not_warn(way: str, trace: Any) -> None:
    """Traces of the library never warn, nor does a user's trace inside its bounds."""
    targets(way, unsafe_window(), trace)
    targets(way, unsafe_window(), lambda pi_a, mu_a: pi_a / mu_a)  # the bound itself, but for rounding
    targets(way, unsafe_window(), lambda pi_a, mu_a: 0 * pi_a + 1, validate=False)


@EVERY_WAY
def test_there_is_no_warning_where_c_is_not_read(way: str) -> None:
    w = changed(unsafe_window(), "discount", 2, 0) | {"reset": np.zeros((N, B), bool)}
    w["reset"][3] = True
    targets(way, w, lambda pi_a, mu_a: 0 * pi_a + 1)


@EVERY_WAY
@each("value", [NAN, INF])
def test_a_users_c_must_be_finite(way: str, value: float) -> None:
    says(refusal(targets, way, window(), lambda pi_a, mu_a: pi_a * value), "`c`", str(value), "t = 1")


# -- a million steps: no NaN; 1e-9 in float64, 1e-5 in float32 of the sum of absolute terms -------------------


def million(dtype: str) -> tuple[Arrays, np.ndarray, np.ndarray]:
    """γ = 1, λ = 1, on-policy: nothing fades, all 10⁶ TD errors add up. The answer, and the sum of absolute terms."""
    n = 1_000_000
    rng = np.random.default_rng(0)
    p = rng.uniform(0.1, 0.9, n + 1).astype(dtype)
    w = {"q": rng.normal(size=(n + 1, 2)).astype(dtype), "pi": np.stack([p, 1 - p], -1)}
    w |= {"a": rng.integers(0, 2, n), "r": (1 + rng.normal(size=n)).astype(dtype), "discount": np.ones(n, dtype)}
    w["mu_a"] = taken(w["pi"], w["a"])
    wide = {k: v.astype(np.longdouble) for k, v in w.items() if k != "a"}
    expected, q_a = (wide["pi"] * wide["q"]).sum(-1)[1:], taken(wide["q"], w["a"])
    delta = np.cumsum((wide["r"] + expected - q_a)[::-1])[::-1]
    absolute = np.cumsum((abs(wide["r"]) + abs(expected) + abs(q_a))[::-1])[::-1] + abs(q_a)
    return w, q_a + delta, absolute


@each(("dtype", "tolerance"), [("float32", 1e-5), ("float64", 1e-9)])
def test_a_million_steps_lose_no_accuracy(dtype: str, tolerance: float) -> None:
    w, right, absolute = million(dtype)
    steps = overrides(w) | {"r": w["r"], "discount": w["discount"], "c": np.ones_like(w["r"])}
    del steps["pi_a"]
    for way in WAYS:
        with precision(way, dtype):
            out = targets(way, w, ot.Retrace(1.0))
        assert out.dtype == dtype
        assert (abs(out - right) <= tolerance * absolute).all(), way
        if way != JAX:  # there it is the same fold, which takes seconds to compile
            out = corrections(way, steps)
            assert (abs(out - (right - steps["q_a"])) <= tolerance * absolute).all(), way


# -- unusual sizes, libraries that mix, missing arguments -----------------------------------------------------


@EVERY_WAY
@each("trace", [RETRACE, ot.RBIS(0.9)])
def test_batches_may_be_empty(way: str, trace: Any) -> None:
    for batch in ((0,), (2, 0)):
        assert targets(way, window(N, batch), trace).shape == (N, *batch)


@EVERY_WAY
@each("trace", [RETRACE, ot.RBIS(0.9)])
def test_batches_may_have_any_axes(way: str, trace: Any) -> None:
    for batch in ((), (1, B, 1)):
        flat = window(N, (B,))
        w = {k: (v if batch else v[:, 0]).reshape(len(v), *batch, *v.shape[2:]) for k, v in flat.items()}
        out, right = targets(way, w, trace).reshape(N, -1), targets(way, flat, trace)
        np.testing.assert_allclose(out, right[:, : out.shape[1]], rtol=1e-6, atol=1e-6)


@EVERY_WAY
@each("name", ["retrace", "soft_watkins", "rbis"])
def test_there_may_be_one_action(way: str, name: str) -> None:
    w = window(num_actions=1)
    w["pi"][:] = 1
    right, absolute = oracle.targets(name, 0.9, w)
    assert (abs(targets(way, w, ot.TRACES[name](0.9)) - right) <= 1e-5 * absolute).all()


@EVERY_WAY
def test_there_may_be_twenty_thousand_actions(way: str) -> None:
    """Sums of that many float32 probabilities round by more than a few of them; the distributions are still fine."""
    w = window(3, (1,), 20_000)
    right, absolute = oracle.targets("retrace", 0.9, w)
    assert (abs(targets(way, w) - right) <= 1e-5 * absolute).all()


@pytest.mark.parametrize("way", [JAX, TORCH, GRAD])
@each("name", ["q", "r", "a", "mu_a"])
def test_numpy_mixes_with_jax_and_with_torch(way: str, name: str) -> None:
    w = window() | {"reset": np.zeros((N, B), bool), "mask": np.ones((N, B), bool)}
    mixed = w | given(way, {name: w[name]}) if name != "a" or way != GRAD else w | given(TORCH, {name: w[name]})
    out = ot.targets(**mixed, trace=RETRACE, stop_gradient=way != GRAD)
    assert isinstance(out, jax.Array if way == JAX else torch.Tensor)
    np.testing.assert_allclose(take(out), targets(NUMPY, w), rtol=1e-5)


@pytest.mark.parametrize("way", [JAX, TORCH])
@each("name", ["pi_a", "mu_a"])
@each("other", {"array": np.array, "list": list})
def test_numpy_mixes_in_a_trace_too(way: str, name: str, other: Callable) -> None:
    numbers = {"pi_a": [0.25, 0.5], "mu_a": [0.5, 0.25]}
    mixed = {k: give(way, np.array(v)) if k == name else other(v) for k, v in numbers.items()}
    c = RETRACE(**mixed)
    assert isinstance(c, jax.Array if way == JAX else torch.Tensor)
    np.testing.assert_allclose(take(c), [0.45, 0.9], rtol=1e-6)


def test_only_lambda_is_a_tensor() -> None:
    w = windows.window(6, (3,), 4)
    got = ot.targets(**w, trace=ot.Retrace(torch.tensor(0.9)))
    np.testing.assert_allclose(got, ot.targets(**w, trace=ot.Retrace(0.9)), rtol=1e-6)
    steps = windows.correction_arguments(6, (3,), dtype="float64")
    expected = ot.corrections(**steps)
    np.testing.assert_allclose(ot.corrections(**steps | {"c": torch.tensor(steps["c"])}), expected, rtol=1e-12)


def test_jax_and_torch_do_not_mix() -> None:
    w = window()
    mixed = given(JAX, w) | {"r": torch.from_numpy(w["r"])}
    says(refusal(ot.targets, **mixed, trace=RETRACE, error=TypeError), "JAX", "PyTorch", "convert")
    text = refusal(ot.corrections, **given(JAX, correction_arguments()) | {"c": torch.zeros(N, B)}, error=TypeError)
    says(text, "JAX", "PyTorch", "convert")


def test_what_is_not_a_trace_is_refused() -> None:
    for trace in (0.9, None, int):
        says(refusal(targets, NUMPY, window(), trace, error=TypeError), "`trace`", "ot.Retrace(", repr(trace))
    says(refusal(targets, NUMPY, window(), "retrase"), "`trace`", "'retrase'", "'retrace'")


@EVERY_WAY
def test_a_trace_by_its_name_or_class(way: str) -> None:
    right = targets(way, window(), ot.Retrace(1.0))
    np.testing.assert_array_equal(targets(way, window(), "retrace"), right)
    np.testing.assert_array_equal(targets(way, window(), ot.Retrace), right)


@EVERY_LIBRARY
@each("missing", ["q", "a", "pi", "mu_a"])
def test_a_missing_argument_is_named(way: str, missing: str) -> None:
    w = window()
    del w[missing]
    says(refusal(targets, way, w, error=TypeError), f"`{missing}=`")


class Clamped(torch.nn.Module):
    """A user's network with an attribute `name`; it takes tensors."""

    name = "clamped"

    def forward(self, pi_a: torch.Tensor, mu_a: torch.Tensor) -> torch.Tensor:
        return pi_a.clamp(max=0.5)


@pytest.mark.parametrize("way", [TORCH, GRAD])
def test_a_users_trace_gets_tensors(way: str) -> None:
    w = changed(window(), "mu_a", ..., 1)
    right = targets(NUMPY, w, lambda pi_a, mu_a: np.minimum(pi_a, 0.5))
    np.testing.assert_allclose(targets(way, w, Clamped()), right, rtol=1e-5)


# λ as an array: (n,) or (n, …), of any kind, in any library


@EVERY_WAY
@each("name", ["retrace", "q_sigma", "watkins", "rbis"])
def test_lambda_may_be_an_array_of_any_library(way: str, name: str) -> None:
    w, cls = window(), ot.TRACES[name]
    for kind in ("list", NUMPY, JAX, TORCH):
        if {kind, way} in ({JAX, TORCH}, {JAX, GRAD}):
            continue  # the two libraries do not mix
        for shape in ((N,), (N, B)):
            lambdas = np.random.default_rng(0).uniform(0, 1, shape).astype(np.float32)
            trace = cls(lambdas.tolist() if kind == "list" else give(kind, lambdas))
            right = targets(NUMPY, w, cls(np.array(np.broadcast_to(lambdas.reshape(N, -1), (N, B)))))
            for validate in (True, False):
                out = targets(way, w, trace, validate=validate)
                np.testing.assert_allclose(out, right, rtol=1e-5, atol=1e-6, err_msg=kind)


# JAX


@each("name", ["retrace", "soft_watkins", "rbis"])
def test_jit_over_everything(name: str) -> None:
    w, trace = window(), ot.TRACES[name](0.9)
    compiled = jax.jit(lambda arrays, trace: ot.targets(**arrays, trace=trace))
    np.testing.assert_allclose(compiled(given(JAX, w), trace), targets(JAX, w, trace), rtol=1e-6, atol=1e-6)


@each("kind", [NUMPY, JAX])
@each("name", ["retrace", "rbis"])
def test_lambda_alone_may_be_traced(name: str, kind: str) -> None:
    """A window that is a constant of the compiled function: its values are known, and λ is not."""
    w, cls = given(kind, window()), ot.TRACES[name]

    def of(lambda_: Any) -> Any:
        return ot.targets(**w, trace=cls(lambda_), stop_gradient=False)

    right = targets(JAX, window(), cls(0.5))
    np.testing.assert_allclose(jax.jit(of)(0.5), right, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(jax.jit(jax.vmap(of))(np.array([0.1, 0.5]))[1], right, rtol=1e-6, atol=1e-6)
    assert np.isfinite(jax.jit(jax.grad(lambda lambda_: of(lambda_).sum()))(0.5))


def test_jit_may_trace_nothing() -> None:
    w, p = given(JAX, window()), given(JAX, correction_arguments())
    np.testing.assert_allclose(jax.jit(lambda: ot.targets(**w, trace=RETRACE))(), targets(JAX, window()), rtol=1e-6)
    np.testing.assert_allclose(
        jax.jit(lambda: ot.corrections(**p))(), corrections(JAX, correction_arguments()), rtol=1e-6
    )


def test_a_users_trace_works_inside_jit() -> None:
    """c is unknown inside jit, so there is no warning."""
    w = given(JAX, window())
    out = jax.jit(lambda arrays, k: ot.targets(**arrays, trace=lambda pi_a, mu_a: k * pi_a))(w, 0.9)
    np.testing.assert_allclose(out, targets(JAX, window(), own_tree_backup), rtol=1e-6)
    closed = jax.jit(lambda k: ot.targets(**w, trace=lambda pi_a, mu_a: k * pi_a))(0.9)
    np.testing.assert_allclose(closed, out, rtol=1e-6)


def test_vmap_over_windows() -> None:
    several = [window(seed=seed) for seed in range(3)]
    stacked = {k: jnp.stack([w[k] for w in several]) for k in several[0]}
    out = jax.vmap(lambda arrays: ot.targets(**arrays, trace=RETRACE))(stacked)
    for one, w in zip(out, several, strict=True):
        np.testing.assert_allclose(one, targets(JAX, w), rtol=1e-6, atol=1e-6)


# gradients


def gradients(way: str, trace: Any) -> Callable[[Arrays], Arrays]:
    """Return the gradient of the sum of all targets with respect to `q`, `pi`, `r` and `mu_a`."""

    def in_jax(free: Arrays, fixed: Arrays) -> Any:
        return ot.targets(**free, **fixed, trace=trace, stop_gradient=False).sum()

    compiled = jax.jit(jax.grad(in_jax))

    def of(arrays: Arrays) -> Arrays:
        free = {k: arrays[k] for k in ("q", "pi", "r", "mu_a")}
        if way == JAX:
            return compiled(free, {k: v for k, v in arrays.items() if k not in free})
        tensors = given(TORCH, arrays)
        for name in free:
            tensors[name].requires_grad_()
        ot.targets(**tensors, trace=trace, stop_gradient=False).sum().backward()
        return {name: tensors[name].grad for name in free if tensors[name].grad is not None}

    return of


@pytest.mark.parametrize("way", [JAX, TORCH])
@BY_PATH
def test_what_is_not_read_does_not_reach_gradients(way: str, trace: Any) -> None:
    """0 · NaN is NaN: a gradient can carry what the value did not."""
    of = gradients(way, trace)
    out, right = of(padded(rubbish=True)), of(padded(rubbish=False))
    wrong = [name for name in right if not np.allclose(out[name], right[name], atol=1e-5)]
    assert not wrong, f"rubbish in masked rows changes the gradients in {wrong}"
    illegal = of(changed(legal(padded(rubbish=False)), "q", (..., 2), -INF))
    wrong = [name for name in right if not np.isfinite(np.asarray(illegal[name])).all()]
    assert not wrong, f"−inf of an illegal action makes the gradients in {wrong} infinite"


@BY_TRACE
def test_gradients_of_torch_are_stopped(trace: Any) -> None:
    w = {k: v.requires_grad_() if v.is_floating_point() else v for k, v in given(TORCH, window()).items()}
    out = ot.targets(**w, trace=trace)
    assert not out.requires_grad
    np.testing.assert_array_equal(out, targets(TORCH, window(), trace))


@each("name", ["retrace", "rbis", "q_sigma"])
def test_lambda_may_be_learned_in_torch(name: str) -> None:
    lambda_ = torch.tensor(0.9, requires_grad=True)
    w, trace = given(TORCH, window()), ot.TRACES[name](lambda_)
    out = ot.targets(**w, trace=trace)
    assert not out.requires_grad
    np.testing.assert_allclose(out, targets(TORCH, window(), ot.TRACES[name](0.9)), rtol=1e-5)
    ot.targets(**w, trace=trace, stop_gradient=False).sum().backward()
    assert torch.isfinite(lambda_.grad)


# layouts


@pytest.mark.parametrize("way", [TORCH, GRAD])
@BY_TRACE
def test_torch_windows_may_be_transposed_views(way: str, trace: Any) -> None:
    """Replay keeps (B, n, …); the window is a view of it."""
    w = window()
    views = {k: torch.from_numpy(np.ascontiguousarray(v.swapaxes(0, 1))).transpose(0, 1) for k, v in w.items()}
    if way == GRAD:
        views["r"].requires_grad_()
    out = ot.targets(**views, trace=trace, stop_gradient=way != GRAD)
    np.testing.assert_allclose(take(out), targets(way, w, trace), rtol=1e-6)


def test_torch_tensors_may_be_expanded() -> None:
    w = given(TORCH, window()) | {"discount": torch.tensor(0.9).expand(N, B)}
    np.testing.assert_array_equal(ot.targets(**w, trace=RETRACE), targets(TORCH, window()))


def test_arrays_may_be_memory_maps(tmp_path: Any) -> None:
    w = window() | {"reset": np.zeros((N, B), bool), "mask": np.ones((N, B), bool)}
    for name, value in w.items():
        np.save(tmp_path / name, value)
    mapped = {name: np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in w}
    np.testing.assert_array_equal(ot.targets(**mapped, trace=RETRACE), targets(NUMPY, w))


@each("name", ["r", "q", "mu_a"])
def test_masked_arrays_of_numpy_are_refused(name: str) -> None:
    """Its mask would be lost; the error names the argument `mask`."""
    w = window()
    hidden = np.ma.masked_array(w[name], mask=np.zeros(w[name].shape, bool))
    hidden[2, 1] = np.ma.masked
    text = refusal(ot.targets, **w | {name: hidden}, trace=RETRACE, error=TypeError)
    says(text, f"`{name}`", "mask")


def test_large_batches_are_split_over_threads() -> None:
    """The batch is split over threads; each part must be written to its own place."""
    w = window(4, (60_000,), 6)
    out = targets(NUMPY, w)
    some = np.array([0, 1, 29_999, 30_000, 59_999])
    few = {k: np.ascontiguousarray(v[:, some]) for k, v in w.items()}
    np.testing.assert_array_equal(out[:, some], targets(NUMPY, few))
    text = refusal(targets, NUMPY, changed(w, "r", (2, 59_999), NAN))
    says(text, "`r`", "nan", "t = 2", "[59999]")


# traces that were cut stay cut


@EVERY_WAY
@each("name", ["recursive_retrace", "truncated_is", "rbis"])
def test_a_trajectory_that_pi_cannot_take_stays_cut(way: str, name: str) -> None:
    """β = 0 after π(a|x) = 0, and 0 · ρ is 0 even where ρ overflows."""
    w = window()
    w["log_pi_a"], w["log_mu_a"] = np.zeros((N, B), np.float32), np.full((N, B), -1, np.float32)
    w["log_pi_a"][2], w["log_mu_a"][3] = -INF, -800
    del w["mu_a"]
    moderate = changed(w, "log_mu_a", 3, -2)
    trace = ot.TRACES[name](0.9)
    np.testing.assert_array_equal(targets(way, w, trace)[:2], targets(way, moderate, trace)[:2])


@EVERY_LIBRARY
@each("name", ["recursive_retrace", "truncated_is", "rbis"])
def test_betas_stay_cut(way: str, name: str) -> None:
    logs = {"log_pi_a": np.array([0, -INF, 0, 0]), "log_mu_a": np.array([-1.0, -1, -800, -1])}
    betas = take(ot.TRACES[name](0.9).betas(**given(way, logs)))
    np.testing.assert_array_equal(betas, np.array([1, 0, 0, 0]))


# Peng's Q(λ), n-step returns, V-trace and C-trace check what `targets` checks

OTHER_RECURSIONS = {
    "peng_targets": ot.peng_targets,
    "n_step_targets": partial(ot.n_step_targets, num_steps=3),
}


@EVERY_LIBRARY
@each("recursion", OTHER_RECURSIONS)
def test_other_recursions_do_not_read_after_the_end(way: str, recursion: Callable) -> None:
    """E_π Q after a terminal step may be anything: `targets` does not read it, and neither may these."""
    w = {"r": ended()["r"], "discount": ended()["discount"], "expected_q": overrides(window())["expected_q"]}
    right = take(recursion(**given(way, w)))
    for value in (NAN, INF):
        out = take(recursion(**given(way, changed(w, "expected_q", LAST, value))))
        np.testing.assert_allclose(out, right, rtol=1e-6)


@EVERY_LIBRARY
def test_c_trace_checks_mu(way: str) -> None:
    """A mixture can be valid although one of its policies is not."""
    w = {k: v for k, v in window().items() if k != "mu_a"}
    w["mu"] = np.full_like(w["pi"], 1 / A)
    for row, parts in (([-1e-3, 0.5, 0.501], ("-0.001",)), ([0.5, 0.5, 0.1], ("1.1",))):
        bad = given(way, changed(w, "mu", (2, 1), row))
        says(refusal(lambda b=bad: ot.c_trace_targets(alpha=0.999, **b)), "`mu`", "t = 2", *parts)


@EVERY_LIBRARY
@each("recursion", OTHER_RECURSIONS)
def test_other_recursions_check_what_targets_checks(way: str, recursion: Callable) -> None:
    w = {k: v for k, v in same_step().items() if k in ("q", "pi", "r", "discount", "reset")}
    says(refusal(recursion, **given(way, w)), "`discount`", "t = 2", "[1]", "`expected_q`")  # same-step autoreset
    del w["reset"]
    says(refusal(recursion, **given(way, w | {"pi": w["pi"] * np.float32(1.1)})), "`pi`", "1.1")
    says(refusal(recursion, **given(way, changed(w, "q", (2, 1, 0), NAN))), "`q`", "nan", "t = 2", "[1, 0]")
    text = refusal(recursion, **given(way, w | {"q": w["q"][1:], "pi": w["pi"][1:]}))
    says(text, "`q`", str((N, B, A)), str((N, B)))


@EVERY_LIBRARY
def test_vtrace_checks_what_targets_checks(way: str) -> None:
    p = correction_arguments()
    w = {"v": np.zeros((N + 1, B), np.float32), "r": p["r"], "discount": p["discount"]}
    w |= {"pi_a": np.full((N, B), 0.5, np.float32), "mu_a": np.full((N, B), 0.5, np.float32)}
    reset = same_step()["reset"]
    says(refusal(ot.vtrace_targets, **given(way, w | {"reset": reset})), "`discount`", "t = 2", "[1]", "`next_v`")
    says(refusal(ot.vtrace_targets, **given(way, w | {"pi_a": w["pi_a"][:1]})), "`pi_a`", str((1, B)), str((N, B)))
    says(refusal(ot.vtrace_targets, **given(way, w | {"v": w["v"][1:]})), "`v`", str((N, B)))
    says(refusal(ot.vtrace_targets, **given(way, changed(w, "v", (2, 1), NAN))), "`v`", "nan", "t = 2")
