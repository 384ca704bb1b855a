"""Errors as the command line reports them: one line and an exit code.

With OFFTRACE_TRACEBACK=1 the whole traceback is printed, as it always is for an unexpected error.
"""

import os
import sys
import traceback

from offtrace.cli.exit_codes import BROKEN, WRONG_INPUT
from offtrace.cli.extras import EXTRAS, remedy
from offtrace.cli.numbers import printable
from offtrace.doctor.conventions import ADAPTER

NOTES = (ADAPTER,)
"""Notes of our own errors that are meant to be copied, and so keep their lines."""


def report_error(error: Exception) -> int:
    """Print an error to standard error and return the exit code."""
    if isinstance(error, ValueError | FileExistsError | NotADirectoryError | PermissionError):
        _print(error)
        return WRONG_INPUT
    if isinstance(error, ImportError):
        package = _missing_package(error)
        if package in EXTRAS:
            print(f"offtrace: this needs {remedy([package])}", file=sys.stderr)
            return WRONG_INPUT
        has_remedy = "pip install" in str(error)
        _print(error, in_full=not has_remedy)
        return WRONG_INPUT if has_remedy else BROKEN
    is_expected = isinstance(error, FloatingPointError | MemoryError | OSError) or type(error) is RuntimeError
    _print(error, in_full=not is_expected)
    return BROKEN


def _missing_package(error: ImportError) -> str:
    """Return the package that is not installed; "" if the import failed for another reason."""
    first = error.__cause__ if isinstance(error.__cause__, ModuleNotFoundError) else error
    if not isinstance(first, ModuleNotFoundError):
        return ""
    return (first.name or "").partition(".")[0]


def _print(error: Exception, *, in_full: bool = False) -> None:
    """Print an error, whatever its text holds: parts of it may come from other people's files.

    It is one line, or one for each problem of a log.
    """
    if in_full or os.environ.get("OFFTRACE_TRACEBACK"):
        traceback.print_exception(error)
        return
    texts = str(error).splitlines() if getattr(error, "has_lines", False) else [str(error)]
    lines = [_on_one_line(text) for text in texts]
    print("offtrace:", "\n".join(lines) or type(error).__name__, file=sys.stderr)
    for note in getattr(error, "__notes__", ()):
        if note in NOTES:
            print(note, file=sys.stderr)


def _on_one_line(text: str) -> str:
    """Return a text on one line; the indent stays."""
    words = " ".join(text.split())
    indent = text[: len(text) - len(text.lstrip(" "))] if words else ""
    return indent + printable(words)
