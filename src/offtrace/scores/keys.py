"""Names of the parts of a comparison: algorithms, baselines, kinds of score, and the cells of runs."""

import re
from collections.abc import Iterable
from typing import Literal, NamedTuple

Stretch = Literal["final", "early", "area", "evaluation"]
"""Kinds of score: the stretch of a run that is scored."""

BASELINES = ("dqn", "one_step")
"""Algorithms without λ. Their runs are stored at λ = 0 and compared at every λ."""
ORDER_OF_MERIT = ("retrace", "tree_backup", "q_lambda", "q_star", *BASELINES)

VARIANTS = ("exploration", "greedy", "softmax", "double", "single")
"""Parts of a target policy, with which the name of an algorithm may end, after a dot."""


NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[-+]?\d+)?")


class Key(NamedTuple):
    """The name of a cell: all runs of one algorithm at one λ on one game, which differ in their seeds only."""

    game: str
    algorithm: str
    lambda_: float


def is_baseline(name: str) -> bool:
    """Return whether an algorithm, or the one it is a variant of, has no λ.

    A user's trace is named by its title, which is a call without arguments, `mine()`, if it has no λ.

    >>> is_baseline("dqn.exploration.double"), is_baseline("dqn, step_size 0.1"), is_baseline("retrace.greedy")
    (True, True, False)
    >>> is_baseline("mine()"), is_baseline("Mine(λ)")
    (True, False)
    """
    plain = plain_name(name)
    return plain in BASELINES or "()" in plain


def plain_name(name: str) -> str:
    """Return the algorithm that this one is a variant of: the part before its target policy and its settings.

    >>> plain_name("dqn.exploration, step_size 0.001")
    'dqn'
    """
    return split_variant(name.partition(",")[0])[0]


def split_variant(name: str) -> tuple[str, tuple[str, ...]]:
    """Return an algorithm without the target policy that its name may end in, and the parts of that policy.

    >>> split_variant("dqn.exploration.double"), split_variant("Mine(λ) (share=0.5)")
    (('dqn', ('exploration', 'double')), ('Mine(λ) (share=0.5)', ()))
    """
    parts = name.split(".")
    number = len(parts)
    while number > 1 and parts[number - 1] in VARIANTS:
        number -= 1
    return ".".join(parts[:number]), tuple(parts[number:])


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Return algorithms in the paper's order of merit, then others by name, then baselines.

    A variant follows the algorithm that it varies. Settings are in the order of their numbers.

    >>> in_order(["dqn", "retrace.greedy", "watkins", "q_star", "retrace"])
    ('retrace', 'retrace.greedy', 'q_star', 'watkins', 'dqn')
    >>> in_order(["retrace, window 16", "retrace, window 8"])
    ('retrace, window 8', 'retrace, window 16')
    """

    def place(name: str) -> tuple[bool, int, str, str, list[float], str]:
        plain = plain_name(name)
        merit = len(ORDER_OF_MERIT)
        if plain in ORDER_OF_MERIT:
            merit = ORDER_OF_MERIT.index(plain)
        variant, _, settings = name.partition(",")
        numbers = [float(number) for number in NUMBER.findall(settings)]
        return is_baseline(name), merit, plain, variant, numbers, name

    return tuple(sorted(names, key=place))
