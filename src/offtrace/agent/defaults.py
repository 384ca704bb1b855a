"""The defaults of specs, by environment and runtime. `resolved` in `spec.py` says which overrides which."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "num_steps": 200_000,
        "window": 16,
        "num_windows": 4,
        "replay_size": 100_000,
        "fill": 1_000,
        "gamma": 0.99,
        "step_size": 5e-4,
        "optimiser": "adam",
        "regularisation": 1e-8,
        "exploration": "linear",
        "epsilon": 0.05,
        "random_action_steps": 1,
        "target_policy": "exploration",
        "double": True,
        "target_period": 250,
        "hidden_sizes": (64, 64),
        "observation_scale": (),
    }
)

DEFAULT_LAMBDA = 1.0

DEFAULT_TICK = 20_000
"""The largest default of `tick_steps`."""

MOUNTAIN_CAR: Mapping[str, Any] = MappingProxyType(
    {
        "num_steps": 400_000,
        "window": 32,
        "step_size": 1e-3,
        "observation_scale": (1.0, 14.0),  # positions are in [−1.2, 0.6], speeds in [−0.07, 0.07]
        "epsilon": 0.1,
        "epsilon_steps": 200_000,  # a random episode reaches the flag once in fifty
        "random_action_steps": 200,  # a random action of one step never reaches the flag
        "target_period": 100,
    }
)

TUNED: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "minatar/": {
            "num_steps": 2_000_000,
            "fill": 5_000,
            "epsilon": 0.1,
            "epsilon_steps": 100_000,
            "step_size": 2.5e-4,
        },
        "minatar/breakout": {"step_size": 1e-3},
        "atari/": {
            "num_steps": 50_000_000,  # 200 million frames
            "replay_size": 1_000_000,  # App. F: 62,500 per actor
            "fill": 50_000,
            "epsilon": 0.1,
            "epsilon_steps": 1_000_000,  # App. F: 250,000 frames per actor
            "target_period": 2_500,  # 40,000 frames
            "step_size": 6.25e-5,  # this and the next are for Adam (Hessel et al. 2018); RMSprop uses `PAPER`
            "regularisation": 1.5e-4,
            "reward_clamp": 1.0,
        },
        "CartPole-v1": {"num_steps": 150_000, "step_size": 1e-3, "replay_size": 150_000},
        "pocket/cartpole": {"num_steps": 150_000, "step_size": 1e-3, "replay_size": 150_000},
        "MountainCar-v0": MOUNTAIN_CAR,
        "pocket/mountain_car": MOUNTAIN_CAR,
        "LunarLander-v3": {
            "num_steps": 500_000,
            "step_size": 1e-3,
            "epsilon": 0.1,
            "hidden_sizes": (128, 128),
            "options": {"check_bounds": False},  # its observations leave the bounds that it declares
        },
    }
)
"""Defaults by the beginning of the environment's name, without `gymnasium/`."""

PAPER: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "multi-step": {"step_size": 0.0000912, "regularisation": 0.0000368},
        "dqn": {"step_size": 0.0000439, "regularisation": 0.001},
    }
)
"""The values of App. F, for RMSprop."""

ASYNCHRONOUS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "": {"optimiser": "rmsprop", "exploration": "switching"},
        "atari/": {"annealing_steps": 75_000_000},  # 3·10⁸ frames
    }
)
"""Defaults of the asynchronous runtime, those of App. F, by the beginning of the environment's name."""
