"""Output that every terminal can show: where its encoding has no λ, it reads lambda."""

import codecs
import io
import json
import re
import sys
import unicodedata
from typing import Any

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


def make_readable() -> None:
    """From now on standard output and errors spell out what their encoding lacks, instead of failing."""
    codecs.register_error(NAME, _spelt)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=NAME)


def print_json(value: Any) -> None:
    """For a program: names as they are, or, where they cannot be written, as JSON escapes them."""
    is_unicode = (getattr(sys.stdout, "encoding", None) or "").lower().startswith("utf")
    print(json.dumps(value, indent=2, ensure_ascii=not is_unicode))


def _spelt(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return ascii_words(error.object[error.start : error.end]), error.end


def ascii_words(text: str) -> str:
    r"""
    >>> ascii_words("λ ≥ ½, ε → ρ₁, 2³¹ │ ─ 😀")
    'lambda >= 1/2, epsilon -> rho1, 2^31 | - \\U0001f600'
    """
    raised = re.sub("[⁰¹²³⁴-⁹⁻⁺]+", lambda found: f"^{unicodedata.normalize('NFKC', found[0])}", text)
    return "".join(map(_word, raised))


def _word(sign: str) -> str:
    if sign.isascii():
        return sign
    if sign in WORDS:
        return WORDS[sign]
    if unicodedata.combining(sign):  # an accent, the bar of c̄
        return ""
    name = unicodedata.name(sign, "")
    if found := GREEK.match(name):
        word = {"lamda": "lambda"}.get(found[3].lower(), found[3].lower())
        return word if found[1] == "SMALL" else word.capitalize()
    if name.startswith("BOX DRAWINGS"):
        lines = {"HORIZONTAL": "-", "VERTICAL": "|"}
        return lines.get(name.split()[-1], "+") if len(name.split()) == 4 else "+"
    if name.endswith("BLOCK") or " BLOCK" in name:
        return "#"
    plain = "".join(WORDS.get(part, part) for part in unicodedata.normalize("NFKD", sign))
    plain = "".join(part for part in plain if not unicodedata.combining(part))
    return plain if plain and plain.isascii() else sign.encode("ascii", "backslashreplace").decode()
