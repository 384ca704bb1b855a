"""Off-policy evaluation of a policy from a log in memory: seconds, and the peak memory of the process.

Logs have 1,000 states, 4 actions and episodes of 20 steps on average; μ is recorded. Memory is that
of a process which makes the log and evaluates it, and contains about 200 MB for the imports.

offtrace, all    `ot.evaluation.estimate`: Retrace(0.9), one-step fitted evaluation, six forms of importance
                 sampling and the doubly robust estimate, each with both intervals (400 bootstrap samples)
RLlib, one       `ImportanceSampling` of ray.rllib.offline.estimators, which is per-decision importance
                 sampling; one value and its standard deviation. It takes part up to a million rows.

Both answer with the per-decision estimate, which is checked against its formula.
"""

import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from offtrace.bench import Benchmark, LeftOut

NUM_STATES = 1_000
NUM_ACTIONS = 4
GAMMA = 0.95
MOST_ROWS_OF_RLLIB = 1_000_000


class Problem(NamedTuple):
    """A log and a target policy."""

    log: Any
    pi: np.ndarray


def problem(num_rows: int) -> Problem:
    from offtrace.evaluation import Log

    rng = np.random.default_rng(0)
    lengths = rng.geometric(0.05, size=num_rows // 10)
    lengths = lengths[: np.searchsorted(np.cumsum(lengths), num_rows)]
    first = np.concatenate([[0], np.cumsum(lengths)])
    size = int(first[-1])
    terminated = np.zeros(size, bool)
    terminated[first[1:] - 1] = True
    action = rng.integers(NUM_ACTIONS, size=size, dtype=np.int32)
    log = Log(
        first=first,
        state=rng.integers(NUM_STATES, size=size, dtype=np.int32),
        action=action,
        reward=rng.normal(size=size) + 0.1 * action,
        terminated=terminated,
        truncated=np.zeros(size, bool),
        mu_a=np.full(size, 1 / NUM_ACTIONS),
    )
    return Problem(log, rng.dirichlet(np.full(NUM_ACTIONS, 5.0), size=NUM_STATES))


def answer(given: Problem) -> np.ndarray:
    """Return Σ_t γ^t ρ_t r_t, averaged over the episodes."""
    log, pi = given
    ratio = np.log(pi[log.state, log.action] / log.mu_a)
    sums = np.cumsum(ratio)
    before = np.repeat(sums[log.first[:-1]] - ratio[log.first[:-1]], log.lengths)
    step = np.arange(log.num_steps) - np.repeat(log.first[:-1], log.lengths)
    return np.array((GAMMA**step * np.exp(sums - before) * log.reward).sum() / log.num_episodes)


def ours(given: Problem) -> Callable[[], np.ndarray]:
    import offtrace as ot

    def run() -> np.ndarray:
        found = ot.evaluation.estimate(given.log, target=given.pi, gamma=GAMMA, trace=ot.Retrace(0.9))
        return np.array(found["pdis"].value)

    return run


class RLlibPolicy:
    """π as RLlib's estimators ask for it."""

    def __init__(self, pi: np.ndarray) -> None:
        self.pi = pi
        self.config: dict[str, Any] = {}
        self.action_space = None

    def compute_log_likelihoods(self, actions: Any, obs_batch: Any, **_: Any) -> np.ndarray:
        return np.log(self.pi[np.asarray(obs_batch, np.int64).ravel(), np.asarray(actions)])


def rllib(given: Problem) -> Callable[[], np.ndarray]:
    log, pi = given
    if log.num_steps > MOST_ROWS_OF_RLLIB:
        raise LeftOut("only up to a million rows")
    try:
        estimators = importlib.import_module("ray.rllib.offline.estimators")
        batches = importlib.import_module("ray.rllib.policy.sample_batch")
    except ImportError as error:
        raise LeftOut(f"not installed: {error}; pip install 'ray[rllib]'") from None
    batch = batches.SampleBatch(
        {
            "obs": log.state[:, None].astype(np.float32),
            "actions": log.action,
            "rewards": log.reward,
            "eps_id": np.repeat(np.arange(log.num_episodes), log.lengths),
            "action_prob": log.mu_a,
            "action_logp": np.log(log.mu_a),
            "terminateds": log.terminated,
            "truncateds": log.truncated,
        }
    )
    policy: Any = RLlibPolicy(pi)
    estimator = estimators.ImportanceSampling(policy, gamma=GAMMA)
    return lambda: np.array(estimator.estimate(batch)["v_target"])


def megabytes(num_rows: int, name: str) -> float:
    """Return the peak memory of a process that makes the log and evaluates it; Linux only."""
    if not Path("/proc/self/status").exists():
        return float("nan")
    command = [sys.executable, __file__, str(num_rows), name]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


BENCHMARK = Benchmark(
    name="evaluation",
    question="How long does off-policy evaluation of a log take? (rows)",
    rows=(100_000, 1_000_000, 10_000_000),
    quick_rows=1,
    problem=problem,
    answer=answer,
    contenders={"offtrace, all": ours, "RLlib, one": rllib},
    ours=("offtrace, all",),
    columns={"M rows/s": lambda num_rows, seconds: num_rows / seconds / 1e6},
    measures={"peak MB": megabytes},
    repeats=7,
    min_time=0.0,
)

if __name__ == "__main__":
    size, contender = int(sys.argv[1]), sys.argv[2]
    BENCHMARK.contenders[contender](problem(size))()
    # Not `ru_maxrss`, which a process takes over from the one that started it.
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    print(int(peak.split()[1]) / 1e3)
