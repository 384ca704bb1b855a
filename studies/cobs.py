"""Compares estimators on two MDPs of COBS (Voloshin et al. 2021), by relative mean squared error.

    python studies/cobs.py                        ours, 10 seeds, about ten minutes on two cores
    python studies/cobs.py --quick                a small part, in seconds
    python studies/cobs.py --cobs PATH            beside COBS's own Retrace, TB and Q(λ)

The MDPs are rebuilt from their definitions:

    Graph       T steps through two rows of states, γ = .98. Action 0 leads to the upper row with
                probability .75, action 1 with .25. A state of the upper row pays 1 and one of the
                lower row −1, on arrival; the last step pays for the state that it leaves. The
                target takes action 0 with probability .8, the behaviour with .2 or .6.
    Gridworld   8 × 8 cells, γ = .96, at most 25 steps. A slip of .2 takes a random direction.
                Episodes start in the top row or the left column, and end in the bottom right
                cell. The target is ε-greedy with ε = .1, the behaviour with ε from .2 to 1.

PATH is a checkout of COBS (github.com/clvoloshin/COBS). Its Retrace class is imported from there
and gets the same logs; it needs PyTorch, scikit-learn, pandas and tqdm.

Results are appended to a file of JSON lines, one per log, and a log that is in the file is not
evaluated again.
"""

import argparse
import functools
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from runs import add_options, read_lines, run_all, write_csv

import offtrace as ot
from offtrace.evaluation import Log, estimate
from offtrace.evaluation.simulation import simulate
from offtrace.mdp import FiniteMDP
from offtrace.operators import q_pi, q_star

LAMBDA = 0.9
TRACES = {
    "Retrace": ot.Retrace(LAMBDA),
    "TB": ot.TreeBackup(LAMBDA),
    "Q(λ)": ot.QLambda(LAMBDA),
    "IS trace": ot.ImportanceSampling(LAMBDA),
}
THEIRS = {"Retrace": "Retrace", "TB": "Tree-Backup", "Q(λ)": "Q^pi(lambda)"}
"""COBS's names of the traces."""
SHOWN = ("is", "wis", "pdis", "wpdis", "dr", "wdr", "fqe", *TRACES)

HOLE = -0.5
FIELD = -0.005
PLAIN = -0.01
MAP = """
........
..f.h...
...h..f.
.f...h.f
...h..f.
.hh.f.h.
.h..h.h.
...h.f.G
"""
MOVES = ((0, -1), (0, 1), (-1, 0), (1, 0))
"""(row, column) of left, right, up, down."""
SLIP = 0.2
HORIZON = 25


# -- the MDPs ------------------------------------------------------------------------------------


def graph(num_steps: int) -> FiniteMDP:
    """Return the Graph of T steps.

    State 2k − 1 is the upper and 2k the lower state of layer k:

        layer     0     1     2    …   T − 1
        upper           1     3        2T − 3
              0
        lower           2     4        2T − 2
    """
    num_states = 2 * num_steps - 1
    p = np.zeros((num_states, 2, num_states))
    r = np.zeros((num_states, 2, num_states))
    for x in range(num_states):
        layer = (x + 1) // 2
        if layer == num_steps - 1:
            p[x, :, 0] = 1  # the episode ends
            r[x, :, 0] = 1 if x % 2 else -1
            continue
        upper = 2 * layer + 1
        p[x, :, upper] = 0.75, 0.25
        p[x, :, upper + 1] = 0.25, 0.75
        r[x, :, upper] = 1
        r[x, :, upper + 1] = -1
    terminates = np.zeros((num_states, 2))
    terminates[-2:] = 1
    start = np.eye(num_states)[0]
    return FiniteMDP(p=p, r=r, gamma=0.98, terminates=terminates, start=start, name=f"graph {num_steps}")


def graph_policy(num_steps: int, probability: float) -> np.ndarray:
    """Return the policy that takes action 0 with this probability."""
    return np.tile([probability, 1 - probability], (2 * num_steps - 1, 1))


