"""The paper's comparison with tabular learning: Eq. 7 on twenty small MDPs, for every λ and seed, in seconds.

The behaviour explores far more (ε = 0.5) than the target policy (ε = 0.1), so the data stay
off-policy. A run has two scores: the mean discounted return of its behaviour during learning, and
the expected return of the greedy policy of its last Q, computed exactly. The step size of each
algorithm is chosen on seeds that are not used afterwards.

The small world of `offtrace.mdp.small_world` is a study of its own, on the exact scale from random
to optimal play.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from offtrace import mdp as mdps
from offtrace import online, policies
from offtrace.experiments.exact import discounted_anchors, expected_returns, returns_of
from offtrace.mdp import SMALL_WORLD, FiniteMDP
from offtrace.scores import Comparison, Key

TRACES = ("retrace", "tree_backup", "q_lambda")
"""Traces that are compared; at λ = 0 each is one-step learning."""
LAMBDAS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
"""The λ of the paper's Table 2."""
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
        games[f"random {seed + 1}"] = lambda s=seed: mdps.garnet(30, 3, 3, gamma=0.9, seed=s, reward_sparsity=0.8)
    return games


TWENTY = tuple(_games())
"""Four bifurcated grids, three chains, two cliffs, four maps, seven random MDPs (γ = 0.9, never terminating)."""
GAMES: Mapping[str, Callable[[], FiniteMDP]] = MappingProxyType({**_games(), **SMALL_WORLD})
"""The twenty MDPs and the small world."""


@dataclass(frozen=True)
class TabularStudy:
    """The settings of a tabular comparison."""

    games: tuple[str, ...] = TWENTY
    lambdas: tuple[float, ...] = LAMBDAS
    step_sizes: tuple[float, ...] = (0.05, 0.1, 0.2)
    num_tuning_seeds: int = 4
    num_seeds: int = 16
    first_seed: int = 0
    num_episodes: int = 200
    max_steps: int = 100
    behaviour_epsilon: float = 0.5
    target_epsilon: float = 0.1
    exact: bool = False
    """Whether scores are on the exact scale: 0 is random play and 1 the optimal policy."""

    def __post_init__(self) -> None:
        unknown = set(self.games) - set(GAMES)
        if unknown:
            raise ValueError(f"`games` must be among {', '.join(GAMES)}; got {min(unknown)!r}.")
        if self.num_tuning_seeds < 1 or self.num_seeds < 2:
            raise ValueError(
                "`num_tuning_seeds` must be at least 1 and `num_seeds` at least 2; "
                f"got {self.num_tuning_seeds} and {self.num_seeds}."
            )
        if list(self.lambdas) != sorted(set(self.lambdas)) or 0 not in self.lambdas:
            raise ValueError(f"`lambdas` must increase and start with 0; got {self.lambdas}.")


@dataclass(frozen=True, eq=False)
class TabularResults:
    """Scores of all runs at the chosen step sizes: `runs`, `evaluations` (games, traces, λ, seeds)."""

    study: TabularStudy
    runs: np.ndarray
    """Mean return of the behaviour."""
    chosen: dict[str, float]
    """Step size of each trace."""
    num_diverged: dict[str, int]
    """Number of runs per trace whose Q was no longer finite. They have the worst score of their game."""
    evaluations: np.ndarray
    """Expected return of the greedy policy at the end."""

    def comparison(self) -> Comparison:
        """Return the comparison of all runs. At λ = 0 all traces are one algorithm, which is the baseline."""
        earned: dict[Key, list[float]] = {}
        evaluated: dict[Key, list[float]] = {}
        copies: dict[Key, Key] = {}
        for g, game in enumerate(self.study.games):
            one_step = Key(game, TRACES[0], 0.0)
            copies[Key(game, "one_step", 0.0)] = one_step
            for a, name in enumerate(TRACES):
                for i, lambda_ in enumerate(self.study.lambdas):
                    key = Key(game, name, lambda_)
                    if lambda_ == 0 and key != one_step:
                        copies[key] = one_step
                        continue
                    earned[key] = self.runs[g, a, i].tolist()
                    evaluated[key] = self.evaluations[g, a, i].tolist()
        anchors = None
        if self.study.exact:
            anchors = dict.fromkeys(self.study.games, (0.0, 1.0))
        sizes = ", ".join(f"{size:g} for {name}" for name, size in self.chosen.items())
        notes = [
            f"Tabular learning by Eq. 7, off-policy: ε is {self.study.behaviour_epsilon:g} for the behaviour and "
            f"{self.study.target_epsilon:g} for the target; {self.study.num_episodes} episodes. "
            f"Step sizes, chosen on other seeds: {sizes}."
        ]
        num_diverged = sum(self.num_diverged.values())
        if num_diverged:
            notes.append(f"{num_diverged} runs diverged; they count as the worst of their game.")
        name = f"{len(self.study.games)} small MDPs, tabular"
        if self.study.exact:
            name = "The small world, tabular"
        return Comparison(
            name,
            {"final": earned, "evaluation": evaluated},
            paired=True,
            copies=copies,
            anchors=anchors,
            final_means="Final: mean discounted return of the behaviour over a whole run.",
            notes=tuple(notes),
        )


