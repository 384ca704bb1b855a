"""Gradients in JAX and PyTorch against finite differences of NumPy's results."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from builders import windows
from builders.windows import Arrays
from precision import double_precision

import offtrace as ot
from offtrace.returns import reference
from offtrace.returns.jax import _as_tree

STEP = 1e-6
# A central difference of numbers under 100 is off by 100 · EPS / STEP ≈ 2e-8 in rounding and by f‴ STEP² < 1e-9
CLOSE = {"rtol": 1e-6, "atol": 1e-6}

LIBRARIES = ["jax", "torch"]
STEPS = ("q_a", "expected_q", "r", "discount", "c")
FIVE = [ot.Retrace, ot.TreeBackup, ot.ImportanceSampling, ot.QLambda, ot.RecursiveRetrace]
KINDS = [ot.Retrace, ot.TreeBackup, ot.RecursiveRetrace, ot.TruncatedIS, ot.SoftWatkins]
"""One of each way to a coefficient: JAX compiles for every trace, which is too slow for all of them everywhere."""
EVERY = [("torch", cls) for cls in ot.TRACES.values()] + [("jax", cls) for cls in KINDS]


@pytest.fixture(autouse=True)
def _float64():
    """For these tests and this thread alone: JAX's setting is one per process otherwise."""
    with double_precision():
        yield


