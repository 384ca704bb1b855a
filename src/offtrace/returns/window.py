"""What comes in at the door: the arrays of one window, their shapes, and what follows from them.

row        0        1              n−1       n
state     x_0 ──▶  x_1 ──▶ … ──▶ x_{n−1} ──▶ x_n        q, pi: n+1 rows
action    a_0      a_1            a_{n−1}               a, r, discount, mu_a, reset, mask: n rows
"""

from typing import Any, NamedTuple

import numpy as np

from offtrace.arrays import Array, namespace, take_action
from offtrace.likelihoods import Likelihoods, log
from offtrace.parameters import check_lambda_shape
from offtrace.traces import Trace


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
    """(n, batch axes, A), after checking that everything fits together; A is 0 where no array has actions."""
    steps = tuple(window.r.shape)
    if not steps:
        raise ValueError("`r` must have a time axis, shape (n, …); got a single number.")
    num_actions = 0
    for name, value in zip(window._fields, window, strict=True):
        if value is None:
            continue
        got = tuple(value.shape)
        if name not in WITH_ACTIONS:
            if got != steps:
                hint = "It is `gamma * (1 - terminated)`. " if name == "discount" and not got else ""
                raise ValueError(
                    f"`{name}` must have the shape of `r`, {steps}; got {got}. {hint}{_all_shapes(window)}"
                )
            continue
        if len(got) != len(steps) + 1 or got[:-1] != (steps[0] + 1, *steps[1:]):
            wanted = ", ".join(map(str, (steps[0] + 1, *steps[1:])))
            swapped = len(steps) > 1 and got[:2] == (steps[0], steps[1] + 1)
            hint = "Batch-major? Time comes first: swap axes 0 and 1. " if swapped else ""
            raise ValueError(
                f"`{name}` must have one row more than `r` and the actions on its last axis, "
                f"({wanted}, A); got {got}. {hint}{_all_shapes(window)}"
            )
        if num_actions and got[-1] != num_actions:
            raise ValueError(f"`q` and `pi` must have the same number of actions. {_all_shapes(window)}")
        num_actions = got[-1]
    if (window.q is not None or window.pi is not None) and num_actions == 0:
        raise ValueError(f"`q` and `pi` must have at least one action. {_all_shapes(window)}")
    return steps[0], steps[1:], num_actions


def _all_shapes(window: Window) -> str:
    given = ((name, value) for name, value in zip(window._fields, window, strict=True) if value is not None)
    return "All shapes: " + ", ".join(f"{name} {tuple(value.shape)}" for name, value in given) + "."


def require(window: Window, trace: Any) -> None:
    """Everything that this trace reads is given, or follows from what is given."""
    if window.expected_q is None and (window.q is None or window.pi is None):
        raise TypeError("give `q=` and `pi=`, or `expected_q=` (the value of each step's true successor).")
    if window.q_a is None and (window.q is None or window.a is None):
        raise TypeError("give `q=` and `a=`, or `q_a=` (the values of the actions taken).")
    check_trace(trace)
    check_lambda_shape(getattr(trace, "lambda_", 0.0), tuple(window.r.shape))
    name = getattr(trace, "name", "this trace")
    known = window.pi_a is not None or window.log_pi_a is not None
    if getattr(trace, "needs_pi", True) and not known and (window.pi is None or window.a is None):
        raise TypeError(f"{name} needs π(a_t|x_t): give `pi=` and `a=`, or `pi_a=`, or `log_pi_a=`.")
    if getattr(trace, "needs_mu", False) and window.mu_a is None and window.log_mu_a is None:
        raise TypeError(f"{name} needs μ(a_t|x_t): give `mu_a=` (or `log_mu_a=`), written down when a_t was drawn.")
    if getattr(trace, "needs_q", False) and (window.q is None or window.pi is None or window.a is None):
        raise TypeError(f"{name} has to know what is greedy: give `q=`, `pi=` and `a=`.")


