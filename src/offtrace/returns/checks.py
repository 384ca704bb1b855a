"""The checks of values at the door, for all three array libraries; kernels check nothing.

Each rule makes an array that is True where it is broken, so that one text can name the place and the value.
"""

import sys
import warnings
from typing import Any

from offtrace import likelihoods
from offtrace.arrays import Array, namespace, take_action
from offtrace.likelihoods import Likelihoods
from offtrace.refusals import first, number, refuse, where
from offtrace.returns.window import Window, real_rows, rows_read, taken
from offtrace.returns.window import likelihoods as likelihoods_of
from offtrace.traces import TRACES


class UnsafeTraceWarning(UserWarning):
    """A trace of the user's own leaves [0, π/μ]: Theorem 1 does not cover it."""


def check(window: Window, trace: Any, *, tol: float) -> None:
    """Raise for the first broken rule of a window (`docs/reliability.md` lists them)."""
    xp, real = namespace(window.r), real_rows(window)
    _steps(window, real)
    check_actions(window)
    if window.pi is not None:
        check_policy(window, "pi", window.pi, tol=tol)
    if window.q is not None:
        if window.expected_q is None:
            read = rows_read(window)[..., None]
            read = read if window.pi is None else read & (window.pi != 0)
            remedy = "Where an action is not there, π is 0 and Q may be anything."
            refuse(read & ~xp.isfinite(window.q), "q", "must be finite where π > 0", window.q, remedy)
        if window.q_a is None and window.a is not None:
            values = take_action(window.q[: window.r.shape[0]], taken(window))
            refuse(real & ~xp.isfinite(values), "q", "must be finite at the actions taken", values)
    if window.q_a is not None:
        refuse(real & ~xp.isfinite(window.q_a), "q_a", "must be finite in every real step", window.q_a, "")
    if window.expected_q is not None:
        bad = real & (window.discount != 0) & ~xp.isfinite(window.expected_q)
        refuse(bad, "expected_q", "must be finite where the discount is not 0", window.expected_q, "")
    else:
        check_successors(window)
    check_likelihoods(window, trace, tol=tol)


def check_actions(window: Window) -> None:
    """Refused even where checks are off: a wrong index must not wrap, nor read beyond the array."""
    if window.a is None:
        return
    num_actions = next((value.shape[-1] for value in (window.q, window.pi) if value is not None), None)
    beyond = window.a < 0 if num_actions is None else (window.a < 0) | (window.a >= num_actions)
    rule = "must be at least 0" if num_actions is None else f"must be in 0 … {num_actions - 1}"
    refuse(
        real_rows(window) & beyond,
        "a",
        f"{rule} in every real step",
        window.a,
        "Mark rows that are no real step with `mask=False`.",
    )


def check_steps(window: Window, c: Array) -> None:
    """The checks of `corrections`."""
    xp, real = namespace(window.r), real_rows(window)
    _steps(window, real)
    refuse(real & ~xp.isfinite(window.q_a), "q_a", "must be finite in every real step", window.q_a, "")
    bad = real & (window.discount != 0) & ~xp.isfinite(window.expected_q)
    refuse(bad, "expected_q", "must be finite where the discount is not 0", window.expected_q, "")
    refuse(_used(window, real) & ~xp.isfinite(c), "c", "must be finite where it is read", c, "")


def check_coefficients(window: Window, trace: Any, c: Array, *, tol: float) -> None:
    """An overflowing ratio is refused; a user's own trace outside [0, π/μ] is told so."""
    xp = namespace(window.r)
    used = _used(window, real_rows(window))
    refuse(
        used & ~xp.isfinite(c),
        "c",
        "must be finite: π/μ overflows or the trace is not a number",
        c,
        "Check `mu_a`, or use a trace that clips the ratio, such as `ot.Retrace`.",
    )
    if type(trace) in TRACES.values():  # the theory is known
        return
    given = likelihoods_of(window)
    if given.mu_a is None and given.log_mu_a is None:
        return
    ratio = given.ratio()
    outside = used & ((c < 0) | (c > ratio * (1 + tol) + tol))
    place = first(outside)
    if place is not None:
        warnings.warn(
            f"`trace` gave c = {number(c, place):.6g} where π/μ = {number(ratio, place):.6g}, at {where(place)}: "
            "outside [0, π/μ] Theorem 1 no longer holds, and the operator may not contract.",
            UnsafeTraceWarning,
            stacklevel=_outside_the_package(),
        )


