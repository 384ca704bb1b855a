"""Five maps on which the paper's algorithms can be compared exactly, in tables, and with networks.

They were chosen by exact computations, before the reported runs (`docs/experiments.md`):

    four actions, at most 64 cells       networks share one compiled program
    γ = 0.97, slip 0.1, −0.02 per step   the goal is 8 to 20 steps away, so rewards are delayed
    rewards can be found                 random play finds the goal in at least 5 % of the episodes
    scores are spread                    of the greedy policies of a perturbed Q*, at most 60 % score below 0.1
                                         (0 is random, 1 is optimal), and at most 60 % above 0.9

On a map S is the start, G the goal, # a wall and H a hole.
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
ABOUT: Mapping[str, str] = MappingProxyType(
    {
        "fork": "A corridor that forks into a short and a long way to the goal.",
        "field": "An open field of 64 cells, with the goal in the far corner.",
        "rooms": "Four rooms with doors between them.",
        "doors": "Three rooms in a row, with one door between neighbours.",
        "lure": "An open field with a hole that has a small reward, nearer than the goal.",
    }
)
"""What each map is."""
LURE = 0.3
"""The reward of the hole in `lure`, which is smaller than the goal's but nearer."""


def small_world(name: str, *, gamma: float = 0.97, slip: float = 0.1, step_reward: float = -0.02) -> FiniteMDP:
    """Return one of the five maps as an MDP.

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
