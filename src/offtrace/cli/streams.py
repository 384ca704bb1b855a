"""Output streams: consoles, JSON, and characters that a terminal's encoding lacks.

A stream that cannot encode λ gets the word lambda. A stream whose reader has gone, as in
`offtrace train … | head`, is replaced by the null device, so that a command can still save its work.
"""

import codecs
import io
import json
import os
import re
import sys
import unicodedata
from contextlib import suppress
from typing import IO, Any

import rich.console

from offtrace.cli.numbers import printable

NAME = "offtrace.readable"
WORDS = {
    "≥": ">=",
    "≤": "<=",
    "≠": "!=",
    "≈": "~",
    "…": "...",
    "–": "-",
    "—": "-",
    "−": "-",
    "×": "x",
    "·": "*",
    "±": "+/-",
    "∞": "inf",
    "‖": "||",
    "∥": "||",
    "∈": "in",
    "∑": "sum ",
    "∏": "prod ",
    "√": "sqrt",
    "→": "->",
    "←": "<-",
    "↑": "^",
    "↓": "v",
    "✓": "yes",
    "✗": "no",
    "✔": "yes",
    "✘": "no",
    "•": "*",
    "′": "'",
    "‘": "'",
    "’": "'",
    "“": '"',
    "”": '"',
    "⁄": "/",
    "°": "deg",
    "§": "Sec. ",
}
GREEK = re.compile(r"GREEK (SMALL|CAPITAL) LETTER (FINAL )?(\w+)")


class Console(rich.console.Console):
    """A rich console that goes quiet, and is `closed`, when the reader of its output has gone."""

    closed = False

    def on_broken_pipe(self) -> None:
        self.closed = True
        self.quiet = True
        discard(self.file)


def discard(stream: IO[str]) -> None:
    """Send what is still written to a stream to the null device: Python flushes it at exit, which must not fail."""
    with suppress(OSError):  # a stream without a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def flush(stream: IO[str]) -> None:
    """Write what is buffered, or discard it if the reader has gone; at exit, Python would report that as an error."""
    try:
        stream.flush()
    except BrokenPipeError:
        discard(stream)


def warn(line: str) -> None:
    """Print a warning to standard error, on one line."""
    console = Console(stderr=True)
    console.print(f"warning: {printable(line)}", style="yellow", markup=False, highlight=False, soft_wrap=True)


def tell(line: str) -> None:
    """Print a line about what is done to standard error."""
    console = Console(stderr=True)
    console.print(printable(line), style="dim", markup=False, highlight=False, soft_wrap=True)


def make_readable() -> None:
    """Make standard output and error spell out characters that their encoding lacks, instead of failing."""
    codecs.register_error(NAME, _encoding_error)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=NAME)


def print_json(value: Any) -> None:
    """Print a value as JSON; characters are escaped only if the stream cannot encode them."""
    is_unicode = (getattr(sys.stdout, "encoding", None) or "").lower().startswith("utf")
    print(json.dumps(value, indent=2, ensure_ascii=not is_unicode))


def _encoding_error(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return ascii_words(error.object[error.start : error.end]), error.end


def ascii_words(text: str) -> str:
    r"""Spell out a text in ASCII.

    >>> ascii_words("λ ≥ ½, ε → ρ₁, 2³¹ │ ─ 😀")
    'lambda >= 1/2, epsilon -> rho1, 2^31 | - \\U0001f600'
    """
    raised = re.sub("[⁰¹²³⁴-⁹⁻⁺]+", lambda found: f"^{unicodedata.normalize('NFKC', found[0])}", text)
    return "".join(map(_word, raised))


def _word(sign: str) -> str:
    """Spell out one character."""
    if sign.isascii():
        return sign
    if sign in WORDS:
        return WORDS[sign]
    if unicodedata.combining(sign):  # an accent, the bar of c̄
        return ""
    name = unicodedata.name(sign, "")
    if found := GREEK.match(name):
        word = {"lamda": "lambda"}.get(found[3].lower(), found[3].lower())
        if found[1] == "CAPITAL":
            return word.capitalize()
        return word
    if name.startswith("BOX DRAWINGS"):
        lines = {"HORIZONTAL": "-", "VERTICAL": "|"}
        words = name.split()
        return lines.get(words[-1], "+") if len(words) == 4 else "+"
    if name.endswith("BLOCK") or " BLOCK" in name:
        return "#"
    plain = "".join(WORDS.get(part, part) for part in unicodedata.normalize("NFKD", sign))
    plain = "".join(part for part in plain if not unicodedata.combining(part))
    if plain and plain.isascii():
        return plain
    return sign.encode("ascii", "backslashreplace").decode()