def finite_differences(function, arguments: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """∂ output / ∂ argument, (output…, argument…), by central differences, one number at a time."""
    jacobians = {}
    for name, value in arguments.items():
        columns = []
        for place in np.ndindex(*value.shape):
            beside = [value.copy(), value.copy()]
            beside[0][place] += STEP
            beside[1][place] -= STEP
            above, below = (function(**arguments | {name: moved}) for moved in beside)
            columns.append((above - below) / (2 * STEP))
        jacobians[name] = np.stack(columns, -1).reshape((*np.shape(columns[0]), *value.shape))
    return jacobians


@functools.partial(jax.jit, static_argnums=(0, 1))
def in_jax(rule, function, given: dict, rest: dict) -> dict:
    """One program for each rule, function and set of shapes, however many tests ask for it."""
    return rule(lambda given: function(**given, **rest))(given)


def grad_of_sum(function):
    return jax.grad(lambda given: function(given).sum())


RULES = {"reverse": jax.jacrev, "forward": jax.jacfwd}
NOTHING: dict[str, np.ndarray] = {}


def jacobians_of(
    library: str,
    function,
    arguments: dict[str, np.ndarray],
    mode: str = "reverse",
    rest: dict[str, np.ndarray] = NOTHING,
) -> dict:
    """The same, by the library's own rules; `rest` is given to the function, too."""
    if library == "jax":
        return {name: np.asarray(value) for name, value in in_jax(RULES[mode], function, arguments, rest).items()}
    given, own = tuple(torch.tensor(value) for value in arguments.values()), tensors(rest)
    found = torch.autograd.functional.jacobian(
        lambda *values: function(**dict(zip(arguments, values, strict=True)), **own), given
    )
    return {name: value.numpy() for name, value in zip(arguments, found, strict=True)}


def gradients(
    library: str, function, arguments: dict[str, np.ndarray], rest: dict[str, np.ndarray] = NOTHING
) -> dict[str, np.ndarray]:
    """The gradient of the sum of the output, with zeros for what it does not depend on."""
    if library == "jax":
        return {name: np.asarray(value) for name, value in in_jax(grad_of_sum, function, arguments, rest).items()}
    given = {name: torch.tensor(value, requires_grad=True) for name, value in arguments.items()}
    function(**given, **tensors(rest)).sum().backward()
    return {k: np.zeros(v.shape) if v.grad is None else v.grad.numpy() for k, v in given.items()}


def tensors(arrays: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(value) for name, value in arrays.items()}


@functools.cache
def targets_of(cls: type[ot.Trace], lambda_: float | None = 0.8, **options: bool):
    """`ot.targets` with its gradient, as a function of the arrays; also of λ, where it is None here."""

    def targets(**values):
        trace = cls(values.pop("lambda_") if lambda_ is None else lambda_)
        return ot.targets(**values, trace=trace, stop_gradient=False, **options)

    return targets


def assert_same(got: dict, want: dict) -> None:
    assert got.keys() == want.keys()
    for name in want:
        np.testing.assert_allclose(got[name], want[name], **CLOSE, err_msg=f"gradient in {name}")


WAYS = [("jax", "reverse"), ("jax", "forward"), ("torch", "reverse")]


# --- the primitive ------------------------------------------------------------------------------------------


def steps(seed: int = 0, shape=(5, 2)) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    window = {name: rng.normal(size=shape) for name in ("q_a", "expected_q", "r")}
    return window | {"discount": rng.uniform(0.5, 1, shape), "c": rng.uniform(0.2, 1.5, shape)}


RESET = np.array([[True, False], [False, False], [False, True], [False, False], [True, False]])
MASK = np.array([[True, True], [True, False], [True, True], [True, True], [False, True]])
ENDS = {"no ends": {}, "reset": {"reset": RESET}, "mask": {"mask": MASK}, "both": {"reset": RESET, "mask": MASK}}


def unchecked_corrections(**given):
    """Without the checks, because a difference around discount = 0 has a negative one."""
    return ot.corrections(**given, validate=False)


def check_corrections(library: str, mode: str, window: dict[str, np.ndarray], ends: dict[str, np.ndarray]) -> None:
    wanted = finite_differences(lambda **given: reference.corrections(**given, **ends), window)
    assert_same(jacobians_of(library, unchecked_corrections, window, mode, ends), wanted)


@pytest.mark.parametrize("ends", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize(("library", "mode"), WAYS)
def test_corrections_are_differentiable_in_everything(library, mode, ends):
    check_corrections(library, mode, steps(), ends)


@pytest.mark.parametrize("ends", ENDS.values(), ids=ENDS)
def test_corrections_pass_torchs_own_gradcheck(ends):
    own = tensors(ends)
    window = steps()
    window["discount"][1, 0] = window["c"][3, 1] = 0

    def function(*values):
        return ot.corrections(**dict(zip(STEPS, values, strict=True)), **own, validate=False)

    given = [torch.tensor(window[name], requires_grad=True) for name in STEPS]
    assert torch.autograd.gradcheck(function, given, eps=STEP, atol=1e-6, rtol=1e-6)  # as CLOSE


@pytest.mark.parametrize("ends", [ENDS["no ends"], ENDS["both"]], ids=["no ends", "both"])
@pytest.mark.parametrize("zero", ["discount", "c"])
@pytest.mark.parametrize(("library", "mode"), WAYS)
def test_corrections_are_differentiable_where_a_factor_is_exactly_zero(library, mode, zero, ends):
    """Δ is a polynomial in the discounts and in c: at 0 it has a slope like anywhere else.

    A terminated step, an action that π never takes and λ = 0 all come here.
    """
    window = steps()
    window[zero][1, 0] = window[zero][3, 1] = window[zero][3, 0] = 0
    check_corrections(library, mode, window, ends)


@pytest.mark.parametrize("shape", [(1,), (3, 2, 2)])
@pytest.mark.parametrize(("library", "mode"), WAYS)
def test_corrections_of_every_shape(library, mode, shape):
    check_corrections(library, mode, steps(shape=shape), {})


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_window_without_steps_has_empty_gradients(library, shape):
    for value in gradients(library, ot.corrections, steps(shape=shape)).values():
        assert value.shape == shape


@pytest.mark.parametrize("ends", ENDS.values(), ids=ENDS)
def test_one_gradient_alone_is_the_one_among_all(ends):
    """PyTorch computes only the gradients that are asked for."""
    window = steps()
    every = gradients("torch", ot.corrections, window, ends)
    for name in STEPS:
        alone = {name: window[name]}
        got = gradients("torch", ot.corrections, alone, {k: v for k, v in window.items() if k != name} | ends)
        np.testing.assert_array_equal(got[name], every[name])


def test_the_tree_of_long_windows_has_the_gradients_of_the_fold_step_by_step():
    """From 4096 rows on the CPU folds as a tree; its gradient takes long to compile there, so it is taken of 37 rows,
    which are odd in number at three of the tree's levels: against the sequential fold of torch."""
    window = steps(shape=(37,))
    window["c"] = window["c"].clip(max=1)
    window["discount"][11] = window["c"][23] = 0
    weights = np.random.default_rng(1).normal(size=37)

    def by_tree(q_a, expected_q, r, discount, c):
        delta = r + discount * expected_q - q_a
        return (weights * _as_tree(discount[:-1] * c[1:], delta[:-1], delta[-1:])).sum()

    by_jax = jax.jit(jax.grad(by_tree, argnums=range(5)))(*(window[name] for name in STEPS))
    given = {name: torch.tensor(value, requires_grad=True) for name, value in window.items()}
    (torch.tensor(weights) * ot.corrections(**given)).sum().backward()
    for name, gradient in zip(STEPS, by_jax, strict=True):
        # effective memory of about 20 steps, sums of size ≤ 100: 1e-12 leaves 50 roundings
        np.testing.assert_allclose(gradient, given[name].grad, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("library", LIBRARIES)
def test_nothing_that_is_not_read_reaches_a_gradient(library):
    """NaN in a masked row, in c of a first row or of a reset, and in the value after a termination."""
    window, clean = steps(), steps()
    clean["discount"][3, 1] = window["discount"][3, 1] = 0
    for value in window.values():
        value[~MASK] = np.nan
    for value in clean.values():
        value[~MASK] = 0
    window["c"][0] = window["c"][RESET] = np.nan
    window["expected_q"][3, 1] = np.nan
    got, want = (gradients(library, ot.corrections, given, ENDS["both"]) for given in (window, clean))
    for name in STEPS:
        assert np.isfinite(got[name]).all(), name
        np.testing.assert_array_equal(got[name][~MASK], 0)
        same = np.ones(MASK.shape, bool)
        same[3, 1] = name != "discount"  # what 0 · NaN would be worth, nobody knows
        np.testing.assert_array_equal(got[name][same], want[name][same])


def test_torch_notices_an_input_that_changes_before_the_gradient_is_taken():
    """Autograd raises if an input was overwritten; otherwise the gradient would be silently wrong."""
    window = steps(shape=(3,))
    given = {name: torch.tensor(value, requires_grad=name == "r") for name, value in window.items()}
    ot.corrections(**given).sum().backward()
    want, given["r"].grad = given["r"].grad, None
    out = ot.corrections(**given).sum()
    given["c"].zero_()
    try:
        out.backward()
    except RuntimeError as error:
        assert "inplace" in str(error)  # noqa: PT017  (either a refusal or the right gradient will do)
    else:
        torch.testing.assert_close(given["r"].grad, want, rtol=0, atol=0)


# --- targets ------------------------------------------------------------------------------------------------

FLOATS = ("q", "r", "discount", "pi", "mu_a")


def window(seed: int = 0) -> Arrays:
    """Away from the corners of min(1, ρ), so that both sides of a difference are on one side of them."""
    rng = np.random.default_rng(seed)
    return windows.window(4, (2,), 3, seed=seed) | {"discount": rng.uniform(0.5, 1, (4, 2))}


def assert_away_from_corners(given: dict[str, np.ndarray], lambda_: float) -> None:
    pi_a = np.take_along_axis(given["pi"][:-1], given["a"][..., None], -1)[..., 0]
    ratio = pi_a / given["mu_a"]
    assert (ratio > 1).any()
    assert (ratio < 1).any()
    assert (np.abs(ratio - 1) > 100 * STEP).all()
    for start in range(len(ratio)):  # β_{t−1} ρ_t of Eq. 9, from every start
        betas = ot.RecursiveRetrace(lambda_).betas(pi_a=pi_a[start:], mu_a=given["mu_a"][start:])
        assert (np.abs(betas[:-1] * ratio[start + 1 :] - 1) > 100 * STEP).all()


@pytest.mark.parametrize("cls", FIVE)
@pytest.mark.parametrize(
    ("library", "mode", "ends"),
    [("jax", "reverse", "both"), ("jax", "forward", "no ends"), ("torch", "reverse", "both")],
)
def test_targets_are_differentiable_where_asked_for(library, mode, cls, ends):
    given = window()
    assert_away_from_corners(given, 0.8)
    rest = {"a": given.pop("a")} | {name: value[:4] for name, value in ENDS[ends].items()}
    arguments, targets = given | {"lambda_": np.array(0.8)}, targets_of(cls, None, validate=False)
    wanted = finite_differences(lambda **values: targets(**values, **rest), arguments)
    assert_same(jacobians_of(library, targets, arguments, mode, rest), wanted)


@pytest.mark.parametrize("cls", FIVE)
def test_targets_pass_torchs_own_gradcheck(cls):
    given = window(5)
    assert_away_from_corners(given, 0.8)
    a = torch.tensor(given.pop("a"))

    def targets(lambda_, *values):
        named = dict(zip(FLOATS, values, strict=True))
        return ot.targets(**named, a=a, trace=cls(lambda_), validate=False, stop_gradient=False)

    values = [torch.tensor(given[name], requires_grad=True) for name in FLOATS]
    lambda_ = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(targets, (lambda_, *values), eps=STEP, atol=1e-6, rtol=1e-6)  # as CLOSE


@pytest.mark.parametrize("cls", FIVE)
@pytest.mark.parametrize("library", LIBRARIES)
def test_one_lambda_per_step_has_one_gradient_per_step(library, cls):
    given, targets = window(), targets_of(cls, None, validate=False)
    lambdas = {"lambda_": np.array([0.3, 0.8, 0.6, 0.9])}
    got = jacobians_of(library, targets, lambdas, rest=given)
    assert_same(got, finite_differences(functools.partial(targets, **given), lambdas))
    np.testing.assert_array_equal(got["lambda_"][..., 0], 0)  # λ_0 is never read


@pytest.mark.parametrize("cls", FIVE)
@pytest.mark.parametrize("library", LIBRARIES)
def test_the_gradient_in_lambda_where_lambda_is_zero(library, cls):
    """The slope there is γ · (c_1/λ) · δ_1 and so on; a learnt λ that gets 0 for it never leaves 0."""
    given, targets = window(), targets_of(cls, None)
    got = gradients(library, targets, {"lambda_": np.array(0.0)}, given)["lambda_"]
    # one-sided, because λ ≥ 0: the error is f″ STEP / 2
    want = (targets(**given, lambda_=STEP).sum() - targets(**given, lambda_=0.0).sum()) / STEP
    np.testing.assert_allclose(got, want, rtol=0, atol=100 * STEP)


@pytest.mark.parametrize("cls", [ot.Retrace, ot.TreeBackup, ot.ImportanceSampling])
@pytest.mark.parametrize("library", LIBRARIES)
def test_the_gradient_in_pi_of_an_action_that_pi_never_takes(library, cls):
    """∂c/∂π(a|x) is λ/μ or λ at π = 0, and it is through c alone that `pi_a` counts here."""
    given, n = window(), 4
    pi_a = np.full((n, 2), 0.5)
    pi_a[1, 0] = pi_a[2, 1] = 0
    rest = {name: given[name] for name in ("q", "a", "r", "discount", "pi", "mu_a")}
    targets = targets_of(cls, validate=False)
    got = gradients(library, targets, {"pi_a": pi_a}, rest)["pi_a"]
    for place in ((1, 0), (2, 1)):
        moved = pi_a.copy()
        moved[place] = STEP
        # linear in each π(a_t|x_t) below μ
        want = (targets(**rest, pi_a=moved).sum() - targets(**rest, pi_a=pi_a).sum()) / STEP
        np.testing.assert_allclose(got[place], want, **CLOSE)


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_gradient_in_pi_where_pi_is_zero_and_q_is_a_number(library):
    """∂ E_π Q / ∂π(b|x) is Q(x, b) at π = 0, too: this is how a policy finds an action that it never takes."""
    given = window()
    rest = {name: given[name] for name in ("q", "a", "r", "discount", "mu_a")}
    pi = given["pi"]
    np.put_along_axis(pi[:-1], (given["a"][..., None] + 1) % 3, 0, -1)  # not the action taken
    pi /= pi.sum(-1, keepdims=True)
    targets = targets_of(ot.Retrace, validate=False)
    got = jacobians_of(library, targets, {"pi": pi}, rest=rest)
    assert_same(got, finite_differences(functools.partial(targets, **rest), {"pi": pi}))


# --- targets are constants, unless asked --------------------------------------------------------------------


@pytest.mark.parametrize("cls", [*KINDS, ot.QSigma])
def test_jax_targets_stop_the_gradient(cls):
    given = {name: jnp.asarray(value) for name, value in window().items()}
    a = given.pop("a")

    def total(given, trace):
        return ot.targets(**given, a=a, trace=trace).sum()

    trace = cls(0.8) if cls.__match_args__ == ("lambda_",) else floats_of(cls)
    found = jax.jit(jax.grad(total, argnums=(0, 1)))(given, trace)
    for leaf in jax.tree_util.tree_leaves(found):
        np.testing.assert_array_equal(np.asarray(leaf), 0)


def floats_of(cls: type[ot.Trace]) -> ot.Trace:
    """With floating parameters only, since JAX has no gradient for whole numbers."""
    return cls(*(float(getattr(cls(0.8), field.name)) for field in dataclasses.fields(cls)))


@pytest.mark.parametrize("cls", ot.TRACES.values())
def test_torch_targets_carry_no_gradient(cls):
    given = {name: torch.tensor(value) for name, value in window().items()}
    for name in FLOATS:
        given[name].requires_grad_()
    out = ot.targets(**given, trace=cls(0.8))
    assert not out.requires_grad
    assert out.grad_fn is None


def test_what_a_users_trace_holds_besides_its_fields_gets_a_gradient():
    class Gated(ot.Trace):
        needs_mu = True

        def __init__(self, gate):
            super().__init__(1.0)
            object.__setattr__(self, "gate", gate)

        def factor(self, likelihoods, **_):
            return self.gate * likelihoods.clipped_ratio()

    gate = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    steps = dict.fromkeys(("q_a", "expected_q", "r", "discount", "pi_a", "mu_a"), np.full(3, 0.5))
    out = ot.targets(**steps, trace=Gated(gate), stop_gradient=False)
    (got,) = torch.autograd.grad(out[0], gate)
    # δ = 0.25 in each step, so G_0 = 0.75 + 0.5 g 0.25 + (0.5 g)² 0.25 for a gate of g.
    assert got.item() == pytest.approx(0.5 * 0.25 + 2 * 0.5 * 0.5 * 0.5 * 0.25)


@pytest.mark.parametrize("cls", ot.TRACES.values())
def test_a_lambda_that_torch_learns_gets_no_gradient_from_targets(cls):
    given = {name: torch.tensor(value) for name, value in window().items()}
    lambda_ = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
    out = ot.targets(**given, trace=cls(lambda_))
    assert not out.requires_grad
    np.testing.assert_array_equal(out.numpy(), ot.targets(**window(), trace=cls(0.8)))  # the same kernel


@pytest.mark.parametrize(("library", "cls"), EVERY)
def test_stopping_the_gradient_does_not_change_the_value(library, cls):
    make = jnp.asarray if library == "jax" else torch.tensor
    given = {name: make(value) for name, value in window().items()}
    if library == "torch":
        given["q"].requires_grad_()
    both = [ot.targets(**given, trace=cls(0.8), stop_gradient=stop) for stop in (True, False)]
    both = [np.asarray(out.detach() if library == "torch" else out) for out in both]
    np.testing.assert_allclose(both[0], both[1], rtol=0, atol=1e-14)  # two orders of summing under 64 EPS


# --- what is not read has no gradient, and gives none -------------------------------------------------------


@pytest.mark.parametrize(("library", "cls"), EVERY)
def test_illegal_actions_give_no_nan_gradients(library, cls):
    given = window()
    rest = {"a": given.pop("a")}
    legal = np.ones(given["q"].shape, bool)
    np.put_along_axis(legal[:-1], (rest["a"][..., None] + 1) % 3, False, -1)
    given["pi"] = np.where(legal, given["pi"], 0)
    given["pi"] /= given["pi"].sum(-1, keepdims=True)
    # one column has −inf there, the other NaN
    given["q"] = np.where(legal, given["q"], np.array([-np.inf, np.nan])[None, :, None])
    got = gradients(library, targets_of(cls), given, rest)
    for name, value in got.items():
        assert np.isfinite(value).all(), name
    np.testing.assert_array_equal(got["q"][~legal], 0)
    # and the others are those of the same window with a harmless number there (that is not the greedy one)
    lowest = gradients(library, targets_of(cls), given | {"q": np.where(legal, given["q"], -100.0)}, rest)
    for name in ("r", "discount", "mu_a"):
        np.testing.assert_allclose(got[name], lowest[name], **CLOSE)
    np.testing.assert_allclose(got["q"][legal], lowest["q"][legal], **CLOSE)


@pytest.mark.parametrize(("library", "cls"), EVERY)
def test_actions_that_pi_never_takes_give_no_nan_gradients(library, cls):
    """π(a_t|x_t) = 0 of an action that was taken: ρ = 0, and log ρ = −inf inside trajectory-aware traces."""
    given = window()
    rest = {"a": given.pop("a")}
    pi = given["pi"]
    for t, b in ((0, 0), (1, 0), (2, 1), (3, 1)):
        pi[t, b, rest["a"][t, b]] = 0
    pi /= pi.sum(-1, keepdims=True)
    got = gradients(library, targets_of(cls), given, rest)
    for name, value in got.items():
        assert np.isfinite(value).all(), name


@pytest.mark.parametrize("garbage", ["in a masked row", "after a termination"])
@pytest.mark.parametrize(("library", "cls"), EVERY)
def test_rows_that_are_not_read_give_no_nan_and_get_no_gradient(library, cls, garbage):
    """Rows 0 and 1 of column 0 end an episode, and row 2 is padding; or row 3 terminates, and there is no mask."""
    given = window()
    rest = {"a": given.pop("a")}
    unread = np.zeros((5, 2), bool)
    if garbage == "in a masked row":
        given["discount"][1, 0], rest["a"][2, 0], unread[2, 0] = 0, -7, True
        rest["mask"] = ~unread[:-1]
    else:
        given["discount"][3, 0], unread[4, 0] = 0, True
    for name in FLOATS:
        given[name][unread[: len(given[name])]] = np.nan
    got = gradients(library, targets_of(cls), given, rest)
    for name in FLOATS:
        np.testing.assert_array_equal(got[name][unread[: len(given[name])]], 0, err_msg=name)
        assert np.isfinite(got[name]).all(), f"{name}: {got[name]}"
    assert (got["r"][~unread[:-1]] != 0).all()  # every real reward counts for its own target at least


# --- λ is a leaf --------------------------------------------------------------------------------------------

LAMBDA_VALUES = np.array([0.0, 0.3, 1.0])


def one_after_the_other(cls: type[ot.Trace], given: dict) -> np.ndarray:
    return np.stack([ot.targets(**given, trace=cls(float(lambda_))) for lambda_ in LAMBDA_VALUES])


SAME = {"rtol": 0, "atol": 1e-13}  # two orders of the same sums of numbers under 20


@pytest.mark.parametrize("cls", KINDS)
def test_vmap_over_lambda(cls):
    given = {name: jnp.asarray(value) for name, value in window().items()}
    got = jax.vmap(lambda lambda_: ot.targets(**given, trace=cls(lambda_)))(jnp.asarray(LAMBDA_VALUES))
    np.testing.assert_allclose(got, one_after_the_other(cls, window()), **SAME)


def test_vmap_over_a_trace_inside_jit():
    """All traces in one program, which is compiled much faster than one by one."""
    traces = {}
    for name, cls in ot.TRACES.items():
        trace = jax.tree_util.tree_map(lambda leaf: np.full(3, leaf), cls(0.0))
        traces[name] = dataclasses.replace(trace, lambda_=LAMBDA_VALUES)

    def every(traces, given):
        return {name: ot.targets(**given, trace=trace) for name, trace in traces.items()}

    got = jax.jit(jax.vmap(every, (0, None)))(traces, window())
    for name, cls in ot.TRACES.items():
        np.testing.assert_allclose(got[name], one_after_the_other(cls, window()), **SAME, err_msg=name)


@pytest.mark.parametrize("arrays", ["jax", "numpy"])
@pytest.mark.parametrize("cls", [ot.Retrace, ot.RecursiveRetrace, ot.Watkins])
def test_jit_in_lambda_alone_with_a_window_from_outside(cls, arrays):
    given = window() if arrays == "numpy" else {name: jnp.asarray(value) for name, value in window().items()}
    got = jax.jit(lambda lambda_: ot.targets(**given, trace=cls(lambda_)))(0.3)
    np.testing.assert_allclose(got, ot.targets(**window(), trace=cls(0.3)), **SAME)


@pytest.mark.parametrize("cls", FIVE)
def test_grad_in_a_trace_is_a_trace(cls):
    given = {name: jnp.asarray(value) for name, value in window().items()}

    def total(trace):
        return ot.targets(**given, trace=trace, stop_gradient=False).sum()

    got = jax.jit(jax.grad(total))(cls(0.8))
    assert type(got) is cls
    want = finite_differences(
        lambda lambda_: ot.targets(**window(), trace=cls(lambda_)).sum(), {"lambda_": np.array(0.8)}
    )
    np.testing.assert_allclose(got.lambda_, want["lambda_"], **CLOSE)


@pytest.mark.parametrize("cls", FIVE)
def test_vmap_of_grad_in_lambda(cls):
    given = {name: jnp.asarray(value) for name, value in window().items()}
    values = np.array([0.2, 0.5, 0.8])

    def total(lambda_, given=given):
        return ot.targets(**given, trace=cls(lambda_), stop_gradient=False).sum()

    got = jax.jit(jax.vmap(jax.grad(total)))(values)
    want = finite_differences(lambda lambdas: np.array([total(x, window()) for x in lambdas]), {"lambdas": values})
    np.testing.assert_allclose(got, want["lambdas"].diagonal(), **CLOSE)


@pytest.mark.parametrize("kind", [list, np.array])
@pytest.mark.parametrize("cls", ot.TRACES.values())
def test_torch_takes_lambdas_from_a_list_or_an_array_on_the_way_to_a_gradient(cls, kind):
    lambdas = kind([0.1, 0.2, 0.3, 0.4])
    given = {name: torch.tensor(value) for name, value in window().items()}
    given["r"].requires_grad_()
    out = ot.targets(**given, trace=cls(lambdas), stop_gradient=False)
    np.testing.assert_allclose(out.detach().numpy(), ot.targets(**window(), trace=cls(lambdas)), **SAME)


# --- the sisters --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stops", [True, False])
@pytest.mark.parametrize("name", ["peng_targets", "n_step_targets", "vtrace_targets"])
def test_the_other_recursions_stop_the_gradient_unless_asked(name: str, stops: bool) -> None:
    """As `targets` does: replacing one by the other in a loss must not add a gradient through the target."""
    r = torch.ones(3, dtype=torch.float64, requires_grad=True)
    given = {"r": r, "discount": torch.full((3,), 0.5, dtype=torch.float64)}
    half = torch.full((3,), 0.5, dtype=torch.float64)
    extra = {
        "peng_targets": {"expected_q": half},
        "n_step_targets": {"expected_q": half, "num_steps": 2},
        "vtrace_targets": {"v": torch.ones(4, dtype=torch.float64), "pi_a": half, "mu_a": half},
    }[name]
    out = getattr(ot, name)(**given, **extra, stop_gradient=stops)
    assert out.requires_grad is not stops
    if not stops:
        (gradient,) = torch.autograd.grad(out[0], r)
        # 1, then γλ = ½ for the next reward, and ¼ for the one after; two steps stop before it
        assert gradient.tolist() == pytest.approx([1.0, 0.5, 0.0 if name == "n_step_targets" else 0.25])


def test_vtrace_with_a_traced_lambda() -> None:
    steps = np.full(3, 0.5)
    given = {"v": np.ones(4), "r": np.ones(3), "discount": steps, "pi_a": steps, "mu_a": steps}
    mapped = jax.jit(jax.vmap(lambda lam: ot.vtrace_targets(**given, lambda_=lam)))(jnp.array([0.0, 0.5]))
    for got, lam in zip(mapped, (0.0, 0.5), strict=True):
        np.testing.assert_allclose(got, ot.vtrace_targets(**given, lambda_=lam), rtol=1e-6)


def test_truncated_is_on_policy_has_one_gradient() -> None:
    """Π ρ = 1 is the kink of min(1, Π ρ): both libraries take the side where it is constant."""
    pi_a = np.full((4, 1), 0.5, np.float32)
    given = {
        "q_a": np.zeros((4, 1), np.float32),
        "expected_q": np.ones((4, 1), np.float32),
        "r": np.ones((4, 1), np.float32),
        "discount": np.full((4, 1), 0.9, np.float32),
        "mu_a": pi_a,
        "trace": ot.TruncatedIS(0.9),
        "stop_gradient": False,
    }
    in_jax = jax.grad(lambda pi_a: ot.targets(pi_a=pi_a, **given).sum())(jnp.asarray(pi_a))
    leaf = torch.tensor(pi_a, requires_grad=True)
    tensors = {name: torch.as_tensor(v) if isinstance(v, np.ndarray) else v for name, v in given.items()}
    ot.targets(pi_a=leaf, **tensors).sum().backward()
    np.testing.assert_array_equal(np.asarray(in_jax), leaf.grad.numpy())
    np.testing.assert_array_equal(np.asarray(in_jax), 0)
