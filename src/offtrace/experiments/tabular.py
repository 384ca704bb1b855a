"""The paper's comparison in the tabular world: Eq. 7 on twenty small MDPs, every λ, every seed, in seconds.

The behaviour explores far more (ε = 0.5) than the target policy (ε = 0.1), so the data are off-policy, and stay so. A
run's score is the mean discounted return that its behaviour earned; step sizes are chosen, one for each algorithm, on
seeds that are not used afterwards.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from offtrace import mdp as mdps
from offtrace import online, scores
from offtrace.mdp import FiniteMDP

ALGORITHMS = {"retrace": "retrace", "tree_backup": "tree_backup", "q_star": "q_lambda"}
"""Those that have a λ, by the paper's names, and their traces; at λ = 0 each is one-step."""
LAMBDAS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
"""Those of the paper's Table 2."""
LAKES = (
    ("SFFF", "FHFH", "FFFH", "HFFG"),
    ("SFFFFF", "FFHFFF", "FFFFHF", "FHFFFF", "FFFHFG"),
    ("SFFFFFFF", "FFFFHFFF", "FFFFFFFF", "FFHFFFFG"),
)


def _games() -> dict[str, Callable[[], FiniteMDP]]:
    games: dict[str, Callable[[], FiniteMDP]] = {}
    for height, width, slip in ((5, 3, 0.0), (5, 5, 0.2), (7, 3, 0.1), (9, 3, 0.0)):
        games[f"bifurcated {height}×{width}, slip {slip:g}"] = lambda h=height, w=width, s=slip: mdps.bifurcated_grid(
            height=h, width=w, slip=s, gamma=0.95
        )
    for num_states in (8, 12, 16):
        games[f"chain {num_states}"] = lambda n=num_states: mdps.chain(n, slip=0.1, gamma=0.95)
    for slip in (0.0, 0.1):
        games[f"cliff, slip {slip:g}"] = lambda s=slip: mdps.cliff_walking(gamma=0.95, slip=s)
    games["grid 6×6"] = lambda: mdps.grid_world((6, 6), gamma=0.95, slip=0.1)
    for i, layout in enumerate(LAKES):
        games[f"lake {i + 1}"] = lambda rows=layout: mdps.grid_world(rows, gamma=0.95, slip=0.2)
    for seed in range(7):
        games[f"random {seed + 1}"] = lambda s=seed: mdps.garnet(30, 3, 3, gamma=0.9, rng=s, reward_sparsity=0.8)
    return games


GAMES: Mapping[str, Callable[[], FiniteMDP]] = MappingProxyType(_games())
"""Four bifurcated grids, three chains, two cliffs, four maps, seven random MDPs (γ = 0.9, without ends)."""


@dataclass(frozen=True)
class TabularStudy:
    """What is run."""

    games: tuple[str, ...] = tuple(GAMES)
    lambdas: tuple[float, ...] = LAMBDAS
    step_sizes: tuple[float, ...] = (0.05, 0.1, 0.2)
    num_tuning_seeds: int = 4
    num_seeds: int = 10
    num_episodes: int = 200
    max_steps: int = 100
    behaviour_epsilon: float = 0.5
    target_epsilon: float = 0.1

    def __post_init__(self) -> None:
        unknown = set(self.games) - set(GAMES)
        if unknown:
            raise ValueError(f"`games` must be among {', '.join(GAMES)}; got {min(unknown)!r}.")
        if self.num_tuning_seeds < 1 or self.num_seeds < 2:
            raise ValueError("`num_tuning_seeds` must be at least 1 and `num_seeds` at least 2.")
        if list(self.lambdas) != sorted(set(self.lambdas)) or 0 not in self.lambdas:
            raise ValueError(f"`lambdas` must increase and begin with 0; got {self.lambdas}.")


