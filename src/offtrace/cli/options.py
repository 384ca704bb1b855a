"""How options are shown in the help."""

from typing import Any

import tyro


def option(metavar: str, default: str | None = None, *, name: str | None = None) -> Any:
    """Return the word for an option's value, and its default in words; "" shows no default.

    Without `default` the help shows the value itself.
    """
    shown: dict[str, Any] = {"metavar": metavar}
    if name is not None:
        shown["name"] = name
    if default is not None:
        shown["help_behavior_hint"] = f"(default: {default})" if default else ""
    return tyro.conf.arg(**shown)
