"""Sisters of the operator: other recursions or other targets, on the same kernel.

`TRACES` holds what differs from Retrace by its coefficients alone. What is here differs in more: the value that
is subtracted, the weight of a step's own TD error, or the policy that is learned about.
"""

from typing import Any

import numpy as np

from offtrace.arrays import Array, expectation, known, lead, library, namespace, take_action, without_gradient
from offtrace.likelihoods import tolerance
from offtrace.parameters import check_lambda_shape, check_parameter, like
from offtrace.refusals import refuse
from offtrace.returns import checks, corrections, targets
from offtrace.returns.window import Window, real_rows, shape, taken
from offtrace.traces import OneStep, Retrace


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
    """Peng's Q(λ): G_t = r_t + γ_t [(1 − λ) E_π Q(x_{t+1}, ·) + λ G_{t+1}], uncorrected: (n, …).

    Its fixed point is that of λμ + (1−λ)π, not of π (Kozuno et al. 2021). Where the trajectory ends, G_{t+1} is
    E_π Q(x_{t+1}, ·).

    >>> peng_targets(r=np.array([1.0, 2.0]), discount=np.array([0.5, 0.0]), expected_q=np.array([4.0, 9.0]),
    ...              lambda_=0.5)  # 1 + 0.5 (0.5 · 4 + 0.5 · 2)
    array([2.5, 2. ])
    """
    check_parameter("peng_targets", "lambda_", lambda_)
    r, discount, expected_q = _steps(r, discount, q, pi, expected_q, reset, mask, validate)
    xp = namespace(r, expected_q)
    # G_t = r_t + γ_t (v_{t+1} + λ (G_{t+1} − v_{t+1})): Eq. 3 with v in the place of Q(x_{t+1}, a_{t+1})
    before = _previous(xp, expected_q)
    c = _lambdas(lambda_, expected_q)
    delta = corrections(
        q_a=before,
        expected_q=expected_q,
        r=r,
        discount=discount,
        c=c,
        reset=reset,
        mask=mask,
        validate=validate,
    )
    return _finish(delta + before, mask, stop_gradient)


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
    """Uncorrected n-step returns, as in Rainbow and R2D2: Σ_{k<n} γ^k r_{t+k} + γ^n E_π Q(x_{t+n}, ·): (n, …).

    Nothing corrects for the actions in between, so off-policy they are biased. A return that would leave its
    trajectory or the window stops there and bootstraps.

    >>> n_step_targets(num_steps=2, r=np.array([1.0, 2.0, 4.0]), discount=np.full(3, 0.5),
    ...                expected_q=np.array([8.0, 8.0, 8.0]))  # 1 + 0.5 · 2 + 0.25 · 8, …
    array([4., 6., 8.])
    """
    if isinstance(num_steps, bool) or not isinstance(num_steps, int) or num_steps < 1:
        raise ValueError(f"`num_steps` must be a whole number of at least 1; got {num_steps!r}.")
    r, discount, expected_q = _steps(r, discount, q, pi, expected_q, reset, mask, validate)
    xp = namespace(r, expected_q)
    zero = xp.zeros_like(expected_q)
    # One more step is one application of the one-step target to the returns of the next row.
    out = corrections(
        q_a=zero, expected_q=expected_q, r=r, discount=discount, c=zero, reset=reset, mask=mask, validate=False
    )
    goes_on = _goes_on(xp, out, reset, mask)
    for _ in range(min(num_steps, r.shape[0]) - 1):
        ahead = xp.where(goes_on, _following(xp, out), expected_q)
        out = corrections(
            q_a=zero, expected_q=ahead, r=r, discount=discount, c=zero, reset=reset, mask=mask, validate=False
        )
    return _finish(out, mask, stop_gradient)


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
    """V-trace targets of state values, V(x_t) + Δ_t (Espeholt et al. 2018): (n, …).

        Δ_t = min(ρ̄, ρ_t) δ_t + γ_t λ min(c̄, ρ_t) Δ_{t+1},    δ_t = r_t + γ_t V(x_{t+1}) − V(x_t)

    On state values a step's own ratio counts: c_t, not c_{t+1}, and c_0 is read. `v` is (n+1, …); `next_v`
    (n, …) gives each step's true successor where it is not `v[t+1]`.

    >>> vtrace_targets(v=np.array([1.0, 2.0, 0.0]), r=np.array([0.0, 1.0]), discount=np.array([0.5, 0.0]),
    ...                pi_a=np.array([0.2, 0.9]), mu_a=np.array([0.4, 0.3]))  # Δ_1 = 1 − 2, Δ_0 = 0 + 0.25 Δ_1
    array([0.75, 1.  ])
    """
    if (pi_a is None) != (mu_a is None) or (log_pi_a is None) != (log_mu_a is None) or (pi_a is log_pi_a is None):
        raise TypeError("give `pi_a=` and `mu_a=`, or `log_pi_a=` and `log_mu_a=`.")
    for name, value in (("rho_bar", rho_bar), ("c_bar", c_bar)):
        if not value > 0:
            raise ValueError(f"`{name}` must be above 0; got {value}.")
    check_parameter("vtrace_targets", "lambda_", lambda_)
    v, r, discount = _arrays(v, r, discount)
    given = _arrays(pi_a, mu_a) if pi_a is not None else _arrays(log_pi_a, log_mu_a)
    xp = namespace(v, r, *given)
    names = ("pi_a", "mu_a") if pi_a is not None else ("log_pi_a", "log_mu_a")
    window = Window(r, discount, reset=reset, mask=mask, **dict(zip(names, given, strict=True)))
    shape(window)
    if tuple(v.shape) != (r.shape[0] + 1, *r.shape[1:]):
        raise ValueError(f"`v` must have one row more than `r`, {tuple(r.shape)}; got {tuple(v.shape)}.")
    if validate and known(v, next_v, *window):
        checks.check_likelihoods(window, Retrace(), tol=tolerance(*given))
        real = real_rows(window)
        refuse(real & ~xp.isfinite(v[:-1]), "v", "must be finite in every real step", v)
        read = real & (discount != 0)
        if next_v is None:
            checks.check_successors(window)
            refuse(read & ~xp.isfinite(v[1:]), "v", "must be finite after every step that goes on", v[1:])
        else:
            refuse(read & ~xp.isfinite(next_v), "next_v", "must be finite where the discount is not 0", next_v)
    if mask is not None:  # a masked row's likelihoods may hold anything
        given = [xp.where(mask, value, 1) for value in given]
    ratio = given[0] / given[1] if pi_a is not None else xp.exp(given[0] - given[1])
    successor = v[1:] if next_v is None else next_v
    # Δ_t = ρ̄_t δ_t + γ_t c_t Δ_{t+1}: the kernel takes c from the row after, so it is handed one row later
    weight = xp.where(ratio < rho_bar, ratio, rho_bar)
    zero = weight * 0
    delta = weight * corrections(
        q_a=v[:-1],
        expected_q=successor,
        r=r,
        discount=discount,
        c=zero,
        reset=reset,
        mask=mask,
        validate=validate,
    )
    c = _lambdas(lambda_, weight) * xp.where(ratio < c_bar, ratio, c_bar)
    out = corrections(
        q_a=zero,
        expected_q=zero,
        r=delta,
        discount=discount,
        c=_previous(namespace(c), c),
        reset=reset,
        mask=mask,
        validate=False,
    )
    return _finish(out + v[:-1], mask, stop_gradient)


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
    """Retrace towards π_α = α π + (1 − α) μ: longer traces, bought with a bias towards μ: (n, …).

    The target of C-trace (Rowland et al. 2020) for an α that the caller chooses: 1 is Retrace for π, 0 is the
    on-policy Q(λ) for μ. `mu` is the behaviour policy in full, (n+1, …, A).

    >>> half = np.full((2, 2), 0.5)
    >>> c_trace_targets(alpha=0.5, q=np.array([[0.0, 0.0], [4.0, 0.0]]), a=np.array([0]), r=np.array([1.0]),
    ...                 discount=np.array([0.5]), pi=np.eye(2)[[0, 0]], mu=half)  # 1 + 0.5 · 0.75 · 4
    array([2.5])
    """
    check_parameter("c_trace_targets", "alpha", alpha)
    q, a, r, discount, pi, mu = _arrays(q, a, r, discount, pi, mu)
    mixed = alpha * pi + (1 - alpha) * mu
    window = Window(r, discount, q=q, a=a, pi=mu, mask=ends.get("mask"))
    shape(window)
    if known(*window):
        checks.check_actions(window)
        if ends.get("validate", True):
            checks.check_policy(window, "mu", mu, tol=tolerance(mu))
    mu_a = take_action(mu[: r.shape[0]], taken(window))
    return targets(q=q, a=a, r=r, discount=discount, pi=mixed, mu_a=mu_a, trace=Retrace(lambda_), **ends)


