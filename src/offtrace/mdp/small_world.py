"""Five maps on which the paper's question can be asked at every level: exactly, in tables, and with networks.

They were chosen by what can be computed, before the runs that are reported (`docs/experiments.md`):

    four actions, at most 64 cells    so that networks share one compiled program
    γ = 0.97, slip 0.1, −0.02 a step  the goal is 8 to 20 steps away: rewards come long after the deed
    the reward can be found           by random play, in 5 % of the episodes or more
    no crowding                       of policies greedy in a disturbed Q*, at most 60 % are below 0.1 of the way from
                                      random to optimal, and at most 60 % above 0.9

A map has S for the start, G for the goal, # for walls and H for holes.
"""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from offtrace.mdp.finite import FiniteMDP
from offtrace.mdp.grids import bifurcated_grid, grid_world

MAPS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "field": (
            "S.......",
            "........",
            "........",
            "........",
            "........",
            "........",
            "........",
            ".......G",
        ),
        "rooms": (
            "S..#....",
            "...#....",
            "........",
            "...#....",
            "##.###.#",
            "...#....",
            "........",
            "...#...G",
        ),
        "doors": (
            "S.#..#..",
            "..#..#..",
            ".....#..",
            "..#.....",
            "..#..#..",
            "..#..#.G",
        ),
        "lure": (
            "S.......",
            "........",
            "........",
            "...H....",
            "........",
            "........",
            "........",
            ".......G",
        ),
    }
)
LURE = 0.3
"""What the hole of `lure` pays: less than the goal, but nearer."""


def small_world(name: str, *, gamma: float = 0.97, slip: float = 0.1, step_reward: float = -0.02) -> FiniteMDP:
    """One of the five.

    >>> small_world("fork")
    FiniteMDP(fork, 45 states, 4 actions, 540 transitions, gamma=0.97)
    """
    if name == "fork":
        mdp = bifurcated_grid(height=9, gamma=gamma, slip=slip, step_reward=step_reward)
    else:
        mdp = grid_world(MAPS[name], hole_reward=LURE, gamma=gamma, slip=slip, step_reward=step_reward)
    mdp.name = name
    return mdp


SMALL_WORLD: Mapping[str, Callable[..., FiniteMDP]] = MappingProxyType(
    {name: partial(small_world, name) for name in ("fork", *MAPS)}
)
