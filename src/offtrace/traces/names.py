"""Traces by name: the table of all traces, and `as_trace`, which every function that takes a trace calls."""

import difflib
from collections.abc import Iterable
from dataclasses import MISSING, fields
from types import MappingProxyType
from typing import Any

from offtrace.arrays import is_compiling
from offtrace.traces.base import Trace
from offtrace.traces.function import FunctionTrace
from offtrace.traces.markov import (
    ContinuousACER,
    ImportanceSampling,
    OneStep,
    QLambda,
    QSigma,
    Retrace,
    SoftWatkins,
    TreeBackup,
    Watkins,
)
from offtrace.traces.parameters import check_parameter
from offtrace.traces.trajectory_aware import RBIS, RecursiveRetrace, TruncatedIS

_BY_NAME: dict[str, type[Trace]] = {
    cls.name: cls
    for cls in (
        OneStep,
        ImportanceSampling,
        QLambda,
        TreeBackup,
        Retrace,
        RecursiveRetrace,
        TruncatedIS,
        RBIS,
        Watkins,
        SoftWatkins,
        ContinuousACER,
        QSigma,
    )
}
# `torch.compile` refuses to read a proxy where the function has changed any dictionary, so functions read `_BY_NAME`.
TRACES: MappingProxyType[str, type[Trace]] = MappingProxyType(_BY_NAME)
"""Every trace by name; tests, commands, tables and agents read it."""

SHORT = {"is": "importance_sampling", "tb": "tree_backup", "acer": "continuous_acer"}
"""Other names that people use."""
FUNCTIONS = {name: f"{name}_targets" for name in ("vtrace", "n_step", "peng", "c_trace")}
"""What is no trace, but has a function."""

WITHOUT_LAMBDA = tuple(name for name, cls in TRACES.items() if not cls.has_lambda)
"""Names of the traces that do not depend on λ."""


def as_trace(given: Any, lambda_: Any = None) -> Trace:
    """Return a trace from a name, a class, a trace, or a function that returns c.

    A name or a class gets the λ given, or its default, 1. A trace has its λ already. A trace without λ ignores it.
    A function is called by name with the arrays among `pi_a, mu_a, log_pi_a, log_mu_a, q, pi, a` that it takes.

    >>> as_trace("retrace", 0.9)
    Retrace(lambda_=0.9)
    >>> as_trace(TreeBackup)
    TreeBackup(lambda_=1.0)
    >>> as_trace(lambda pi_a, mu_a: 0.5 * pi_a).needs_mu
    True
    """
    if isinstance(given, Trace):
        if lambda_ is not None and given.has_lambda:
            raise TypeError(
                f"`lambda_` must be given once; got {given!r} and lambda_={lambda_!r}. "
                "Pass the name or the class of the trace, or leave out `lambda_`."
            )
        return given
    if isinstance(given, str):
        check_name(given)
        given = _BY_NAME[given]
    if isinstance(given, type) and issubclass(given, Trace):
        return _from_class(given, lambda_)
    if isinstance(given, type) or not callable(given):
        raise TypeError(
            "`trace` must be a trace such as `ot.Retrace(0.9)`, its class, its name, or a function that returns c; "
            f"got {given!r}."
        )
    return FunctionTrace(given)


def check_name(name: Any, *, also: Iterable[str] = ()) -> None:
    """Check that this is the name of a trace, or one of `also`; the error shows the valid names and a near one."""
    valid = (*also, *_BY_NAME)
    if name in valid:
        return
    text = str(name)
    near = [SHORT[text]] if text in SHORT else difflib.get_close_matches(text, valid, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    if text in FUNCTIONS:
        hint = f" There is a function for it: `ot.{FUNCTIONS[text]}`."
    raise ValueError(f"`trace` must be one of {', '.join(valid)}; got {name!r}.{hint}")


def _from_class(cls: type[Trace], lambda_: Any) -> Trace:
    given = {}
    if lambda_ is not None:
        check_parameter(cls.__name__, "lambda_", lambda_)
        if cls.has_lambda:
            given = {"lambda_": lambda_}
    if is_compiling():  # `fields` of a class does not compile in PyTorch
        return cls(**given)
    missing = [
        field.name
        for field in fields(cls)
        if field.init and field.name not in given and field.default is field.default_factory is MISSING
    ]
    if missing:
        raise TypeError(
            f"`trace` must be a value where its class has a parameter without a default; got {cls.__name__}, which "
            f"needs `{missing[0]}`. Pass {cls.__name__}({missing[0]}=…)."
        )
    return cls(**given)
