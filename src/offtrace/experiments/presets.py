"""The paper's experiments as sweeps, each at three scales.

    figure_1   the score distributions: every game, λ = 1
    table_2    average scores by λ, and Figure 2: every game, every λ
    table_3    final scores, game by game: every game, λ = 1
    ladder     from DQN to Retrace, one difference at a time (`offtrace.experiments.ladder`)

A run that is in several of them is trained once.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from offtrace.environments import ATARI as ATARI_GAMES
from offtrace.experiments import ladder
from offtrace.experiments.spec import PAPER_ALGORITHMS, Sweep, Variant
from offtrace.mdp import SMALL_WORLD
from offtrace.scores import published_table_2

LAMBDAS = tuple(published_table_2().lambdas.tolist())
"""The λ of the paper's Table 2."""

# Chosen from 5e-4, 1e-3, 2e-3 and 4e-3, separately for every algorithm and λ, by the mean of the two scores over the
# five MDPs on seeds 1000 to 1003, which nothing else uses: `python simulations/tune_small_world.py`.
SMALL_STEP_SIZES: Mapping[tuple[str, float], float] = MappingProxyType(
    {
        ("one_step", 0.0): 1e-3,
        ("retrace", 0.5): 4e-3,
        ("retrace", 0.9): 2e-3,
        ("retrace", 1.0): 4e-3,
        ("tree_backup", 0.5): 4e-3,
        ("tree_backup", 0.9): 4e-3,
        ("tree_backup", 1.0): 2e-3,
        ("q_lambda", 0.5): 1e-3,
        ("q_lambda", 0.9): 2e-3,
        ("q_lambda", 1.0): 2e-3,
    }
)
SMALL_DQN_STEP_SIZES = {"control": 5e-4, "target": 4e-3, "double": 1e-3}
"""Step sizes of the rungs that learn from single transitions; chosen in the same way."""

POCKET = Sweep(
    envs=tuple(f"mdp/{name}" for name in SMALL_WORLD),
    num_seeds=28,
    settings={
        "num_steps": 6_000,
        "num_actors": 8,
        "fill": 500,
        "replay_size": 6_000,
        "epsilon": 0.5,
        "epsilon_steps": 1,
        "target_epsilon": 0.1,  # below `epsilon`, so the data stay off-policy
        "step_size": 2e-3,  # of algorithms that were not tuned
        "target_period": 100,
        "hidden_sizes": (64,),
        "tick_steps": 550,
        "evaluation_ticks": 1,
    },
    by_algorithm={
        **{name: {"step_size": size} for name, size in SMALL_STEP_SIZES.items()},
        ("dqn", 0.0): {"step_size": SMALL_DQN_STEP_SIZES["control"], "target_epsilon": None},
    },
)
"""The small world: minutes on two cores, with known optimal values. `docs/experiments.md` says how it was chosen."""

MINATAR = Sweep(
    envs=tuple(f"minatar/{game}" for game in ("asterix", "breakout", "freeway", "seaquest", "space_invaders")),
    num_seeds=4,
    settings={"num_steps": 500_000, "step_size": 2.5e-4, "evaluation_ticks": 0, "evaluation_episodes": 20},
)
"""Five MinAtar games: minutes on one accelerator, where all members of a population train side by side."""

ATARI = Sweep(
    envs=ATARI_GAMES,
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
PRESETS = ("figure_1", "table_2", "table_3", "ladder")
SMALL_LAMBDAS = (0.0, 0.5, 0.9, 1.0)
"""Few λ, to have time for many seeds."""


def preset(name: str, scale: str = "pocket") -> Sweep:
    """Return one of the paper's experiments as a sweep.

    >>> from offtrace.experiments.spec import runs_of
    >>> len(runs_of(preset("table_2", "pocket")))  # 5 games × (3 traces × 3 λ + λ = 0 + DQN) × 28 seeds
    1540
    """
    if name not in PRESETS:
        raise ValueError(f"`name` must be one of {', '.join(PRESETS)}; got {name!r}.")
    if scale not in SCALES:
        raise ValueError(f"`scale` must be one of {', '.join(SCALES)}; got {scale!r}.")
    chosen = SCALES[scale]
    if name == "ladder":
        return _ladder(chosen, scale)
    lambdas = (1.0,)
    if name == "table_2":
        lambdas = SMALL_LAMBDAS if scale == "pocket" else LAMBDAS
    return replace(chosen, traces=PAPER_ALGORITHMS, lambdas=lambdas)


# -- the ladder ----------------------------------------------------------------------------------------------

LADDER_GAMES = ("minatar/breakout", "minatar/space_invaders")
# Chosen from 6e-5, 2.5e-4 and 1e-3, separately for every rung and game, on seeds 200 to 202, by the
# training score and by the evaluation, which agreed.
LADDER_STEP_SIZE = 1e-3
LADDER_EXCEPTIONS = {name: {"minatar/space_invaders": {"step_size": 2.5e-4}} for name in ("trace", "greedy_trace")}


def _ladder(sweep: Sweep, scale: str) -> Sweep:
    """Return the sweep of all rungs, each with the step size that was chosen for it."""
    if scale == "minatar":
        settings = {**sweep.settings, "tick_steps": 10_000, "evaluation_episodes": 50}
        sweep = replace(sweep, envs=LADDER_GAMES, num_seeds=8, settings=settings)
    return replace(sweep, traces=(), lambdas=(), variants=tuple(_rungs(scale)))


def _rungs(scale: str) -> list[Variant]:
    found = []
    for rung in ladder.RUNGS:
        if scale != "minatar" and rung.name.startswith("greedy_"):
            continue
        fields: dict[str, Any] = dict(rung.fields)
        by_env: Mapping[str, Mapping[str, Any]] = {}
        if scale == "pocket":
            fields |= _small_world_fields(rung)
        elif scale == "minatar":
            fields["step_size"] = LADDER_STEP_SIZE
            by_env = LADDER_EXCEPTIONS.get(rung.name, {})
        found.append(Variant(fields, by_env))
    return found


def _small_world_fields(rung: ladder.Rung) -> dict[str, Any]:
    """Return the fields of a rung in the small world; rungs with windows are runs of `table_2`."""
    if rung.name == "control":
        return {"step_size": SMALL_DQN_STEP_SIZES["control"], "target_epsilon": None}
    if rung.name in SMALL_DQN_STEP_SIZES:
        return {"step_size": SMALL_DQN_STEP_SIZES[rung.name]}
    name = rung.fields["trace"]
    if rung.fields["lambda_"] == 0:
        name = "one_step"
    return {"step_size": SMALL_STEP_SIZES[name, rung.fields["lambda_"]]}