def _outside_the_package() -> int:
    """The stack level of the line that called offtrace."""
    frame, level = sys._getframe(1), 1
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "offtrace":
        frame, level = frame.f_back, level + 1
    return level


def _steps(window: Window, real: Array) -> None:
    xp = namespace(window.r)
    remedy = "Mark rows that are no real step with `mask=False`."
    refuse(real & ~xp.isfinite(window.r), "r", "must be finite in every real step", window.r, remedy)
    inside = (window.discount >= 0) & (window.discount <= 1)
    remedy = "It is γ, and 0 where the step terminated."
    refuse(real & ~inside, "discount", "must be in [0, 1] in every real step", window.discount, remedy)


def _used(window: Window, real: Array) -> Array:
    """(n, …): rows whose c is read: real, not the first, not the start of an episode."""
    xp = namespace(window.r)
    used = real if window.reset is None else real & ~window.reset
    return xp.concatenate([xp.zeros_like(used[:1]), used[1:]]) if used.shape[0] else used


def check_policy(window: Window, name: str, pi: Array, *, tol: float) -> None:
    """The rows of a policy that are read, as a step's own or as its successor's, are distributions."""
    read = rows_read(window)
    hint = "Logarithms go in as `log_pi_a=`."
    refuse(read[..., None] & ~(pi >= -tol), name, "must be probabilities, at least 0", pi, hint)
    refuse(read[..., None] & ~(pi <= 1 + tol), name, "must be probabilities, at most 1", pi)
    sums = pi.sum(-1)
    off = read & ~(abs(sums - 1) <= tol)
    refuse(off, name, "must sum to 1 over the actions", sums, "Normalise it.", what="the row sums to")


def check_successors(window: Window) -> None:
    """Same-step autoreset: the row after a truncation is already another episode, not the successor."""
    if window.reset is None or window.r.shape[0] < 2:
        return
    real = real_rows(window)
    crossing = (real & window.reset)[1:] & real[:-1] & (window.discount[:-1] != 0)
    refuse(
        crossing,
        "discount",
        "must be 0 before a row with `reset`, unless the value of the true successor is given: row t+1 is another "
        "episode's",
        window.discount,
        "Give `expected_q` (`next_v` for V-trace) from the truncated episode's last observation.",
    )


def check_result(window: Window, out: Array) -> None:
    """Numbers that were all fine can still grow beyond what the dtype holds."""
    bad = real_rows(window) & ~namespace(out).isfinite(out)
    refuse(bad, "targets", f"overflow {out.dtype}", out, "Check for huge ratios, or use a trace that clips them.")


def check_likelihoods(window: Window, trace: Any, *, tol: float) -> None:
    """π(a_t|x_t) and μ(a_t|x_t) of the real steps, where the trace reads them."""
    real = real_rows(window)
    given = Likelihoods(namespace(window.r), window.pi_a, window.mu_a, window.log_pi_a, window.log_mu_a)
    likelihoods.check(given, real=real, needs_mu=getattr(trace, "needs_mu", True), tol=tol)
    if window.log_pi_a is not None and getattr(trace, "name", None) in ("tree_backup", "q_sigma"):
        remedy = "This trace needs probabilities; for continuous actions use `ot.Retrace`."
        rule = "must be at most 0, a density is no probability"
        refuse(real & (window.log_pi_a > tol), "log_pi_a", rule, window.log_pi_a, remedy)