def gridworld() -> FiniteMDP:
    """Return the Gridworld; a step pays the reward of the cell that it leads to."""
    cells = "".join(MAP.split())
    reward = np.array([{".": PLAIN, "f": FIELD, "h": HOLE, "G": 1.0}[cell] for cell in cells])
    p = np.zeros((64, 4, 64))
    for x in range(64):
        row, column = divmod(x, 8)
        for moved, (down, right) in enumerate(MOVES):
            there = (row + down, column + right)
            if not all(0 <= place < 8 for place in there):
                there = (row, column)
            p[x, :, 8 * there[0] + there[1]] += SLIP / 4
            p[x, moved, 8 * there[0] + there[1]] += 1 - SLIP
    start = np.zeros(64)
    start[:8] = 1
    start[::8] = 1
    return FiniteMDP(
        p=p,
        r=np.broadcast_to(reward, p.shape),
        gamma=0.96,
        terminates=np.arange(64) == 63,
        start=start / start.sum(),
        name="gridworld",
    )


def greedy(mdp: FiniteMDP) -> np.ndarray:
    """Return the actions of COBS's policy (X,): optimal for γ = .99 if there were no slips; the first of the best.

    There a state's own reward is counted on leaving it, which moves no maximum but that of the goal.
    """
    p = np.zeros_like(mdp.dense())
    x = np.arange(mdp.num_states)
    for action in range(4):
        p[x, action, mdp.dense()[:, action].argmax(axis=1)] = 1
    reward = np.array([{".": PLAIN, "f": FIELD, "h": HOLE, "G": 1.0}[cell] for cell in "".join(MAP.split())])
    sure = FiniteMDP(p=p, r=np.broadcast_to(reward, p.shape), gamma=0.99, terminates=x == mdp.num_states - 1)
    q = q_star(sure)
    return (q > q.max(axis=1, keepdims=True) - 1e-9).argmax(axis=1)


def epsilon_greedy(actions: np.ndarray, epsilon: float) -> np.ndarray:
    """Return the policy (X, 4) that takes a random action with probability ε."""
    return epsilon / 4 + (1 - epsilon) * np.eye(4)[actions]


def value(mdp: FiniteMDP, pi: np.ndarray, num_steps: int | None = None) -> float:
    """Return the exact value of π at the start; of its first `num_steps` steps where given."""
    if num_steps is None:
        return float(mdp.start @ (pi * q_pi(mdp, pi)).sum(axis=1))
    move = np.zeros(mdp.num_states)  # the value of the steps that are left
    for _ in range(num_steps):
        ahead = np.add.reduceat(mdp.continuing * move[mdp.successor], mdp.first[:-1]).reshape(mdp.shape)
        move = (pi * (mdp.r + mdp.gamma * ahead)).sum(axis=1)
    return float(mdp.start @ move)


class Setting(NamedTuple):
    """One MDP with its two policies."""

    name: str
    mdp: FiniteMDP
    pi: np.ndarray
    mu: np.ndarray
    truth: float
    horizon: int


@functools.cache
def settings(quick: bool) -> list[Setting]:
    found = []
    for num_steps in (4, 16):
        for p in (0.2, 0.6):
            mdp = graph(num_steps)
            pi = graph_policy(num_steps, 0.8)
            name = f"graph T={num_steps} {p:g}→.8"
            found.append(Setting(name, mdp, pi, graph_policy(num_steps, p), value(mdp, pi), num_steps))
    mdp = gridworld()
    actions = greedy(mdp)
    pi = epsilon_greedy(actions, 0.1)
    truth = value(mdp, pi, HORIZON)
    for epsilon in (1.0, 0.8, 0.6, 0.4, 0.2):
        mu = epsilon_greedy(actions, epsilon)
        found.append(Setting(f"grid ε {epsilon:g}→.1", mdp, pi, mu, truth, HORIZON))
    return [found[0], found[2], found[-1]] if quick else found


def sizes(setting: Setting, quick: bool) -> tuple[int, ...]:
    powers = range(3, 11) if setting.name.startswith("graph") else range(6, 11)
    chosen = tuple(2**power for power in powers)
    return chosen[::3] if quick else chosen


# -- the estimates -------------------------------------------------------------------------------


