"""`offtrace doctor MODULE:FUNCTION`: the verb."""

import contextlib
import importlib
import json as json_module
import os
import sys
import textwrap
from collections.abc import Callable
from typing import Annotated, Any

import tyro
from rich.console import Console

from offtrace.doctor import MISTAKES, check
from offtrace.doctor.conventions import ADAPTER, LIBRARIES, remedy

__all__ = ["ADAPTER", "doctor"]


def doctor(
    function: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODULE:FUNCTION")] = "",
    convention: str = "",
    trace: str = "",
    lambda_: Annotated[float | None, tyro.conf.arg(name="lambda")] = None,
    strict: bool = False,
    list: Annotated[bool, tyro.conf.arg(name="list")] = False,
    json: bool = False,
) -> None:
    """Is your Retrace right? Runs your function on windows checked by hand, and names its mistake.

    MODULE is imported, because you named it; the current directory is searched first. How to call FUNCTION is found
    from the names of its parameters. If that fails, write an adapter, and name the adapter:

        def adapter(window):       # one stream; row t is the paper's step t
            return my_retrace(window.q, window.a, window.r, window.discount, window.pi, window.mu_a,
                              lam=window.lambda_)          # targets, one per step

    A window has q, pi, mu (n+1, A); a, r, mu_a, pi_a, q_a, ratio, discount, terminated, truncated, reset, expected_q,
    next_q, next_pi (n, …); gamma and lambda_.

    Example: offtrace doctor my_project.losses:retrace

    Args:
        function: MODULE:FUNCTION.
        convention: words that narrow the search: single, time-major, batch-major, numpy, torch, jax.
        trace: the trace it should be, by name (retrace, tree_backup, …, vtrace, peng); found if not given.
        lambda_: the λ inside it, if it takes none; found if not given.
        strict: exit code 2 if it is not right, for scripts.
        list: print the known mistakes, and stop.
        json: print the verdict as JSON, for a program to read.
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
        print(json_module.dumps(verdict.as_dict(), indent=2, ensure_ascii=False))
    else:
        print(verdict)
    if strict and not verdict.right:
        raise ValueError(f"`{function}` is not right ({verdict.kind}).")


def load(function: str) -> Callable[..., Any]:
    """Imports MODULE, because the user named it, and gives back FUNCTION."""
    module_name, _, name = function.partition(":")
    if not module_name or not name:
        raise ValueError(f"`function` must be MODULE:FUNCTION; got {function!r}.")
    print(f"importing {module_name}, because you named it", file=sys.stderr)
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what is printed here is the verdict, or its JSON, alone
            value: Any = importlib.import_module(module_name)
        for part in name.split("."):
            value = getattr(value, part)
    except ModuleNotFoundError as error:
        hint = f" Write `{module_name.removesuffix('.py')}:{name}`." if module_name.endswith(".py") else ""
        hint = f" {remedy(error.name)}" if error.name in LIBRARIES else hint
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
        raise ValueError(f"`{function}` is not a function; it is {type(value).__name__}.")
    return value
