"""Names of the parts of a comparison: algorithms, baselines, kinds of score, and the cells of runs."""

from collections.abc import Iterable
from typing import Literal, NamedTuple

Stretch = Literal["final", "early", "area", "evaluation"]
"""Kinds of score: the stretch of a run that is scored."""

BASELINES = ("dqn", "one_step")
"""Algorithms without λ. Their runs are stored at λ = 0 and compared at every λ."""
ORDER_OF_MERIT = ("retrace", "tree_backup", "q_lambda", "q_star", *BASELINES)

VARIANTS = ("exploration", "greedy", "softmax", "double", "single")
"""Parts of a target policy, with which the name of an algorithm may end, after a dot."""


class Key(NamedTuple):
    """The name of a cell: all runs of one algorithm at one λ on one game, which differ in their seeds only."""

    game: str
    algorithm: str
    lambda_: float


def is_baseline(name: str) -> bool:
    """Return whether an algorithm, or the one it is a variant of, has no λ.

    A user's trace is named by its title, which is a call without arguments, `mine()`, if it has no λ.

    >>> is_baseline("dqn.exploration.double"), is_baseline("retrace.greedy")
    (True, False)
    >>> is_baseline("mine()"), is_baseline("Mine(λ)")
    (True, False)
    """
    plain, _ = split_variant(name)
    return plain in BASELINES or "()" in plain


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

    A variant follows the algorithm that it varies.

    >>> in_order(["dqn", "retrace.greedy", "watkins", "q_star", "retrace"])
    ('retrace', 'retrace.greedy', 'q_star', 'watkins', 'dqn')
    """

    def place(name: str) -> tuple[bool, int, str, str]:
        plain, _ = split_variant(name)
        merit = len(ORDER_OF_MERIT)
        if plain in ORDER_OF_MERIT:
            merit = ORDER_OF_MERIT.index(plain)
        return is_baseline(name), merit, plain, name

    return tuple(sorted(names, key=place))
