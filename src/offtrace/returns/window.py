"""The arrays of one window: their shapes, what is required, and what is derived from them.

row        0        1              n−1       n
state     x_0 ──▶  x_1 ──▶ … ──▶ x_{n−1} ──▶ x_n        q, pi: n+1 rows
action    a_0      a_1            a_{n−1}               a, r, discount, mu_a, reset, mask: n rows
"""

from typing import NamedTuple

import numpy as np

from offtrace.arrays import Array, namespace, take_action
from offtrace.likelihoods import Likelihoods, safe_log
from offtrace.traces import Trace
from offtrace.traces.parameters import check_lambda_shape


class Window(NamedTuple):
    """The arguments of `targets`, by name; None where they were not given."""

    r: Array
    discount: Array
    q: Array = None
    a: Array = None
    pi: Array = None
    mu_a: Array = None
    q_a: Array = None
    expected_q: Array = None
    pi_a: Array = None
    log_pi_a: Array = None
    log_mu_a: Array = None
    reset: Array = None
    mask: Array = None


INTEGER = ("a",)
BOOLEAN = ("reset", "mask")
WITH_ACTIONS = ("q", "pi")


def shape(window: Window) -> tuple[int, tuple[int, ...], int]:
    """Return (n, batch axes, A) after checking that all shapes fit together; A is 0 without `q` and `pi`."""
    steps = tuple(window.r.shape)
    if not steps:
        raise ValueError("`r` must have a time axis, shape (n, …); got a single number.")
    num_actions = 0
    for name, value in zip(window._fields, window, strict=True):
        if value is None:
            continue
        got = tuple(value.shape)
        if name in WITH_ACTIONS:
            _check_rows_of_actions(window, name, got, steps)
            if num_actions and got[-1] != num_actions:
                raise ValueError(f"`q` and `pi` must have the same number of actions. {_all_shapes(window)}")
            num_actions = got[-1]
        elif got != steps:
            hint = "It is `gamma * (1 - terminated)`. " if name == "discount" and not got else ""
            raise ValueError(f"`{name}` must have the shape of `r`, {steps}; got {got}. {hint}{_all_shapes(window)}")
    if (window.q is not None or window.pi is not None) and num_actions == 0:
        raise ValueError(f"`q` and `pi` must have at least one action. {_all_shapes(window)}")
    return steps[0], steps[1:], num_actions


def _check_rows_of_actions(window: Window, name: str, got: tuple[int, ...], steps: tuple[int, ...]) -> None:
    """Check the shape of `q` or `pi`, (n+1, …, A)."""
    if len(got) == len(steps) + 1 and got[:-1] == (steps[0] + 1, *steps[1:]):
        return
    wanted = ", ".join(map(str, (steps[0] + 1, *steps[1:])))
    is_batch_major = len(steps) > 1 and got[:2] == (steps[0], steps[1] + 1)
    hint = "Batch-major? Time comes first: swap axes 0 and 1. " if is_batch_major else ""
    raise ValueError(
        f"`{name}` must have one row more than `r` and the actions on its last axis, "
        f"({wanted}, A); got {got}. {hint}{_all_shapes(window)}"
    )


def _all_shapes(window: Window) -> str:
    given = ((name, value) for name, value in zip(window._fields, window, strict=True) if value is not None)
    return "All shapes: " + ", ".join(f"{name} {tuple(value.shape)}" for name, value in given) + "."


def check_given(window: Window, trace: Trace) -> None:
    """Check that everything this trace reads is given, or follows from what is given."""
    if window.expected_q is None and (window.q is None or window.pi is None):
        raise TypeError("give `q=` and `pi=`, or `expected_q=` (the value of each step's true successor).")
    if window.q_a is None and (window.q is None or window.a is None):
        raise TypeError("give `q=` and `a=`, or `q_a=` (the values of the actions taken).")
    check_lambda_shape(trace.lambda_, tuple(window.r.shape))
    has_pi_a = window.pi_a is not None or window.log_pi_a is not None
    if trace.needs_pi and not has_pi_a and (window.pi is None or window.a is None):
        raise TypeError(f"{trace.name} needs π(a_t|x_t): give `pi=` and `a=`, or `pi_a=`, or `log_pi_a=`.")
    if trace.needs_mu and window.mu_a is None and window.log_mu_a is None:
        raise TypeError(
            f"{trace.name} needs μ(a_t|x_t): give `mu_a=` (or `log_mu_a=`), as it was when a_t was drawn."
        )
    if trace.needs_q and (window.q is None or window.pi is None or window.a is None):
        raise TypeError(f"{trace.name} reads the action values: give `q=`, `pi=` and `a=`.")