def draw(setting: Setting, num_episodes: int, seed: int) -> Log:
    """Return a log whose last step terminates: as in COBS, nothing is earned after step T."""
    log = simulate(setting.mdp, setting.mu, num_episodes, seed=seed, max_steps=setting.horizon)
    ended = log.terminated | log.truncated
    return Log(
        first=log.first,
        action=log.action,
        reward=log.reward,
        terminated=ended,
        truncated=np.zeros_like(ended),
        state=log.state,
        successor=log.successor,
        mu_a=log.mu_a,
    )


def ours(log: Log, setting: Setting) -> dict[str, float]:
    first, *rest = TRACES.values()
    found = estimate(
        log, target=setting.pi, gamma=setting.mdp.gamma, trace=first, traces=rest, num_bootstrap=2, seed=0
    )
    names = {repr(trace): name for name, trace in TRACES.items()}
    return {names.get(one.name, one.name): one.value for one in found.estimates}


class PaddedLog:
    """A log as COBS's classes read it: every episode has T steps.

    An episode that has ended stays in a state of its own, where π and μ take action 0 and nothing is
    paid.
    """

    def __init__(self, log: Log, setting: Setting) -> None:
        assert log.state is not None
        assert log.successor is not None
        self.n_actions = setting.mdp.num_actions
        shape = (log.num_episodes, setting.horizon)
        absorbing = setting.mdp.num_states
        stays = np.eye(self.n_actions)[0]
        episode = np.repeat(np.arange(log.num_episodes), log.lengths)
        place = (episode, np.arange(log.num_steps) - log.first[episode])
        self._states = np.full(shape, absorbing)
        self._next = np.full(shape, absorbing)
        self._actions = np.zeros(shape, np.int64)
        self._rewards = np.zeros(shape)
        self._dones = np.ones(shape)
        self._pi = np.tile(stays, (*shape, 1))
        self._mu = self._pi.copy()
        self._states[place] = log.state
        self._next[place] = np.where(log.terminated, absorbing, log.successor)
        self._actions[place] = log.action
        self._rewards[place] = log.reward
        self._dones[place] = log.terminated
        self._pi[place] = setting.pi[log.state]
        self._mu[place] = setting.mu[log.state]

    def states(self) -> np.ndarray:
        return self._states

    def next_states(self) -> np.ndarray:
        return self._next

    def actions(self) -> np.ndarray:
        return self._actions

    def rewards(self) -> np.ndarray:
        return self._rewards

    def dones(self) -> np.ndarray:
        return self._dones

    def target_propensity(self) -> np.ndarray:
        return self._pi

    def base_propensity(self) -> np.ndarray:
        return self._mu


class TargetPolicy:
    """π as COBS's classes call it, over the rows of their own table of states."""

    def __init__(self, data: PaddedLog, pi: np.ndarray) -> None:
        visited = np.unique(np.vstack([data.states(), data.next_states()])).astype(np.int64)
        table = np.vstack([pi, np.eye(pi.shape[1])[0]])
        self._rows = table[visited]

    def predict(self, states: np.ndarray) -> np.ndarray:
        return self._rows[states]


class TheirConfig(NamedTuple):
    """The settings that COBS's classes read."""

    gamma: float
    models: dict[str, dict[str, float]]


def theirs(
    log: Log, setting: Setting, path: Path, max_epochs: int = 100, tolerance: float = 1e-3
) -> dict[str, float]:
    """Return the values by COBS's own Retrace family, with the settings of its tabular example."""
    if str(path) not in sys.path:
        sys.path.append(str(path))
    from ope.algos.retrace_lambda import Retrace  # ty: ignore[import-not-found]

    data = PaddedLog(log, setting)
    limits = {"convergence_epsilon": tolerance, "divergence_epsilon": 1000, "max_epochs": max_epochs}
    config = TheirConfig(setting.mdp.gamma, dict.fromkeys(THEIRS.values(), limits))
    policy = TargetPolicy(data, setting.pi)
    found = {}
    for name, their_name in THEIRS.items():
        model = Retrace(their_name, LAMBDA)
        model.fit_tabular(data, policy, config, verbose=False)
        q = model.Q_tabular(data.states()[:, 0])
        found[f"COBS {name}"] = float((setting.pi[data.states()[:, 0]] * q).sum(axis=1).mean())
    return found


