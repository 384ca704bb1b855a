"""The checks of values at the door, for all three array libraries; kernels check nothing.

Each rule makes an array that is True where it is broken, so that one text can name the place and the value.
"""

import warnings
from typing import Any

import numpy as np

from offtrace.arrays import Array, library, namespace, take_action
from offtrace.returns.window import Window, likelihoods, real_rows, taken


class UnsafeTraceWarning(UserWarning):
    """A trace of the user's own leaves [0, π/μ]: Theorem 1 does not cover it."""


TOLERANCE = {"bfloat16": 5e-2, "float16": 1e-2, "float32": 1e-4, "float64": 1e-6}
"""How far off rounding may leave a probability, by the dtype it came in."""


def tolerance(*probabilities: Array) -> float:
    """The widest tolerance among the arrays given."""
    names = (str(p.dtype).removeprefix("torch.") for p in probabilities if p is not None)
    return max((TOLERANCE.get(name, 1e-6) for name in names), default=1e-6)


def check(window: Window, trace: Any, *, tol: float) -> None:
    """Refuses the first broken rule of a window (fault matrix, section A)."""
    xp, real = namespace(window.r), real_rows(window)
    _steps(window, real)
    check_actions(window)
    read = _rows_read(window, real)
    if window.pi is not None:
        _policy(window.pi, read, tol)
    if window.q is not None:
        looked_at = read[..., None] if window.pi is None else read[..., None] & (window.pi != 0)
        if window.expected_q is None:
            bad = looked_at & ~xp.isfinite(window.q)
            _refuse(bad, "q", "must be finite where π > 0", window.q, "")
        if window.q_a is None and window.a is not None:
            values = take_action(window.q[: window.r.shape[0]], taken(window))
            _refuse(real & ~xp.isfinite(values), "q", "must be finite at the actions taken", values, "")
    if window.q_a is not None:
        _refuse(real & ~xp.isfinite(window.q_a), "q_a", "must be finite in every real step", window.q_a, "")
    if window.expected_q is not None:
        bad = real & (window.discount != 0) & ~xp.isfinite(window.expected_q)
        _refuse(bad, "expected_q", "must be finite where the discount is not 0", window.expected_q, "")
    elif window.reset is not None:
        _successors(window, real)
    check_likelihoods(window, trace, tol=tol)


