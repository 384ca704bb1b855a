"""Multi-step targets with another recursion or another target policy, on the same kernel.

`TRACES` holds what differs from Retrace only in its coefficients. The targets here differ in more: the value that is
subtracted, the weight of a step's own TD error, or the policy that is learned.
"""

from numbers import Integral
from typing import Any

import numpy as np

from offtrace.arrays import (
    Array,
    expectation,
    is_concrete,
    lead,
    library,
    namespace,
    shape_of,
    take_action,
    without_gradient,
)
from offtrace.errors import raise_where
from offtrace.likelihoods import Likelihoods
from offtrace.returns import _backend, checks, corrections, targets
from offtrace.returns.window import Window, actions_taken, likelihoods_of, real_rows, shape
from offtrace.traces import OneStep, Retrace
from offtrace.traces.parameters import check_lambda_shape, check_parameter, like


def peng_targets(
    *,
    r: Array,
    discount: Array,
    q: Array | None = None,
    pi: Array | None = None,
    expected_q: Array | None = None,
    reset: Array | None = None,
    mask: Array | None = None,
    lambda_: Any = 1.0,
    validate: bool = True,
    stop_gradient: bool = True,
) -> Array:
    """Return the uncorrected targets of Peng's Q(λ): (n, …).

        G_t = r_t + γ_t [(1 − λ) E_π Q(x_{t+1}, ·) + λ G_{t+1}]

    The fixed point is the value of λμ + (1−λ)π, not of π (Kozuno et al. 2021). Where the trajectory ends, G_{t+1} is
    E_π Q(x_{t+1}, ·). With one λ per step, `lambda_[t]` belongs to x_t, as in a trace: the λ of G_t is
    `lambda_[t + 1]`, and `lambda_[0]` is never read.

    >>> peng_targets(r=np.array([1.0, 2.0]), discount=np.array([0.5, 0.0]), expected_q=np.array([4.0, 9.0]),
    ...              lambda_=0.5)  # 1 + 0.5 (0.5 · 4 + 0.5 · 2)
    array([2.5, 2. ])
    """
    check_parameter("peng_targets", "lambda_", lambda_)
    window = Window(r, discount, q=q, pi=pi, expected_q=expected_q, reset=reset, mask=mask)
    steps = _steps(window, validate, lambda_)
    # G_t = r_t + γ_t (v_{t+1} + λ (G_{t+1} − v_{t+1})) is Eq. 3 with v in place of Q(x_{t+1}, a_{t+1}).
    before = _previous(steps.expected_q)
    c = _lambdas(lambda_, steps.expected_q)
    delta = corrections(**_given(steps._replace(q_a=before)), c=c, validate=validate)
    return _finish(delta + before, steps.mask, stop_gradient)


def n_step_targets(
    *,
    num_steps: int,
    r: Array,
    discount: Array,
    q: Array | None = None,
    pi: Array | None = None,
    expected_q: Array | None = None,
    reset: Array | None = None,
    mask: Array | None = None,
    validate: bool = True,
    stop_gradient: bool = True,
) -> Array:
    """Return uncorrected n-step returns, as in Rainbow and R2D2: Σ_{k<n} γ^k r_{t+k} + γ^n E_π Q(x_{t+n}, ·): (n, …).

    They do not correct for the actions in between, so they are biased off-policy. A return that would leave its
    trajectory or the window stops and bootstraps there.

    >>> n_step_targets(num_steps=2, r=np.array([1.0, 2.0, 4.0]), discount=np.full(3, 0.5),
    ...                expected_q=np.array([8.0, 8.0, 8.0]))  # 1 + 0.5 · 2 + 0.25 · 8, …
    array([4., 6., 8.])
    """
    if isinstance(num_steps, bool) or not isinstance(num_steps, Integral) or num_steps < 1:
        raise ValueError(f"`num_steps` must be a whole number of at least 1; got {num_steps!r}.")
    window = Window(r, discount, q=q, pi=pi, expected_q=expected_q, reset=reset, mask=mask)
    steps = _steps(window, validate)
    xp = namespace(steps.r)
    zero = xp.zeros_like(steps.r)
    steps = steps._replace(q_a=zero)
    # One more step is one application of the one-step target to the returns of the next row.
    out = corrections(**_given(steps), c=zero, validate=False)
    continues = _continues(steps)
    for _ in range(min(num_steps, len(zero)) - 1):
        ahead = xp.where(continues, _following(out), steps.expected_q)
        out = corrections(**_given(steps._replace(expected_q=ahead)), c=zero, validate=False)
    return _finish(out, steps.mask, stop_gradient)


