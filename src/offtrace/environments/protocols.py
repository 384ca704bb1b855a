"""The protocol of a game: the rules under which its scores were made.

    protocol("atari/pong", {"sticky": 0.25})    # all rules of Atari, with the defaults of the others

Scores of a game under different protocols are scores of different games, so they are never in one
table. The protocol follows from the options of a spec, so that of old results is known too. What is
in it:

    atari/…       sticky actions, action set, lives, starts, frame limit, frame skip
    minatar/…     sticky actions, time limit
    others        the options as given

Options that change no game, such as the number of threads, are left out. Nothing is imported here:
a spec may come from a file.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

ATARI_RULES: Mapping[str, Any] = MappingProxyType(
    {
        "sticky": 0.0,
        "full_action_space": False,
        "life_loss": True,
        "noop_max": 30,
        "max_frames": 108_000,
        "frame_skip": 4,
    }
)
"""The rules of Atari and their defaults, which are those of `AtariFactory`."""
MINATAR_RULES: Mapping[str, Any] = MappingProxyType({"sticky": 0.1, "time_limit": None})
"""The rules of MinAtar and their defaults, which are those of `MinAtar`."""
SHARED_RULES: Mapping[str, Mapping[str, Any]] = MappingProxyType({"atari": ATARI_RULES, "minatar": MINATAR_RULES})
"""Suites whose games have the same rules. Scores of games are in one table only if the values are the same too."""

WITHOUT_EFFECT = ("num_threads", "timeout", "vectorization", "check_bounds")
"""Options that change neither the game nor what an agent sees of it."""


def protocol(env: str, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the rules under which an environment with these options is played.

    >>> protocol("minatar/breakout", {"sticky": 0.0})
    {'sticky': 0.0, 'time_limit': None}
    >>> protocol("pocket/catch", {"columns": 5}), protocol("gymnasium/CartPole-v1", {"timeout": 5.0})
    ({'columns': 5}, {})
    """
    given = {name: value for name, value in (options or {}).items() if name not in WITHOUT_EFFECT}
    return {**SHARED_RULES.get(env.partition("/")[0], {}), **given}


def protocol_text(env: str, rules: Mapping[str, Any]) -> str:
    """Return a protocol in words; "" if there is nothing to say.

    >>> protocol_text("minatar/breakout", protocol("minatar/breakout", {}))
    'sticky actions with probability 0.1, no time limit'
    >>> protocol_text("pocket/catch", {"columns": 5})
    'columns 5'
    """
    suite = env.partition("/")[0]
    rest = dict(rules)
    parts = []
    if suite in SHARED_RULES:
        parts.append(_sticky(rest.pop("sticky", None)))
    if suite == "atari":
        parts += [
            "all 18 actions" if rest.pop("full_action_space", False) else "the actions of the game only",
            "a lost life ends the task" if rest.pop("life_loss", True) else "lost lives do not count",
            _starts(rest.pop("noop_max", 0)),
            f"at most {_number(rest.pop('max_frames', None))} frames",
            f"{_number(rest.pop('frame_skip', None))} frames per step",
        ]
    if suite == "minatar":
        limit = rest.pop("time_limit", None)
        parts.append("no time limit" if limit is None else f"at most {_number(limit)} steps")
    return ", ".join([*parts, *(f"{name} {_number(value)}" for name, value in rest.items())])


def _sticky(probability: Any) -> str:
    return f"sticky actions with probability {_number(probability)}" if probability else "no sticky actions"


def _starts(noop_max: Any) -> str:
    return f"fewer than {_number(noop_max)} frames without an action first" if noop_max else "no random starts"


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
