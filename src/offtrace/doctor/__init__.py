"""Checks whether your Retrace is right: it is called on small windows, and its mistakes are named.

print(ot.doctor.check(my_retrace))
"""

from collections.abc import Callable
from typing import Any

from offtrace.doctor.diagnosis import attempts, diagnose
from offtrace.doctor.mistakes import MISTAKES, Mistake
from offtrace.doctor.recursion import NOT_TRACES
from offtrace.doctor.verdict import Verdict
from offtrace.traces import check_name

__all__ = ["MISTAKES", "Mistake", "Verdict", "check"]


def check(
    fn: Callable[..., Any],
    *,
    convention: str | Callable[[Callable[..., Any], Any], Any] | None = None,
    trace: str | None = None,
    lambda_: float | None = None,
) -> Verdict:
    """Run your multi-step off-policy target on small windows, and return a verdict.

    If it is right, the verdict says which trace, which λ and which convention it is. Otherwise it
    names the known mistake, with the smallest window that shows it. If no known mistake fits, it
    says which terms are wrong, or which inputs have an effect they should not have.

    Args:
        fn: Your function. How to call it is found from the names of its parameters and by trying. A
            function of one parameter called `window` is called with each window itself.
        convention: Words that narrow the search, such as "batch-major torch"; or a callable that
            takes your function and a window and returns the targets.
        trace: The name of the trace that it should be, from `ot.TRACES`, "vtrace" or "peng". Found
            if omitted.
        lambda_: The λ inside your function, if it takes none. Found if omitted.

    >>> def one_step(q, a, r, discount, pi):
    ...     return r + discount * (pi * q)[1:].sum(-1)
    >>> check(one_step)
    Verdict(function='one_step', kind='right', right=True, trace='one_step')
    """
    if not callable(fn):
        raise TypeError(f"`fn` must be a function; got {fn!r}.")
    if trace is not None:
        check_name(trace, also=NOT_TRACES)
    if lambda_ is not None and not 0 <= lambda_ <= 1:
        raise ValueError(f"`lambda_` must be in [0, 1]; got {lambda_!r}.")
    return diagnose(fn, attempts(fn, convention), trace, lambda_)


def __dir__() -> list[str]:
    return sorted(__all__)