class Interval(NamedTuple):
    """An average and where 95 % of its bootstrap lies."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


class Claim(NamedTuple):
    """Something the paper says, and what these runs say of it."""

    text: str
    measure: str
    """The difference of levels that is positive if it holds."""
    verdict: str
    """`holds`, `does not`, or `cannot tell`: where the interval lies of 0."""
    difference: Interval


@dataclass(frozen=True, eq=False)
class TabularResults:
    """Scores of all runs, with the step size of each algorithm chosen: (games, algorithms, λ, seeds)."""

    study: TabularStudy
    runs: np.ndarray
    chosen: dict[str, float]
    num_diverged: dict[str, int]
    """Runs, of all, whose Q was no longer finite; they score as the worst of their game."""

    @property
    def algorithms(self) -> tuple[str, ...]:
        """With the one-step algorithm last, which is any of the others at λ = 0."""
        return (*ALGORITHMS, "one_step")

    def levels(self) -> np.ndarray:
        """Scores on one scale for all λ: 0 is the worst mean of a game over algorithms and λ, 1 the best."""
        return _levels(self.runs)

    def table_2(self) -> np.ndarray:
        """(λ, algorithms): the average inter-algorithm score at each λ, as the paper's Table 2."""
        return np.stack([scores.average_scores(z) for z in self.inter_algorithm_scores()])

    def inter_algorithm_scores(self) -> np.ndarray:
        """(λ, games, algorithms): 0 is the worst and 1 the best at that λ."""
        means = self.runs.mean(-1)
        one_step = means[:, 0, 0]
        return np.stack(
            [
                scores.inter_algorithm_scores(np.column_stack([means[:, :, i], one_step]))
                for i in range(len(self.study.lambdas))
            ]
        )

    def level_intervals(self, rng: np.random.Generator | int = 0) -> list[list[Interval]]:
        """[algorithm][λ]: the level averaged over games, seeds resampled within each game."""
        draws = self._resampled(rng)
        found = self.levels().mean((0, 3))
        low, high = np.quantile(draws, (0.025, 0.975), axis=0)
        return [
            [Interval(*map(float, cell)) for cell in zip(*columns, strict=True)]
            for columns in zip(found, low, high, strict=True)
        ]

    def claims(self, rng: np.random.Generator | int = 0) -> list[Claim]:
        """The paper's qualitative claims, each as a difference of levels that should be positive."""
        lambdas, names = np.array(self.study.lambdas), list(ALGORITHMS)
        large, small, some = lambdas >= 0.9, (lambdas > 0) & (lambdas <= 0.5), lambdas > 0
        retrace, tree_backup, q_star = (names.index(name) for name in ("retrace", "tree_backup", "q_star"))
        measured: dict[str, tuple[str, Callable[[np.ndarray], float]]] = {
            "Q*(λ) collapses for λ ≥ 0.9": (
                "its mean level for 0 < λ ≤ 0.5, less that for λ ≥ 0.9",
                lambda x: x[q_star, small].mean() - x[q_star, large].mean(),
            ),
            "Retrace(λ) does not": (
                "its worst level for λ ≥ 0.9, less one-step",
                lambda x: x[retrace, large].min() - x[retrace, 0],
            ),
            "Retrace(λ) above one-step, all λ > 0": (
                "its worst level for λ > 0, less one-step",
                lambda x: x[retrace, some].min() - x[retrace, 0],
            ),
            "TB(λ) above one-step, all λ > 0": (
                "its worst level for λ > 0, less one-step",
                lambda x: x[tree_backup, some].min() - x[tree_backup, 0],
            ),
            "Retrace(λ) above TB(λ) at λ = 1": (
                "the difference of their levels",
                lambda x: x[retrace, -1] - x[tree_backup, -1],
            ),
        }
        draws, found = self._resampled(rng), self.levels().mean((0, 3))
        return [
            _claim(text, measure, float(of(found)), [float(of(draw)) for draw in draws])
            for text, (measure, of) in measured.items()
        ]

    def _resampled(self, rng: np.random.Generator | int, num_draws: int = 1000) -> np.ndarray:
        """(draws, algorithms, λ): mean levels with the seeds of each game drawn again, the same for all columns."""
        generator = np.random.default_rng(rng)
        num_games, num_seeds = self.runs.shape[0], self.runs.shape[3]
        # seeds pair the algorithms (common random numbers), so they are drawn together; the scale follows the draw
        drawn = (generator.integers(num_seeds, size=(num_games, 1, 1, num_seeds)) for _ in range(num_draws))
        return np.stack([_levels(np.take_along_axis(self.runs, seeds, 3)).mean((0, 3)) for seeds in drawn])

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "games": list(self.study.games),
            "lambdas": list(self.study.lambdas),
            "num_seeds": self.study.num_seeds,
            "num_episodes": self.study.num_episodes,
            "step_sizes": self.chosen,
            "num_diverged": self.num_diverged,
            "average_scores": dict(zip(self.algorithms, self.table_2().T.tolist(), strict=True)),
            "levels": {
                name: [interval._asdict() for interval in row]
                for name, row in zip(ALGORITHMS, self.level_intervals(), strict=True)
            },
            "claims": [claim._asdict() | {"difference": claim.difference._asdict()} for claim in self.claims()],
        }