def evaluate_one(task: tuple[str, int, int, bool, str | None]) -> dict[str, Any]:
    """Return the line of results for one log."""
    name, num_episodes, seed, quick, path = task
    setting = next(one for one in settings(quick) if one.name == name)
    log = draw(setting, num_episodes, seed)
    values = ours(log, setting)
    if path is not None:
        values |= theirs(log, setting, Path(path))
    return {"setting": name, "num_episodes": num_episodes, "seed": seed, "truth": setting.truth, "values": values}


# -- tables --------------------------------------------------------------------------------------


def relative_errors(lines: list[dict[str, Any]]) -> dict[tuple[str, int], dict[str, float]]:
    """Return the mean of (V̂ − V)² / V² over the seeds, by setting and number of episodes."""
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for line in lines:
        groups.setdefault((line["setting"], line["num_episodes"]), []).append(line)
    found = {}
    for key, group in groups.items():
        truth = group[0]["truth"]
        names = group[0]["values"]
        found[key] = {
            name: float(np.mean([(line["values"][name] / truth - 1) ** 2 for line in group])) for name in names
        }
    return found


def print_tables(lines: list[dict[str, Any]]) -> None:
    errors = relative_errors(lines)
    names = [name for name in SHOWN if name in next(iter(errors.values()))]
    _print_errors("Relative mean squared error", errors, names)
    beside = [name for name in ("Retrace", "TB", "Q(λ)") if f"COBS {name}" in next(iter(errors.values()))]
    if beside:
        pairs = [column for name in beside for column in (name, f"COBS {name}")]
        _print_errors("The same traces, by this library and by COBS (λ = .9)", errors, pairs)
        _print_values(lines, pairs)


def _print_errors(title: str, errors: dict[tuple[str, int], dict[str, float]], names: list[str]) -> None:
    print(f"\n{title}")
    for setting in dict.fromkeys(key[0] for key in errors):
        counts = sorted(key[1] for key in errors if key[0] == setting)
        print(f"\n{setting:<18}" + "".join(f"{count:>8}" for count in counts))
        for name in names:
            cells = [errors[setting, count].get(name, np.nan) for count in counts]
            print(f"  {name:<16}" + "".join(f"{cell:>8.1e}" for cell in cells))


def _print_values(lines: list[dict[str, Any]], names: list[str]) -> None:
    print("\nMean value\n")
    print(f"{'setting':<18}{'N':>5}{'true':>8}" + "".join(f"{name.replace('COBS ', 'C. '):>11}" for name in names))
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for line in lines:
        groups.setdefault((line["setting"], line["num_episodes"]), []).append(line)
    for (setting, count), group in sorted(groups.items()):
        means = [np.mean([line["values"][name] for line in group]) for name in names]
        print(f"{setting:<18}{count:>5}{group[0]['truth']:>8.3f}" + "".join(f"{mean:>11.3f}" for mean in means))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, repetitions=10, output="cobs.jsonl")
    parser.add_argument("--cobs", type=Path, help="a checkout of COBS")
    parser.add_argument("--max-episodes", type=int, default=1024, help="the largest log (1024)")
    given = parser.parse_args()
    seeds = range(given.seed, given.seed + (2 if given.quick else given.repetitions))
    path = None if given.cobs is None else str(given.cobs)
    tasks = [
        (setting.name, count, seed, given.quick, path)
        for setting in settings(given.quick)
        for count in sizes(setting, given.quick)
        if count <= given.max_episodes
        for seed in seeds
    ]
    tasks.sort(key=lambda task: task[1])  # small logs first
    if not given.tables:
        run_all(
            evaluate_one,
            tasks,
            given.output,
            given.jobs,
            key=lambda line: (line["setting"], line["num_episodes"], line["seed"]),
            of_task=lambda task: task[:3],
        )
    lines = read_lines(given.output)
    print_tables(lines)
    rows = [
        {"setting": setting, "num_episodes": count, "estimator": name, "relative_mse": error}
        for (setting, count), errors in relative_errors(lines).items()
        for name, error in errors.items()
    ]
    write_csv(given.output.with_suffix(".csv"), rows)


if __name__ == "__main__":
    main()
