"""`offtrace doctor MODULE:FUNCTION`."""

import contextlib
import importlib
import os
import sys
import textwrap
from collections.abc import Callable
from typing import Annotated, Any

import tyro

from offtrace.cli.options import option
from offtrace.cli.streams import Console, print_json
from offtrace.doctor import MISTAKES, check
from offtrace.doctor.conventions import LIBRARIES, remedy


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

    MODULE is imported, which runs its code; the current folder is searched first. FUNCTION is called by
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
    if not module_name or not name:
        raise ValueError(f"`function` must be MODULE:FUNCTION; got {function!r}.")
    print(f"importing {module_name}, as you asked", file=sys.stderr)
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # standard output is for the verdict alone
            value: Any = importlib.import_module(module_name)
        for part in name.split("."):
            value = getattr(value, part)
    except ModuleNotFoundError as error:
        hint = ""
        if error.name in LIBRARIES:
            hint = f" {remedy(error.name)}"
        elif module_name.endswith(".py"):
            hint = f" Write `{module_name.removesuffix('.py')}:{name}`."
        raise ValueError(f"no module named {error.name!r}, importing {module_name!r}.{hint}") from None
    except SystemExit as error:
        raise ValueError(f"importing {module_name!r} called sys.exit({error.code!r}).") from None
    except AttributeError as error:
        raise ValueError(f"{error}.") from None
    except Exception as error:
        raise ValueError(f"importing {module_name!r} raised {type(error).__name__}: {error}") from None
    finally:
        if here in sys.path:
            sys.path.remove(here)
    if not callable(value):
        raise ValueError(f"`{function}` must be a function; got {type(value).__name__}.")
    return value