def vtrace_targets(
    *,
    v: Array,
    r: Array,
    discount: Array,
    pi_a: Array | None = None,
    mu_a: Array | None = None,
    log_pi_a: Array | None = None,
    log_mu_a: Array | None = None,
    next_v: Array | None = None,
    reset: Array | None = None,
    mask: Array | None = None,
    lambda_: Any = 1.0,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    validate: bool = True,
    stop_gradient: bool = True,
) -> Array:
    """Return V-trace targets of state values, V(x_t) + Δ_t (Espeholt et al. 2018): (n, …).

        Δ_t = min(ρ̄, ρ_t) δ_t + γ_t λ_t min(c̄, ρ_t) Δ_{t+1},    δ_t = r_t + γ_t V(x_{t+1}) − V(x_t)

    For state values the ratio and λ of the step itself are used: c_t, not c_{t+1}, so c_0 is read. `v` is (n+1, …);
    `next_v` (n, …) is the value of each step's true successor where that is not `v[t+1]`. A trajectory ends where
    `mask` is False, also inside of a sequence.

    >>> vtrace_targets(v=np.array([1.0, 2.0, 0.0]), r=np.array([0.0, 1.0]), discount=np.array([0.5, 0.0]),
    ...                pi_a=np.array([0.2, 0.9]), mu_a=np.array([0.4, 0.3]))  # Δ_1 = 1 − 2, Δ_0 = 0 + 0.25 Δ_1
    array([0.75, 1.  ])
    """
    if (pi_a is None) != (mu_a is None) or (log_pi_a is None) != (log_mu_a is None) or (pi_a is log_pi_a is None):
        raise TypeError("give `pi_a=` and `mu_a=`, or `log_pi_a=` and `log_mu_a=`.")
    for name, value in (("rho_bar", rho_bar), ("c_bar", c_bar)):
        if value is None or isinstance(value, str) or not value > 0:
            raise ValueError(f"`{name}` must be a number above 0; got {value!r}.")
    check_parameter("vtrace_targets", "lambda_", lambda_)
    r = _array(r)
    v = _array(v)
    _check_rows_of_values(tuple(v.shape), tuple(r.shape))
    names = {"pi_a": pi_a, "mu_a": mu_a} if pi_a is not None else {"log_pi_a": log_pi_a, "log_mu_a": log_mu_a}
    window, tol = _ready(
        Window(r, discount, q_a=v[:-1], expected_q=v[1:], reset=reset, mask=mask, **names), lambda_, next_v
    )
    shape(window._replace(q_a=None, expected_q=None))  # an error lists what was given
    if next_v is not None:
        successors, _ = _ready(Window(window.r, window.discount, expected_q=next_v))
        if tuple(successors.expected_q.shape) != tuple(window.r.shape):
            raise ValueError(f"`next_v` must have the shape of `r`, {tuple(r.shape)}; got {shape_of(next_v)}.")
        window = window._replace(expected_q=successors.expected_q)
    if validate and is_concrete(*window):
        xp = namespace(*window)
        real = real_rows(window)
        checks.check_likelihoods(window, Retrace(), tol=tol)
        raise_where(real & ~xp.isfinite(window.q_a), "v", "must be finite in every real step", window.q_a)
        bad = real & (window.discount != 0) & ~xp.isfinite(window.expected_q)
        if next_v is None:
            checks.check_successors(window)
            raise_where(bad, "v", "must be finite after every step whose discount is not 0", window.expected_q)
        else:
            raise_where(bad, "next_v", "must be finite where the discount is not 0", window.expected_q)
    given = likelihoods_of(window)
    weight = _at_most(rho_bar, given)
    zero = namespace(weight).zeros_like(weight)
    # Δ_t = ρ̄_t δ_t + γ_t c_t Δ_{t+1}: the kernel reads c from the next row, so c is passed one row later.
    delta = weight * corrections(**_given(window), c=zero, validate=validate)
    c = _lambdas(lambda_, weight) * (weight if c_bar == rho_bar else _at_most(c_bar, given))
    out = corrections(**_given(window._replace(r=delta, q_a=zero, expected_q=zero)), c=_previous(c), validate=False)
    return _finish(out + window.q_a, window.mask, stop_gradient)


def _check_rows_of_values(got: tuple[int, ...], steps: tuple[int, ...]) -> None:
    """Check the shape of `v`, (n+1, …), for rewards of shape (n, …)."""
    wanted = (steps[0] + 1, *steps[1:]) if steps else ()
    if got == wanted and steps:
        return
    is_batch_major = len(steps) > 1 and got == (steps[0], steps[1] + 1, *steps[2:])
    hint = " Batch-major? Time comes first: swap axes 0 and 1." if is_batch_major else ""
    raise ValueError(f"`v` must have one row more than `r`, {wanted}, as `r` is {steps}; got {got}.{hint}")


def _at_most(bar: float, given: Likelihoods) -> Array:
    """Return min(bar, ρ_t); nothing is divided where it is the bar, so a small μ cannot overflow the gradient."""
    xp = given.xp
    if given.pi_a is not None and given.mu_a is not None:
        below = given.pi_a < bar * given.mu_a
        return xp.where(below, given.pi_a / xp.where(below, given.mu_a, 1), bar)
    log_ratio = given.log_ratio()
    below = log_ratio < np.log(bar)
    return xp.where(below, xp.exp(xp.where(below, log_ratio, 0)), bar)