def check_trace(trace: Any) -> None:
    if isinstance(trace, str):
        raise TypeError(f"`trace` must be a trace, not its name: use `ot.trace({trace!r}, lambda_=…)`.")
    if isinstance(trace, type):
        raise TypeError(f"`trace` must be a value, not a class: use `ot.{trace.__name__}(lambda_=…)`.")
    if not callable(trace):
        raise TypeError(f"`trace` must be a trace such as `ot.Retrace(0.9)`, or any callable; got {trace!r}.")


def real_rows(window: Window) -> Array:
    """True where row t is a real step."""
    return namespace(window.r).ones_like(window.r, dtype=bool) if window.mask is None else window.mask


def rows_read(window: Window) -> Array:
    """(n+1, …): rows of q and π that are read, as a step's own or as the successor of the row before."""
    xp, real = namespace(window.r), real_rows(window)
    nothing = xp.zeros_like((window.pi if window.q is None else window.q)[:1, ..., 0], dtype=bool)
    return xp.concatenate([real, nothing]) | xp.concatenate([nothing, real & (window.discount != 0)])


def without_rows_unread(window: Window) -> Window:
    """The same window with zeros in rows of q and π that are not read: what they hold must not reach a gradient."""
    if window.q is None and window.pi is None:
        return window
    xp, read = namespace(window.r), rows_read(window)[..., None]
    q, pi = (None if value is None else xp.where(read, value, 0) for value in (window.q, window.pi))
    return window._replace(q=q, pi=pi)


def taken(window: Window) -> Array:
    """The actions, with a harmless one in rows that are no real step (whatever they hold is never read)."""
    return window.a if window.mask is None else namespace(window.a).where(window.mask, window.a, 0)


def value_of_taken(window: Window) -> Array:
    """Q(x_t, a_t): (n, …)."""
    return window.q_a if window.q_a is not None else take_action(window.q[: window.r.shape[0]], taken(window))


def likelihoods(window: Window) -> Likelihoods:
    """π(a_t|x_t) and μ(a_t|x_t) as traces read them, with harmless values in rows that are no real step."""
    xp = namespace(window.r)
    pi_a: Array = window.pi_a
    mu_a, log_pi_a, log_mu_a = window.mu_a, window.log_pi_a, window.log_mu_a
    if pi_a is None and log_pi_a is None:
        if window.pi is None or window.a is None:
            pi_a = xp.ones_like(window.r)  # for a trace that does not look at π
        else:
            pi_a = take_action(window.pi[: window.r.shape[0]], taken(window))
    if window.mask is not None:
        pi_a, mu_a = (None if v is None else xp.where(window.mask, v, 1) for v in (pi_a, mu_a))
        log_pi_a, log_mu_a = (None if v is None else xp.where(window.mask, v, 0) for v in (log_pi_a, log_mu_a))
    if pi_a is not None and mu_a is None and log_mu_a is not None:
        log_pi_a, pi_a = xp.where(pi_a > 0, log(xp, pi_a), -np.inf), None
    elif log_pi_a is not None and log_mu_a is None and mu_a is not None:
        log_mu_a, mu_a = xp.log(mu_a), None
    return Likelihoods(xp, pi_a, mu_a, log_pi_a, log_mu_a)


def coefficients(window: Window, trace: Any) -> Array:
    """c, (n, …), from any Markov trace or a user's callable."""
    given = likelihoods(window)
    needs_q = getattr(trace, "needs_q", False)
    extra = {"q": window.q, "pi": window.pi, "a": taken(window)} if needs_q else {}
    if isinstance(trace, Trace):
        return trace.coefficients(given, **({"q": None, "pi": None, "a": None} | extra))
    inputs = {name: value for name, value in given._asdict().items() if name != "xp" and value is not None}
    try:
        return trace(**inputs, **extra)
    except TypeError as error:
        if "argument" not in str(error):
            raise
        called = ", ".join(f"{name}=" for name in (*inputs, *extra))
        raise TypeError(f"`trace` is called with {called}; it must take these names. ({error})") from error
