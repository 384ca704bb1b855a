"""`offtrace doctor MODULE:FUNCTION`."""

import contextlib
import sys
import textwrap
from collections.abc import Callable
from typing import Annotated, Any

import tyro

from offtrace.cli.options import option
from offtrace.cli.streams import Console, print_json, tell
from offtrace.doctor import MISTAKES, check
from offtrace.doctor.conventions import LIBRARIES, remedy
from offtrace.imports import import_object


def doctor(
    function: Annotated[tyro.conf.Positional[str], option("MODULE:FUNCTION", "")] = "",
    convention: Annotated[str, option("WORDS", "found from the parameters")] = "",
    trace: Annotated[str, option("NAME", "found from the results")] = "",
    lambda_: Annotated[float | None, option("FLOAT", "found from the results", name="lambda")] = None,
    strict: bool = False,
    list: Annotated[bool, tyro.conf.arg(name="list")] = False,
    json: bool = False,
) -> None:
    """Check your implementation of Retrace on windows worked out by hand, and name its mistake.

    MODULE is imported, which runs its code; the current folder is searched last. FUNCTION is called by
    the names of its parameters. If they are not understood, write an adapter and name the adapter:

        def adapter(window):  # one stream; row t is the paper's step t
            return my_retrace(window.q, window.a, window.r, window.discount,
                              window.pi, window.mu_a, lam=window.lambda_)

    The adapter returns the targets, one per step. A window has q, pi, mu (n+1, A); a, r, mu_a, pi_a,
    q_a, ratio, discount, terminated, truncated, reset, expected_q, next_q, next_pi (n, …); gamma and
    lambda_.

    Example: offtrace doctor my_project.losses:retrace

    Args:
        function: Function to check.
        convention: Words that narrow the search: single, time-major, batch-major, numpy, torch, jax.
        trace: Trace that it should be, by name: retrace, tree_backup, …, vtrace, peng.
        lambda_: λ inside the function, if it has no parameter for it.
        strict: Exit with code 2 if the function is not right, for scripts.
        list: Print the known mistakes and exit.
        json: Print the verdict as JSON.
    """
    if list:
        for entry in MISTAKES.values():
            print(f"{entry.name}: {entry.title}")
            print(textwrap.fill(entry.sentence, 80, initial_indent="    ", subsequent_indent="    "))
        return
    if not function:
        raise ValueError("name a function: `offtrace doctor MODULE:FUNCTION`, or `--list` the known mistakes.")
    fn = load(function)
    with Console(stderr=True).status("calling it in every way that its parameters allow …"):
        verdict = check(fn, convention=convention or None, trace=trace or None, lambda_=lambda_)
    if json:
        print_json(verdict.as_dict())
    else:
        print(verdict)
    if strict and not verdict.right:
        raise ValueError(f"`{function}` is not right ({verdict.kind}).")


def load(function: str) -> Callable[..., Any]:
    """Import MODULE and return FUNCTION."""
    module_name, _, name = function.partition(":")
    if module_name.endswith(".py"):
        raise ValueError(f"`function` must be MODULE:FUNCTION; got {function!r}. Write `{module_name[:-3]}:{name}`.")
    try:
        with contextlib.redirect_stdout(sys.stderr):  # standard output is for the verdict alone
            value = import_object(function, tell)
    except ValueError as error:
        missing = getattr(error.__cause__, "name", None)
        hint = f" {remedy(missing)}" if missing in LIBRARIES else ""
        raise ValueError(f"{error}{hint}") from None
    if not callable(value):
        raise ValueError(f"`{function}` must be a function; got {type(value).__name__}.")
    return value