def run(study: TabularStudy | None = None, *, progress: Callable[[int, int], None] | None = None) -> TabularResults:
    """Run a study; `progress(done, total)` is called after every game."""
    study = study or TabularStudy()
    # Tuning seeds come first, so that a study with another first seed has other tuning seeds too.
    seeds = range(study.first_seed, study.first_seed + study.num_tuning_seeds + study.num_seeds)
    earned = []
    evaluated = []
    diverged = []
    for done, name in enumerate(study.games, start=1):
        mdp = GAMES[name]()
        grid = online.sweep(
            mdp,
            traces=list(TRACES),
            lambdas=study.lambdas,
            step_sizes=study.step_sizes,
            seeds=seeds,
            behaviour=online.EpsilonGreedy(study.behaviour_epsilon, ties="first"),
            target=online.EpsilonGreedy(study.target_epsilon, ties="first"),
            num_episodes=study.num_episodes,
            max_steps=study.max_steps,
            record_every=study.num_episodes,
            keep_q=True,
        )
        has_diverged = grid.diverged_at >= 0
        evaluation = _evaluation(mdp, grid.q, has_diverged, study.max_steps)
        mean = grid.returns[..., -1]
        if study.exact:
            mean = _on_scale(mean, discounted_anchors(mdp))
            evaluation = _on_scale(evaluation, expected_returns(mdp, study.max_steps))
        earned.append(np.where(has_diverged, mean[~has_diverged].min(), mean))
        evaluated.append(np.where(has_diverged, evaluation[~has_diverged].min(), evaluation))
        diverged.append(has_diverged)
        if progress:
            progress(done, len(study.games))
    return _at_best_step_sizes(study, np.stack(earned), np.stack(evaluated), np.stack(diverged))


def _evaluation(mdp: FiniteMDP, q: np.ndarray | None, has_diverged: np.ndarray, num_steps: int) -> np.ndarray:
    """Return the expected return of the greedy policy of every Q (…, X, A); a diverged Q is replaced by 0."""
    finite = np.where(has_diverged[..., None, None], 0.0, np.asarray(q))
    greedy = policies.greedy(finite.reshape(-1, *mdp.shape))
    return returns_of(mdp, greedy, num_steps).reshape(has_diverged.shape)


def _on_scale(values: np.ndarray, ends: tuple[float, float]) -> np.ndarray:
    """Return values on the scale from random (0) to optimal play (1)."""
    random, optimal = ends
    return (values - random) / (optimal - random)


def _at_best_step_sizes(
    study: TabularStudy, earned: np.ndarray, evaluated: np.ndarray, diverged: np.ndarray
) -> TabularResults:
    """Return the results at the step size of each trace that was best on the tuning seeds.

    Shapes: `earned`, `evaluated`, `diverged` (games, traces, λ, step sizes, seeds).
    """
    tuning = earned[..., : study.num_tuning_seeds]
    rest = earned[..., study.num_tuning_seeds :]
    by_size = _levels(tuning.reshape(*tuning.shape[:2], -1, tuning.shape[-1]))
    by_size = by_size.mean((0, 3)).reshape(len(TRACES), len(study.lambdas), -1)
    best = by_size[:, 1:].mean(1).argmax(-1)
    one_step = int(by_size[0, 0].argmax())  # λ = 0 is one algorithm, and is tuned on its own
    runs, evaluations = (
        np.stack([values[:, i, :, size] for i, size in enumerate(best)], axis=1)
        for values in (rest, evaluated[..., study.num_tuning_seeds :])
    )
    runs[:, :, 0] = rest[:, :1, 0, one_step]
    evaluations[:, :, 0] = evaluated[:, :1, 0, one_step, study.num_tuning_seeds :]
    diverged = diverged[..., study.num_tuning_seeds :]
    num_diverged = {name: int(diverged[:, i, :, best[i]].sum()) for i, name in enumerate(TRACES)}
    chosen = {name: study.step_sizes[best[i]] for i, name in enumerate(TRACES)}
    return TabularResults(study, runs, chosen, num_diverged, evaluations)


def _levels(runs: np.ndarray) -> np.ndarray:
    """Return runs on the scale of their game: 0 is the worst and 1 the best mean."""
    means = runs.mean(-1)
    worst = means.min((1, 2))
    best = means.max((1, 2))
    scale = np.where(best > worst, best - worst, 1)
    return (runs - worst[:, None, None, None]) / scale[:, None, None, None]
