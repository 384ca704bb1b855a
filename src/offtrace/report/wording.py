"""Numbers, lists and file names as text."""

import re
from collections.abc import Iterable, Sequence

from offtrace.report.names import counted


def number_text(value: float) -> str:
    """Return a score with a sensible number of digits.

    >>> [number_text(value) for value in (0.5, 12.345, -1234.5, 0.00123)]
    ['0.50', '12.35', '-1,234.5', '0.0012']
    """
    if 0 < abs(value) < 0.01:
        return f"{value:.2g}"
    if abs(value) < 1000:
        return f"{value:,.2f}"
    return f"{value:,.1f}"


def score_text(value: float, decimals: int = 2) -> str:
    """Return a score.

    >>> score_text(0.5), score_text(-0.125, decimals=3), score_text(-1e-9)
    ('0.50', '−0.125', '0.00')
    """
    return f"{value:z.{decimals}f}".replace("-", "−")


def signed_text(value: float, decimals: int = 2) -> str:
    """Return a difference with its sign; a small one has up to two more decimals, as it is not 0.

    >>> [signed_text(value) for value in (0.25, -0.5, -0.0034, -1e-9)]
    ['+0.25', '−0.50', '−0.003', '+0.00']
    """
    texts = [f"{value:+z.{digits}f}" for digits in range(decimals, decimals + 3)]
    return next((text for text in texts if float(text)), texts[0]).replace("-", "−")


def listed(names: Sequence[str], most: int = 6) -> str:
    """Return names as a list in a sentence.

    >>> listed(["a", "b", "c"]), listed(["a", "b", "c"], most=1)
    ('a, b and c', 'a and 2 others')
    """
    if len(names) > most:
        names = [*names[:most], counted(len(names) - most, "other")]
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def slug(name: str) -> str:
    """Return a name as a part of a file name. It has no _, which separates a study from its files.

    >>> slug("MinAtar/Breakout, λ"), slug("../<b>")
    ('minatar-breakout', 'b')
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-") or "x"


def unique(names: Iterable[str]) -> list[str]:
    """Return names with a number added to repeated ones.

    >>> unique(["a", "b", "a"])
    ['a', 'b', 'a-2']
    """
    found: dict[str, None] = {}
    for name in names:
        number = 1
        candidate = name
        while candidate in found:
            number += 1
            candidate = f"{name}-{number}"
        found[candidate] = None
    return list(found)


def is_or_are(number: int) -> str:
    return "is" if number == 1 else "are"
