"""Optional packages, and the extras that install them."""

from collections.abc import Iterable
from importlib.util import find_spec

AGENT = ("jax", "equinox", "optax", "gymnasium", "safetensors")
"""Packages that only training needs."""
PAGE = ("altair", "vl_convert")
"""Packages that only the page needs."""
EXTRAS = {**dict.fromkeys(AGENT, "agent"), "ale_py": "atari", "pgx": "minatar", **dict.fromkeys(PAGE, "report")}
"""The extra that installs each package."""


def missing(names: Iterable[str]) -> list[str]:
    """Return the packages that are not installed."""
    return [name for name in names if find_spec(name) is None]


def remedy(names: Iterable[str]) -> str:
    """Return the packages and the command that installs them.

    >>> remedy(["jax", "altair"])
    "`jax`, `altair`: pip install 'offtrace[agent,report]'"
    """
    names = list(names)
    extras = ",".join(dict.fromkeys(EXTRAS[name] for name in names))
    return f"{', '.join(f'`{name}`' for name in names)}: pip install 'offtrace[{extras}]'"