def check_actions(window: Window) -> None:
    """Refused even where checks are off: a wrong index must not wrap, nor read beyond the array."""
    if window.a is None:
        return
    num_actions = next((value.shape[-1] for value in (window.q, window.pi) if value is not None), None)
    beyond = window.a < 0 if num_actions is None else (window.a < 0) | (window.a >= num_actions)
    rule = "must be at least 0" if num_actions is None else f"must be in 0 … {num_actions - 1}"
    _refuse(
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
    _refuse(real & ~xp.isfinite(window.q_a), "q_a", "must be finite in every real step", window.q_a, "")
    bad = real & (window.discount != 0) & ~xp.isfinite(window.expected_q)
    _refuse(bad, "expected_q", "must be finite where the discount is not 0", window.expected_q, "")
    _refuse(_used(window, real) & ~xp.isfinite(c), "c", "must be finite where it is read", c, "")


def check_coefficients(window: Window, trace: Any, c: Array, *, tol: float) -> None:
    """An overflowing ratio is refused; a user's own trace outside [0, π/μ] is told so."""
    xp = namespace(window.r)
    used = _used(window, real_rows(window))
    _refuse(
        used & ~xp.isfinite(c),
        "c",
        "must be finite: π/μ overflows or the trace is not a number",
        c,
        "Check `mu_a`, or use a trace that clips the ratio, such as `ot.Retrace`.",
    )
    if getattr(trace, "name", None) is not None:  # one of ours: the theory is known
        return
    given = likelihoods(window)
    if "pi_a" not in given or "mu_a" not in given:
        return
    outside = used & ((c < 0) | (c * given["mu_a"] > given["pi_a"] * (1 + tol) + tol))
    place = _first(outside)
    if place is not None:
        warnings.warn(
            f"`trace` gave c = {_number(c, place)} where π/μ = "
            f"{_number(given['pi_a'], place) / _number(given['mu_a'], place):.6g} ({_where(place)}): outside "
            "[0, π/μ] Theorem 1 no longer holds, and the operator may not contract.",
            UnsafeTraceWarning,
            stacklevel=4,
        )


def _steps(window: Window, real: Array) -> None:
    xp = namespace(window.r)
    remedy = "Mark rows that are no real step with `mask=False`."
    _refuse(real & ~xp.isfinite(window.r), "r", "must be finite in every real step", window.r, remedy)
    inside = (window.discount >= 0) & (window.discount <= 1)
    remedy = "It is γ, and 0 where the step terminated."
    _refuse(real & ~inside, "discount", "must be in [0, 1] in every real step", window.discount, remedy)


def _rows_read(window: Window, real: Array) -> Array:
    """(n+1, …): rows of q and π that are read, as a step's own or as the successor of the row before."""
    xp = namespace(window.r)
    nothing = xp.zeros_like(real[:1]) if real.shape[0] else xp.zeros((1, *real.shape[1:]), dtype=bool)
    successor = real & (window.discount != 0)
    stack = xp.concatenate
    return stack([real, nothing]) | stack([nothing, successor])


def _used(window: Window, real: Array) -> Array:
    """(n, …): rows whose c is read: real, not the first, not the start of an episode."""
    xp = namespace(window.r)
    used = real if window.reset is None else real & ~window.reset
    return xp.concatenate([xp.zeros_like(used[:1]), used[1:]]) if used.shape[0] else used


def _policy(pi: Array, read: Array, tol: float) -> None:
    hint = "Logarithms go in as `log_pi_a=`." if bool((pi < -1).any()) else ""
    _refuse(read[..., None] & ~(pi >= -tol), "pi", "must be probabilities, at least 0", pi, hint)
    _refuse(read[..., None] & ~(pi <= 1 + tol), "pi", "must be probabilities, at most 1", pi, hint)
    sums = pi.sum(-1)
    off = read & ~(abs(sums - 1) <= tol)
    _refuse(off, "pi", "must sum to 1 over the actions", sums, "Normalise it.", what="the row sums to")


def _successors(window: Window, real: Array) -> None:
    """Same-step autoreset: the row after a truncation is already another episode, not the successor."""
    xp = namespace(window.r)
    starts = (real & window.reset)[1:]
    crossing = starts & real[:-1] & (window.discount[:-1] != 0)
    bad = xp.concatenate([crossing, xp.zeros_like(real[:1])]) if real.shape[0] else real
    _refuse(
        bad,
        "discount",
        "must be 0 before a row with `reset`, unless `expected_q` is given: `q[t+1]` belongs to another episode",
        window.discount,
        "Give `expected_q` from the truncated episode's last observation.",
    )


def check_likelihoods(window: Window, trace: Any, *, tol: float) -> None:
    """π(a_t|x_t) and μ(a_t|x_t) of the real steps, where the trace reads them."""
    xp, real = namespace(window.r), real_rows(window)
    if window.pi_a is not None:
        inside = (window.pi_a >= -tol) & (window.pi_a <= 1 + tol)
        remedy = "Logarithms and densities go in as `log_pi_a=`."
        _refuse(real & ~inside, "pi_a", "must be a probability in [0, 1]", window.pi_a, remedy)
    if window.log_pi_a is not None:
        bad = real & ~(window.log_pi_a < np.inf)
        _refuse(bad, "log_pi_a", "must be a number below +inf", window.log_pi_a, "")
        if getattr(trace, "name", None) in ("tree_backup", "q_sigma"):
            bad = real & (window.log_pi_a > tol)
            remedy = "This trace needs probabilities; for continuous actions use `ot.Retrace`."
            _refuse(bad, "log_pi_a", "must be at most 0, a density is no probability", window.log_pi_a, remedy)
    if not getattr(trace, "needs_mu", True):
        return
    if window.mu_a is not None:
        remedy = "It is the probability with which a_t was drawn; no action taken can have had 0."
        _refuse(real & (window.mu_a == 0), "mu_a", "must be above 0 on every action taken", window.mu_a, remedy)
        inside = (window.mu_a > 0) & (window.mu_a <= 1 + tol)
        remedy = "Logarithms and densities go in as `log_mu_a=`."
        _refuse(real & ~inside, "mu_a", "must be a probability in (0, 1]", window.mu_a, remedy)
    if window.log_mu_a is not None:
        bad = real & ~xp.isfinite(window.log_mu_a)
        remedy = "No action taken can have had density 0."
        _refuse(bad, "log_mu_a", "must be finite on every action taken", window.log_mu_a, remedy)


def _refuse(bad: Array, name: str, rule: str, values: Array, remedy: str, *, what: str = "got") -> None:
    place = _first(bad)
    if place is not None:
        text = f"`{name}` {rule}; {what} {_number(values, place):.6g} at {_where(place)}."
        raise ValueError(f"{text} {remedy}".rstrip())


def _first(bad: Array) -> tuple[int, ...] | None:
    if not bool(bad.any()):
        return None
    host = bad.detach().cpu().numpy() if library(bad) == "torch" else np.asarray(bad)
    return tuple(int(i) for i in np.argwhere(host)[0])


def _number(values: Array, place: tuple[int, ...]) -> float:
    return float(values[place])


def _where(place: tuple[int, ...]) -> str:
    rest = ", ".join(map(str, place[1:]))
    return f"t = {place[0]}" + (f", [{rest}]" if rest else "")
