"""Numbers and texts as the commands print them."""

import math

UNKNOWN = "–"


def number(value: float, unknown: str = UNKNOWN) -> str:
    """Return a number with three significant digits.

    >>> [number(value) for value in (0.05, 12.345, -1234.5, 2.5e-4, 1.25e6, float("nan"), float("-inf"))]
    ['0.0500', '12.3', '-1,234', '0.00025', '1.25M', '–', '-∞']
    """
    if math.isnan(value):
        return unknown
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if abs(value) >= 999.5:
        return count(value)
    if abs(value) < 0.001:
        return f"{value:.2g}"
    return f"{value:#.3g}".rstrip(".")


def short(value: int) -> str:
    """Return an integer for an error message, also one that is too long for Python to print.

    >>> short(12), short(-(10**30)), short(10**5000)
    ('12', 'a number of more than 20 digits', 'a number of more than 20 digits')
    """
    return str(value) if abs(value) < 10**20 else "a number of more than 20 digits"


def fixed(value: float, decimals: int) -> str:
    """Return a small number with a fixed number of decimals, and a large one as `number` does."""
    if abs(value) < 9.995:
        return f"{value:.{decimals}f}"
    return number(value, "nan")


def count(value: float) -> str:
    """Return a count with commas, and from a million on in millions (M), billions (B) or trillions (T).

    >>> [count(value) for value in (999, 12_000, 1_200_000, 999_999_999, 4.2e9, 1e15)]
    ['999', '12,000', '1.2M', '1B', '4.2B', '1.0e+15']
    """
    if not math.isfinite(value):
        return number(value)
    if round(abs(value)) < 1_000_000:
        return f"{value:,.0f}"
    for size, letter in ((1e6, "M"), (1e9, "B"), (1e12, "T")):
        digits = f"{float(f'{value / size:.3g}'):g}"
        if abs(float(digits)) < 1000:
            return f"{digits}{letter}"
    return f"{value:.1e}"


def percent(share: float) -> str:
    """Return a share in percent, rounded down: 100% means all of it.

    >>> percent(0.999), percent(1.0), percent(float("nan"))
    ('99%', '100%', '–')
    """
    if not math.isfinite(share):
        return UNKNOWN
    return f"{math.floor(100 * share + 1e-9)}%"


def rate(speed: float) -> str:
    """Return a speed with three digits: the next ones change with every tick.

    >>> rate(41_626.3), rate(0.25)
    ('41,600 steps/s', '0.250 steps/s')
    """
    return f"{number(float(f'{speed:.3g}'))} steps/s"


def duration(seconds: float) -> str:
    """Return a time in its two largest units.

    >>> [duration(value) for value in (0.4, 59.6, 200, 7500, 360_000, 1e10)]
    ['0 s', '1 min', '3 min 20 s', '2 h 5 min', '4 d 4 h', 'over 3 years']
    """
    if not math.isfinite(seconds):
        return UNKNOWN
    whole = round(seconds)
    if whole >= 1096 * 86_400:
        return "over 3 years"
    if whole >= 1000 * 86_400:
        return f"{whole // 86_400:,} d"
    for (size, name), (smaller, small_name) in (
        ((86_400, "d"), (3_600, "h")),
        ((3_600, "h"), (60, "min")),
        ((60, "min"), (1, "s")),
    ):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {name}" + (f" {rest} {small_name}" if rest else "")
    return f"{whole} s"


def printable(line: str) -> str:
    r"""Return a text on one line, with control characters escaped.

    >>> print(printable("two\nlines, \x1b[31mred"))
    two\nlines, \x1b[31mred
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in line)
