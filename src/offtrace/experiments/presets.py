"""The paper's experiments as sweeps, each at three scales.

    figure_1   the score distributions: every game, λ = 1
    table_2    average scores by λ, and Figure 2: every game, every λ
    table_3    final scores, game by game: every game, λ = 1

They share what they can: a cell that is in several is run once.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from offtrace.environments import ATARI as ATARI_GAMES
from offtrace.experiments.spec import ALGORITHMS, Sweep
from offtrace.scores import published_table_2

LAMBDAS = tuple(published_table_2().lambdas.tolist())
"""Those of the paper's Table 2."""

POCKET = Sweep(
    "pocket",
    games=("pocket/acrobot", "pocket/cartpole", "pocket/catch", "pocket/deep_sea"),
    num_seeds=4,
    settings={
        "num_steps": 32_000,
        "num_actors": 4,
        "fill": 500,
        "replay_size": 32_000,
        "epsilon": 0.1,
        "epsilon_steps": 1_500,
        "step_size": 1.2e-3,
        "target_period": 100,
        "network": "mlp",
        "hidden_sizes": (32, 32),
        "tick_steps": 800,
        "evaluation_ticks": 0,
        "evaluation_episodes": 10,
    },
    by_game={"pocket/catch": {"options": {"columns": 5}}, "pocket/deep_sea": {"options": {"size": 6}}},
)
"""Minutes on two cores: small games and networks, and runs that end long before they are perfect. MountainCar and the
cliff are not among them, as nobody reaches their ends in so few steps."""

MINATAR = Sweep(
    "minatar",
    games=tuple(f"minatar/{game}" for game in ("asterix", "breakout", "freeway", "seaquest", "space_invaders")),
    num_seeds=4,
    settings={"num_steps": 500_000, "step_size": 2.5e-4, "evaluation_ticks": 0, "evaluation_episodes": 20},
)
"""Minutes on one accelerator, where all members of a game train side by side."""

ATARI = Sweep(
    "atari",
    games=ATARI_GAMES,
    num_seeds=4,
    settings={
        "optimiser": "rmsprop",
        "exploration": "switching",
        "evaluation_ticks": 0,
        "evaluation_episodes": 30,
        "evaluation_steps": 27_000,
    },
)
"""App. F: 60 games, four seeds, 200 million frames a run."""

SCALES: Mapping[str, Sweep] = MappingProxyType({"pocket": POCKET, "minatar": MINATAR, "atari": ATARI})
PRESETS: Mapping[str, tuple[float, ...]] = MappingProxyType(
    {"figure_1": (1.0,), "table_2": LAMBDAS, "table_3": (1.0,)}
)
"""The λ of each."""


def preset(name: str, scale: str = "pocket") -> Sweep:
    """One of the paper's experiments as a sweep.

    >>> from offtrace.experiments.spec import cells
    >>> len(cells(preset("table_2", "pocket")))  # 4 games × (3 traces × 7 λ + DQN) × 4 seeds
    352
    """
    if name not in PRESETS:
        raise ValueError(f"`name` must be one of {', '.join(PRESETS)}; got {name!r}.")
    if scale not in SCALES:
        raise ValueError(f"`scale` must be one of {', '.join(SCALES)}; got {scale!r}.")
    return replace(SCALES[scale], name=f"{name} at {scale} scale", traces=ALGORITHMS, lambdas=PRESETS[name])