def run(study: TabularStudy | None = None, *, progress: Callable[[int, int], None] | None = None) -> TabularResults:
    """All runs; `progress(done, total)` is called after every game."""
    study = study or TabularStudy()
    seeds = range(study.num_tuning_seeds + study.num_seeds)
    earned, diverged = [], []
    for done, name in enumerate(study.games, start=1):
        grid = online.sweep(
            GAMES[name](),
            traces=list(ALGORITHMS.values()),
            lambdas=study.lambdas,
            step_sizes=study.step_sizes,
            seeds=seeds,
            behaviour=online.EpsilonGreedy(study.behaviour_epsilon),
            target=online.EpsilonGreedy(study.target_epsilon),
            num_episodes=study.num_episodes,
            max_steps=study.max_steps,
            record_every=study.num_episodes,
        )
        broken = grid.diverged_at >= 0
        mean = grid.returns[..., -1]
        worst = mean[~broken].min()
        earned.append(np.where(broken, worst, mean))
        diverged.append(broken)
        if progress:
            progress(done, len(study.games))
    return _chosen(study, np.stack(earned), np.stack(diverged))


def _chosen(study: TabularStudy, earned: np.ndarray, diverged: np.ndarray) -> TabularResults:
    """From (games, algorithms, λ, step sizes, seeds), the step size of each algorithm that was best in the tuning."""
    tuning, rest = earned[..., : study.num_tuning_seeds], earned[..., study.num_tuning_seeds :]
    by_size = _levels(tuning.reshape(*tuning.shape[:2], -1, tuning.shape[-1]))
    best = by_size.mean((0, 3)).reshape(len(ALGORITHMS), len(study.lambdas), -1).mean(1).argmax(-1)
    runs = np.stack([rest[:, i, :, size] for i, size in enumerate(best)], axis=1)
    broken = diverged[..., study.num_tuning_seeds :]
    counts = {name: int(broken[:, i, :, best[i]].sum()) for i, name in enumerate(ALGORITHMS)}
    chosen = {name: study.step_sizes[best[i]] for i, name in enumerate(ALGORITHMS)}
    return TabularResults(study, runs, chosen, counts)


def _levels(runs: np.ndarray) -> np.ndarray:
    means = runs.mean(-1)
    worst, best = means.min((1, 2)), means.max((1, 2))
    scale = np.where(best > worst, best - worst, 1)
    return (runs - worst[:, None, None, None]) / scale[:, None, None, None]


def _claim(text: str, measure: str, found: float, draws: Sequence[float]) -> Claim:
    low, high = np.quantile(draws, (0.025, 0.975))
    verdict = "holds" if low > 0 else "does not" if high < 0 else "cannot tell"
    return Claim(text, measure, verdict, Interval(found, float(low), float(high)))
