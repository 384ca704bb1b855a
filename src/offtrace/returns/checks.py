"""Input checks of the values in a window, for all three array libraries; kernels check nothing.

Each rule is an array that is True where it is broken, so the error can name the place and the value.
"""

import sys
import warnings

from offtrace import likelihoods
from offtrace.arrays import Array, namespace, take_action
from offtrace.errors import first_place, place_in_words, raise_where, value_at
from offtrace.likelihoods import Likelihoods
from offtrace.returns.window import Window, actions_taken, likelihoods_of, real_rows, rows_read
from offtrace.traces import TRACES, Trace


class UnsafeTraceWarning(UserWarning):
    """A user's own trace has a c outside [0, π/μ]: Theorem 1 does not cover it."""


def check(window: Window, trace: Trace, *, tol: float) -> None:
    """Check every value of a window that this trace reads; raise at the first broken rule."""
    xp = namespace(window.r)
    real = real_rows(window)
    _check_rewards_and_discounts(window, real)
    check_actions(window)
    if window.pi is not None:
        check_policy(window, "pi", window.pi, tol=tol)
    if window.q is not None:
        if window.expected_q is None:
            read = rows_read(window)[..., None]
            if window.pi is not None:
                read = read & (window.pi != 0)
            remedy = "For an illegal action set π to 0; Q may then be anything."
            raise_where(read & ~xp.isfinite(window.q), "q", "must be finite where π > 0", window.q, remedy)
        if window.q_a is None and window.a is not None:
            values = take_action(window.q[: window.r.shape[0]], actions_taken(window))
            raise_where(real & ~xp.isfinite(values), "q", "must be finite at the actions taken", values)
    if window.q_a is not None:
        raise_where(real & ~xp.isfinite(window.q_a), "q_a", "must be finite in every real step", window.q_a, "")
    if window.expected_q is not None:
        bad = real & (window.discount != 0) & ~xp.isfinite(window.expected_q)
        raise_where(bad, "expected_q", "must be finite where the discount is not 0", window.expected_q, "")
    else:
        check_successors(window)
    check_likelihoods(window, trace, tol=tol)


def check_actions(window: Window) -> None:
    """Check the actions, even with `validate=False`: an index must not wrap, nor read beyond the array."""
    if window.a is None:
        return
    beyond = window.a < 0
    rule = "must be at least 0"
    num_actions = next((value.shape[-1] for value in (window.q, window.pi) if value is not None), None)
    if num_actions is not None:
        beyond = beyond | (window.a >= num_actions)
        rule = f"must be in 0 … {num_actions - 1}"
    raise_where(real_rows(window) & beyond, "a", f"{rule} in every real step", window.a, MASK_THEM)


def check_steps(window: Window, c: Array) -> None:
    """Check the input of `corrections`."""
    xp = namespace(window.r)
    real = real_rows(window)
    _check_rewards_and_discounts(window, real)
    raise_where(real & ~xp.isfinite(window.q_a), "q_a", "must be finite in every real step", window.q_a, "")
    bad = real & (window.discount != 0) & ~xp.isfinite(window.expected_q)
    raise_where(bad, "expected_q", "must be finite where the discount is not 0", window.expected_q, "")
    raise_where(_used(window, real) & ~xp.isfinite(c), "c", "must be finite where it is read", c, "")


def check_coefficients(window: Window, trace: Trace, c: Array, *, tol: float) -> None:
    """Raise if c is not finite; warn if a user's own trace leaves [0, π/μ]."""
    xp = namespace(window.r)
    used = _used(window, real_rows(window))
    raise_where(
        used & ~xp.isfinite(c),
        "c",
        "must be finite: π/μ overflows or the trace is not a number",
        c,
        "Check `mu_a`, or use a trace that clips the ratio, such as `ot.Retrace`.",
    )
    if type(trace) in TRACES.values():  # the theory of these is known
        return
    given = likelihoods_of(window)
    if given.mu_a is None and given.log_mu_a is None:
        return
    ratio = given.ratio()
    outside = used & ((c < 0) | (c > ratio * (1 + tol) + tol))
    place = first_place(outside)
    if place is not None:
        warnings.warn(
            f"`trace` gave c = {value_at(c, place):.6g} where π/μ = {value_at(ratio, place):.6g}, at "
            f"{place_in_words(place)}: outside [0, π/μ] Theorem 1 does not hold, and the operator may not contract.",
            UnsafeTraceWarning,
            stacklevel=_outside_the_package(),
        )