def real_rows(window: Window) -> Array:
    """Return True where row t is a real step: `mask`, or True everywhere."""
    if window.mask is None:
        return namespace(window.r).ones_like(window.r, dtype=bool)
    return window.mask


def rows_read(window: Window) -> Array:
    """Return (n+1, …): True for the rows of q and π that are read.

    A row is read if its own step is real, or as the successor of a real step before it:

        mask        1     1     0     1                    own step        1  1  0  1  ·
        discount    γ     0     γ     γ                    as successor    ·  1  0  0  1
    """
    xp = namespace(window.r)
    real = real_rows(window)
    template = window.pi if window.q is None else window.q
    nothing = xp.zeros_like(template[:1, ..., 0], dtype=bool)
    own = xp.concatenate([real, nothing])
    as_successor = xp.concatenate([nothing, real & (window.discount != 0)])
    return own | as_successor


def without_unread_rows(window: Window) -> Window:
    """Return the window with zeros in the rows of q and π that are not read, so they cannot reach a gradient."""
    if window.q is None and window.pi is None:
        return window
    xp = namespace(window.r)
    read = rows_read(window)[..., None]
    q, pi = (None if value is None else xp.where(read, value, 0) for value in (window.q, window.pi))
    return window._replace(q=q, pi=pi)


def actions_taken(window: Window) -> Array:
    """Return the actions, with action 0 in masked rows, whose own is never read."""
    if window.mask is None:
        return window.a
    return namespace(window.a).where(window.mask, window.a, 0)


def value_of_taken(window: Window) -> Array:
    """Return Q(x_t, a_t): (n, …)."""
    if window.q_a is not None:
        return window.q_a
    return take_action(window.q[: window.r.shape[0]], actions_taken(window))


def likelihoods_of(window: Window) -> Likelihoods:
    """Return π(a_t|x_t) and μ(a_t|x_t) as traces read them, with probability 1 in masked rows."""
    xp = namespace(window.r)
    pi_a: Array = window.pi_a
    mu_a = window.mu_a
    log_pi_a = window.log_pi_a
    log_mu_a = window.log_mu_a
    if pi_a is None and log_pi_a is None:
        if window.pi is None or window.a is None:
            pi_a = xp.ones_like(window.r)  # for a trace that does not read π
        else:
            pi_a = take_action(window.pi[: window.r.shape[0]], actions_taken(window))
    if window.mask is not None:
        pi_a, mu_a = (None if v is None else xp.where(window.mask, v, 1) for v in (pi_a, mu_a))
        log_pi_a, log_mu_a = (None if v is None else xp.where(window.mask, v, 0) for v in (log_pi_a, log_mu_a))
    # One of each kind: both become logarithms.
    if pi_a is not None and mu_a is None and log_mu_a is not None:
        log_pi_a = xp.where(pi_a > 0, safe_log(xp, pi_a), -np.inf)
        pi_a = None
    elif log_pi_a is not None and log_mu_a is None and mu_a is not None:
        log_mu_a = xp.log(mu_a)
        mu_a = None
    return Likelihoods(xp, pi_a, mu_a, log_pi_a, log_mu_a)


def coefficients(window: Window, trace: Trace) -> Array:
    """Return c, (n, …), of a Markov trace."""
    given = likelihoods_of(window)
    if not trace.reads_q:
        return trace.coefficients(given, q=None, pi=None, a=None)
    a = None if window.a is None else actions_taken(window)
    return trace.coefficients(given, q=window.q, pi=window.pi, a=a)