def _steps(
    r: Any, discount: Any, q: Any, pi: Any, expected_q: Any, reset: Any, mask: Any, validate: bool
) -> list[Array]:
    """r, discount and E_π Q of every step's successor, checked as `targets` checks them, 0 where it is not read."""
    given = [None if value is None else _arrays(value)[0] for value in (q, pi, expected_q)]
    window = Window(*_arrays(r, discount), q=given[0], pi=given[1], expected_q=given[2], reset=reset, mask=mask)
    if window.expected_q is None and (window.q is None or window.pi is None):
        raise TypeError("give `q=` and `pi=`, or `expected_q=` (the value of each step's true successor).")
    shape(window)
    if validate and known(*window):
        checks.check(window, OneStep(), tol=tolerance(*window))
    expected = expectation(window.q[1:], window.pi[1:]) if window.expected_q is None else window.expected_q
    xp = namespace(*window)
    read = window.discount != 0 if mask is None else mask & (window.discount != 0)
    return [window.r, window.discount, xp.where(read, expected, xp.zeros_like(expected))]


def _arrays(*values: Any) -> list[Array]:
    return [np.asarray(value) if library(value) == "numpy" else value for value in values]


def _lambdas(lambda_: Any, rows: Array) -> Array:
    """λ for every step, in the library of the rows."""
    check_lambda_shape(lambda_, tuple(rows.shape))
    lambda_ = np.asarray(lambda_) if isinstance(lambda_, (list, tuple)) else lambda_
    return lead(like(lambda_, rows), np.ndim(rows)) * namespace(rows).ones_like(rows)


def _previous(xp: Any, rows: Array) -> Array:
    """Row t−1 in row t, and zeros in the first."""
    return xp.concatenate([xp.zeros_like(rows[:1]), rows[:-1]])


def _following(xp: Any, rows: Array) -> Array:
    """Row t+1 in row t, and zeros in the last."""
    return xp.concatenate([rows[1:], xp.zeros_like(rows[:1])])


def _goes_on(xp: Any, rows: Array, reset: Array | None, mask: Array | None) -> Array:
    """True where row t+1 continues row t."""
    begins = xp.zeros_like(rows, dtype=bool)
    if reset is not None:
        begins = begins | reset
    if mask is not None:
        begins = begins | ~mask
    return _following(xp, ~begins)


def _finish(rows: Array, mask: Array | None, stop_gradient: bool) -> Array:
    """0 in rows that are no real step; constants for a gradient, as `targets` gives them."""
    if mask is not None:
        rows = namespace(rows).where(mask, rows, 0)
    return without_gradient(rows) if stop_gradient else rows