def c_trace_targets(
    *,
    alpha: Any,
    q: Array,
    a: Array,
    r: Array,
    discount: Array,
    pi: Array,
    mu: Array,
    lambda_: Any = 1.0,
    **ends: Any,
) -> Array:
    """Return Retrace targets for π_α = α π + (1 − α) μ, with longer traces and a bias towards μ: (n, …).

    This is the target of C-trace (Rowland et al. 2020) for an α of the caller's choice: 1 is Retrace for π, 0 is
    on-policy Q(λ) for μ. `mu` is the full behaviour policy, (n+1, …, A). `ends` are the options of `targets`.

    >>> half = np.full((2, 2), 0.5)
    >>> c_trace_targets(alpha=0.5, q=np.array([[0.0, 0.0], [4.0, 0.0]]), a=np.array([0]), r=np.array([1.0]),
    ...                 discount=np.array([0.5]), pi=np.eye(2)[[0, 0]], mu=half)  # 1 + 0.5 · 0.75 · 4
    array([2.5])
    """
    check_parameter("c_trace_targets", "alpha", alpha)
    if shape_of(alpha):
        raise ValueError(f"`alpha` must be one number; got shape {shape_of(alpha)}.")
    validate = ends.pop("validate", True)
    rest = {name: ends.pop(name, None) for name in ("q_a", "expected_q", "reset", "mask")}
    window, tol = _ready(Window(r, discount, q=q, a=a, pi=pi, **rest), mu, alpha, lambda_)
    shape(window)
    behaviour, rounding = _ready(Window(window.r, window.discount, pi=_array(mu)))
    tol = max(tol, rounding)
    mu = behaviour.pi
    if tuple(mu.shape) != tuple(window.pi.shape):
        raise ValueError(f"`mu` must have the shape of `pi`, {tuple(window.pi.shape)}; got {tuple(mu.shape)}.")
    has_values = is_concrete(*window, mu)
    if has_values:
        checks.check_actions(window)
    if has_values and validate:
        checks.check_policy(window, "pi", window.pi, tol=tol)
        checks.check_policy(window, "mu", mu, tol=tol)
    mixed = alpha * window.pi + (1 - alpha) * mu
    window = window._replace(pi=mixed, mu_a=take_action(mu[: len(window.r)], actions_taken(window)))
    if has_values and validate and is_concrete(alpha):
        checks.check(window, Retrace(), tol=tol)
    given = {name: value for name, value in window._asdict().items() if value is not None}
    out = targets(**given, trace=Retrace(lambda_), validate=False, **ends)
    if validate and is_concrete(out):
        checks.check_result(window, out)
    return out


def _ready(window: Window, *others: Any) -> tuple[Window, float]:
    """Return the window as `targets` converts it: arrays of one library, at least float32; and the tolerance."""
    kind = library(*window, *others)
    if kind == "torch" and library(*window) == "numpy":
        window = window._replace(r=namespace(*others).as_tensor(_array(window.r)))
    return _backend(kind).ready(window)


def _steps(window: Window, validate: bool, *others: Any) -> Window:
    """Return the checked window with E_π Q of every step's successor, and 0 where that is not read."""
    if window.expected_q is None and (window.q is None or window.pi is None):
        raise TypeError("give `q=` and `pi=`, or `expected_q=` (the value of each step's true successor).")
    window, tol = _ready(window, *others)
    shape(window)
    if validate and is_concrete(*window):
        checks.check(window, OneStep(), tol=tol)
    expected = window.expected_q
    if expected is None:
        expected = expectation(window.q[1:], window.pi[1:])
    xp = namespace(window.r)
    read = real_rows(window) & (window.discount != 0)
    return window._replace(expected_q=xp.where(read, expected, xp.zeros_like(expected)))


def _given(window: Window) -> dict[str, Any]:
    """Return the arguments of `corrections`."""
    return {name: getattr(window, name) for name in ("q_a", "expected_q", "r", "discount", "reset", "mask")}


def _array(values: Any) -> Array:
    return np.asarray(values) if library(values) == "numpy" else values


def _lambdas(lambda_: Any, rows: Array) -> Array:
    """Return λ for every step, in the library of the rows."""
    check_lambda_shape(lambda_, tuple(rows.shape))
    lambda_ = np.asarray(lambda_) if isinstance(lambda_, (list, tuple)) else lambda_
    return lead(like(lambda_, rows), rows.ndim) * namespace(rows).ones_like(rows)


def _previous(rows: Array) -> Array:
    """Return the rows moved down by one: row t−1 in row t, zeros in the first."""
    xp = namespace(rows)
    return xp.concatenate([xp.zeros_like(rows[:1]), rows[:-1]])


def _following(rows: Array) -> Array:
    """Return the rows moved up by one: row t+1 in row t, zeros in the last."""
    xp = namespace(rows)
    return xp.concatenate([rows[1:], xp.zeros_like(rows[:1])])


def _continues(window: Window) -> Array:
    """Return True where row t+1 continues row t."""
    continued = real_rows(window)
    if window.reset is not None:
        continued = continued & ~window.reset
    return _following(continued)


def _finish(rows: Array, mask: Array | None, stop_gradient: bool) -> Array:
    """Return the rows with zeros where they are masked, as constants for the gradient if so wanted."""
    if mask is not None:
        rows = namespace(rows).where(mask, rows, 0)
    return without_gradient(rows) if stop_gradient else rows