def _outside_the_package() -> int:
    """Return the stack level of the line that called offtrace."""
    frame, level = sys._getframe(1), 1
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "offtrace":
        frame, level = frame.f_back, level + 1
    return level


MASK_THEM = "Mark rows that are not real steps with `mask=False`."


def _check_rewards_and_discounts(window: Window, real: Array) -> None:
    xp = namespace(window.r)
    raise_where(real & ~xp.isfinite(window.r), "r", "must be finite in every real step", window.r, MASK_THEM)
    inside = (window.discount >= 0) & (window.discount <= 1)
    remedy = "It is γ, and 0 where the step terminated."
    raise_where(real & ~inside, "discount", "must be in [0, 1] in every real step", window.discount, remedy)


def _used(window: Window, real: Array) -> Array:
    """Return (n, …): True where c is read: real steps, except the first row and the starts of episodes."""
    xp = namespace(window.r)
    used = real if window.reset is None else real & ~window.reset
    if used.shape[0] == 0:
        return used
    return xp.concatenate([xp.zeros_like(used[:1]), used[1:]])


def check_policy(window: Window, name: str, pi: Array, *, tol: float) -> None:
    """Check that every row of a policy that is read is a distribution."""
    read = rows_read(window)
    hint = "For logits or logarithms, pass their softmax."
    raise_where(read[..., None] & ~(pi >= -tol), name, "must be probabilities, at least 0", pi, hint)
    raise_where(read[..., None] & ~(pi <= 1 + tol), name, "must be probabilities, at most 1", pi, hint)
    sums = pi.sum(-1)
    off = read & ~(abs(sums - 1) <= tol)
    raise_where(off, name, "must sum to 1 over the actions", sums, "Normalise it.", verb="the row sums to")


def check_successors(window: Window) -> None:
    """Check that no step bootstraps from another episode's first row, as same-step autoreset would have it."""
    if window.reset is None or window.r.shape[0] < 2:
        return
    real = real_rows(window)
    crossing = (real & window.reset)[1:] & real[:-1] & (window.discount[:-1] != 0)
    raise_where(
        crossing,
        "discount",
        "must be 0 before a row with `reset`, unless the value of the true successor is given: row t+1 belongs to "
        "another episode",
        window.discount,
        "Give `expected_q` (`next_v` for V-trace) from the truncated episode's last observation.",
    )


def check_result(window: Window, out: Array) -> None:
    """Check that the targets are finite: valid inputs can still overflow the dtype."""
    bad = real_rows(window) & ~namespace(out).isfinite(out)
    raise_where(
        bad, "targets", f"overflow {out.dtype}", out, "Check for huge ratios, or use a trace that clips them."
    )


def check_likelihoods(window: Window, trace: Trace, *, tol: float) -> None:
    """Check π(a_t|x_t) and μ(a_t|x_t) of the real steps, where the trace reads them."""
    real = real_rows(window)
    given = Likelihoods(namespace(window.r), window.pi_a, window.mu_a, window.log_pi_a, window.log_mu_a)
    likelihoods.check_likelihoods(given, real=real, reads_mu=trace.reads_mu, tol=tol)
    if window.log_pi_a is not None and not trace.takes_densities:
        remedy = f"{trace.name} needs probabilities; for continuous actions use `ot.Retrace`."
        rule = "must be at most 0, the logarithm of a probability and not of a density"
        raise_where(real & (window.log_pi_a > tol), "log_pi_a", rule, window.log_pi_a, remedy)
