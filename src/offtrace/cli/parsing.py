"""Parsing of the command line with tyro, and its errors on one line."""

import functools
import io
import itertools
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

import tyro

from offtrace.cli.exit_codes import WRONG_INPUT

Command = Callable[..., None]

DESCRIPTION = """Multi-step off-policy reinforcement learning, after Munos et al. (2016).

`offtrace COMMAND --help` describes a command and its options; `offtrace --version` prints the version."""
KINDS = {"INT": "a whole number", "FLOAT": "a number"}
ELSEWHERE = {
    "--algo": "--trace",
    "--buffer-size": "--replay-size",
    "--lam": "--lambda",
    "--learning-rate": "--step-size",
    "--lr": "--step-size",
    "--num-envs": "--num-actors",
    "--total-timesteps": "--num-steps",
}
"""Options of other libraries, and those of `offtrace train` for the same."""
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
"""What tyro writes for colours if the output is a terminal."""
MAX_SHOWN = 60
"""Most characters of a wrong value that are shown."""


def parse(arguments: Sequence[str], commands: Mapping[str, Command]) -> Callable[[], None]:
    """Return the command with its arguments, to be called; raise a ValueError on one line if they are wrong."""
    _check_no_empty_path(arguments)
    is_command = bool(arguments) and arguments[0] in commands
    box = io.StringIO()
    shown = _HelpBuffer(sys.stdout)
    try:
        with redirect_stdout(shown), redirect_stderr(box):
            return tyro.extras.subcommand_cli_from_dict(
                {name: _deferred(command, is_brief=not is_command) for name, command in commands.items()},
                prog="offtrace",
                description=DESCRIPTION,
                args=list(arguments),
            )
    except SystemExit as end:
        if end.code != WRONG_INPUT:
            print(_wrapped(shown.text(), shutil.get_terminal_size().columns))
            raise
        plain = COLOURS.sub("", box.getvalue())
        raise ValueError(_one_line(plain, arguments, commands)) from None


class _HelpBuffer(io.TextIOWrapper):
    """A buffer in place of a stream; tyro chooses colours and frames by what the stream can show."""

    def __init__(self, stream: Any) -> None:
        encoding = getattr(stream, "encoding", None) or "utf-8"
        errors = getattr(stream, "errors", None) or "strict"
        super().__init__(io.BytesIO(), encoding=encoding, errors=errors, write_through=True)
        self._is_terminal = stream.isatty()

    def isatty(self) -> bool:
        return self._is_terminal

    def text(self) -> str:
        self.seek(0)
        return self.read()


def _wrapped(help_text: str, width: int) -> str:
    """Wrap the usage and the description in a help text, which tyro prints with a paragraph per line."""
    wrap = functools.partial(textwrap.wrap, width=width, break_long_words=False, break_on_hyphens=False)
    lines: list[str] = []
    for line in help_text.rstrip().splitlines():
        is_paragraph = line[:1].isalpha() or line[:1] == "`"
        if is_paragraph:
            lines += wrap(line, subsequent_indent="    " if line.startswith("usage:") else "")
        elif line or (lines and lines[-1]):  # one blank line is enough
            lines.append(line)
    return "\n".join(lines)


def _deferred(command: Command, *, is_brief: bool) -> Callable[..., Callable[[], None]]:
    """Wrap a command so that tyro only binds its arguments: it is called after parsing, when errors are ours.

    With `is_brief`, for the list of commands, its help is the first line.
    """

    @functools.wraps(command)
    def bind(*args: Any, **kwargs: Any) -> Callable[[], None]:
        return functools.partial(command, *args, **kwargs)

    if is_brief:
        bind.__doc__ = (command.__doc__ or "").partition("\n")[0]
    return bind


def _check_no_empty_path(arguments: Sequence[str]) -> None:
    """Raise a ValueError for an empty argument: as a path it would be the current folder.

    Only the options of an environment may be empty texts.
    """
    option = ""
    for word in arguments:
        name, is_pair, value = word.partition("=")
        is_empty_word = not word and option != "--options"
        is_empty_value = name.startswith("--") and is_pair and not value
        if is_empty_word or is_empty_value:
            what = f"`{name or option}`" if name or option else "an argument"
            raise ValueError(f"{what} must not be empty; got ''. Name a file or folder, or omit it.")
        if word.startswith("--"):
            option = word


# -- tyro's errors -------------------------------------------------------------------------------------------
#
#     ╭─ Parsing error ─────────────────────────╮
#     │ Error parsing --num-seeds: invalid …    │   the first part
#     │ ─────────────────────────────────────── │
#     │ Argument helptext: …                    │   other parts explain
#     ╰─────────────────────────────────────────╯


def _one_line(box: str, arguments: Sequence[str], commands: Mapping[str, Command]) -> str:
    """Return the sentence that matters out of tyro's box."""
    first, *others = _parts(box) or [""]
    whole = " ".join([first, *others])
    command = arguments[0] if arguments and arguments[0] in commands else ""
    see = f" See `offtrace {command} --help`." if command else " See `offtrace --help`."
    wrong_type = _wrong_type(first, whole, arguments)
    if wrong_type:
        return wrong_type + see
    similar = re.findall(r"(--(?!help )[\w-]+) ", whole.partition("Perhaps you meant:")[2])
    if command == "train":
        similar = [ELSEWHERE[word] for word in re.findall(r"--[\w-]+", first) if word in ELSEWHERE] or similar
    hint = f" Did you mean {similar[0]}?" if similar else ""
    if "Available subcommands" in whole:
        hint += f" Valid options: {', '.join(commands)}."
    return f"{first[:400].strip().rstrip('.')}.{hint}{see}"


def _parts(box: str) -> list[str]:
    """Return the parts of the box, without its title and frame."""
    parts: list[list[str]] = [[]]
    for line in box.splitlines()[1:]:
        text = line.strip("│╭╮╰╯ ")
        if text and not text.strip("─-"):
            parts.append([])
        else:
            parts[-1].append(text)
    return [" ".join(part) for part in parts if any(part)]


def _wrong_type(first: str, whole: str, arguments: Sequence[str]) -> str:
    """Return the error of an option that is not the number it should be; "" for other errors."""
    found = re.search(r"Error parsing (--[\w-]+)", first)
    if not found:
        return ""
    option = found[1]
    kind = re.search(rf"{option} \S*?(INT|FLOAT)", whole)
    if not kind:
        return ""
    value = _value_of(option, arguments)
    shown = value if len(value) <= MAX_SHOWN else f"{value[: MAX_SHOWN - 3]}..."
    return f"`{option}` must be {KINDS[kind[1]]}; got {shown!r}."


def _value_of(option: str, arguments: Sequence[str]) -> str:
    """Return what was typed for an option, as `--option value …` or `--option=value`."""
    for place, word in enumerate(arguments):
        name, _, value = word.partition("=")
        if name == option:
            following = itertools.takewhile(lambda word: not word.startswith("--"), arguments[place + 1 :])
            return " ".join(following) or value
    return ""
