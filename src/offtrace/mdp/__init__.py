"""Finite MDPs: your own, estimated from data, random, from textbooks, and from Gymnasium."""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from offtrace.mdp.data import CountedMDP, from_data
from offtrace.mdp.finite import FiniteMDP
from offtrace.mdp.grids import bifurcated_grid, cliff_walking, grid_world
from offtrace.mdp.gymnasium import from_dictionary, from_gymnasium, icu_sepsis
from offtrace.mdp.small_world import SMALL_WORLD
from offtrace.mdp.textbook import baird_star, chain, episodic, garnet, random_walk

__all__ = [
    "MDPS",
    "SMALL_WORLD",
    "CountedMDP",
    "FiniteMDP",
    "baird_star",
    "bifurcated_grid",
    "chain",
    "cliff_walking",
    "episodic",
    "from_data",
    "from_dictionary",
    "from_gymnasium",
    "garnet",
    "grid_world",
    "icu_sepsis",
    "random_walk",
]

MDPS: Mapping[str, Callable[..., FiniteMDP]] = MappingProxyType(
    {
        "baird_star": baird_star,
        "bifurcated_grid": bifurcated_grid,
        "chain": chain,
        "cliff_walking": cliff_walking,
        "episodic": partial(episodic, num_states=12, num_actions=2, num_steps=4, gamma=0.9, seed=0),
        "garnet": partial(garnet, num_states=100, num_actions=4, num_successors=5, gamma=0.9, seed=0),
        "grid_world": grid_world,
        "icu_sepsis": icu_sepsis,
        "random_walk": random_walk,
        **SMALL_WORLD,
    }
)
"""MDPs by name. Each can be called without arguments, or with `gamma=` and its other arguments as keywords."""


def __dir__() -> list[str]:
    return sorted(__all__)
