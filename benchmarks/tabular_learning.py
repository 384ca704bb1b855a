"""Tabular learning, environment and learner together: steps per second, for different numbers of
states.

control     ε-greedy on the bifurcated grid (Daley et al. 2023), Q updated at every step, λ = 0.9, several seeds
evaluation  a fixed π from a fixed μ on a random MDP of X states, 4 actions and 5 successors, λ = 0.9
nearby      the same from one start state with nearby successors, so that few states are visited, whatever X is

A step does the same work for every X, as the rows `nearby` show. The rows `evaluation` visit all of
X·A at random, so from 10,000 states on they include cache misses, about ten per step.

The published code is github.com/brett-daley/trajectory-aware-etraces. It takes part if
`trajectory_aware_etraces` and its requirements (gym 0.19, gym-classics 0.0.2) can be imported; put
its folder on PYTHONPATH.
"""

import bisect
import functools
import importlib
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import offtrace as ot
from offtrace import online
from offtrace.bench import Benchmark, LeftOut
from offtrace.mdp import FiniteMDP
from offtrace.mdp.grids import bifurcated_grid
from offtrace.mdp.textbook import garnet
from offtrace.online.policy_sequences import as_policy_sequence
from offtrace.online.problem import LearningProblem, learning_problem

Function = Callable[[], np.ndarray]
LAMBDA = 0.9
BEHAVIOUR = 0.2
TARGET = 0.1
ALPHA = {"control": 0.9, "evaluation": 0.1, "nearby": 0.1}
"""Step sizes. All settings of control are those of the published experiments on this grid."""
NUM_RUNS = 8
MAX_STEPS = 100


class Workload(NamedTuple):
    """One row of the benchmark: the task, the number of states, the trace, when Q is updated, and steps per call."""

    task: str
    num_states: int
    trace: str
    update: str
    num_steps: int

    def __str__(self) -> str:
        when = "every step" if self.update == "step" else "trajectories"
        return f"{self.task}, {self.num_states:,} states, {self.trace}, {when}"


class Problem(NamedTuple):
    row: Workload
    mdp: FiniteMDP
    pi: Any
    mu: Any


def problem(row: Workload) -> Problem:
    if row.task == "control":
        return Problem(row, bifurcated_grid(gamma=0.9), online.EpsilonGreedy(TARGET), online.EpsilonGreedy(BEHAVIOUR))
    rng = np.random.default_rng(0)
    pi, mu = (rng.dirichlet(np.ones(4), size=row.num_states) for _ in range(2))
    if row.task == "evaluation":
        return Problem(row, garnet(row.num_states, 4, 5, gamma=0.95, seed=0), pi, mu)
    near = garnet(row.num_states, 4, 5, gamma=0.95, seed=0, local=10)
    start = np.zeros(row.num_states)
    start[row.num_states // 2] = 1
    mdp = FiniteMDP.from_transitions(
        probability=near.probability,
        successor=near.successor,
        first=near.first,
        num_actions=4,
        r=near.r,
        gamma=0.95,
        start=start,
    )
    return Problem(row, mdp, pi, mu)


# -- ours ------------------------------------------------------------------------------------------


def ours(p: Problem, num_threads: int | None) -> Function:
    """Call the public function with all runs at once, and enough trajectories for the steps."""
    if p.row.update != "step":
        raise LeftOut("this row measures single steps, without preparation")
    run = functools.partial(
        online.sweep,
        p.mdp,
        traces=[p.row.trace],
        lambdas=[LAMBDA],
        step_sizes=[ALPHA[p.row.task]],
        seeds=range(NUM_RUNS),
        target=p.pi,
        behaviour=p.mu,
        update=p.row.update,
        max_steps=MAX_STEPS,
        num_threads=num_threads,
    )
    return enough(p, lambda num: run(num_episodes=num).num_steps[..., -1].sum())


def one_run(p: Problem) -> Function:
    """Do one long run that was prepared beforehand: no checks, no sums, no search for reachable states."""
    trace = ot.as_trace(p.row.trace, lambda_=LAMBDA)
    size = online.StepSize(ALPHA[p.row.task])

    @functools.lru_cache(maxsize=1)
    def ready(num_episodes: int) -> LearningProblem:
        policies = as_policy_sequence(p.pi, "pi"), as_policy_sequence(p.mu, "mu")
        return learning_problem(p.mdp, *policies, num_episodes=num_episodes, max_steps=MAX_STEPS, update=p.row.update)

    def run(num_episodes: int) -> np.ndarray:
        learned = ready(num_episodes).run(trace, ready(num_episodes).compile_trace(trace), size, 0)
        assert learned is not None
        return learned.num_steps[-1]

    return enough(p, run)


def enough(p: Problem, run: Callable[[int], np.ndarray]) -> Function:
    """Call `run` with enough trajectories for the steps; report at most the steps that were asked for."""
    num_episodes = -(-p.row.num_steps // (NUM_RUNS * MAX_STEPS))
    while (made := run(num_episodes)) < p.row.num_steps:
        num_episodes = -(-num_episodes * p.row.num_steps // int(made))
    return lambda: np.minimum(run(num_episodes), p.row.num_steps)


# -- peers -----------------------------------------------------------------------------------------


class Walker:
    """An environment for a Python loop, with lookup tables, and random numbers drawn in blocks."""

    def __init__(self, mdp: FiniteMDP) -> None:
        first = mdp.first.tolist()
        self.rows = list(itertools.pairwise(first))
        self.cumulative = [np.cumsum(mdp.probability[i:j]).tolist() for i, j in self.rows]
        self.successor = mdp.successor.tolist()
        self.ends = [False] * len(self.successor) if mdp.ends is None else (mdp.ends > 0).tolist()
        self.reward = (np.repeat(mdp.r.ravel(), np.diff(first)) if mdp.reward is None else mdp.reward).tolist()
        self.start = np.flatnonzero(mdp.start).tolist()
        self.num_actions = mdp.num_actions
        rng = np.random.default_rng(0)
        self.uniform = itertools.chain.from_iterable(rng.random(4096).tolist() for _ in itertools.count())

    def first_state(self) -> int:
        return self.start[int(next(self.uniform) * len(self.start))]

    def choice(self, probabilities: np.ndarray) -> int:
        return min(bisect.bisect(np.cumsum(probabilities).tolist(), next(self.uniform)), len(probabilities) - 1)

    def step(self, x: int, a: int) -> tuple[float, int, bool]:
        pair = x * self.num_actions + a
        i, stop = self.rows[pair]
        if stop - i > 1:
            i += min(bisect.bisect(self.cumulative[pair], next(self.uniform)), stop - i - 1)
        return self.reward[i], self.successor[i], self.ends[i]


def epsilon_greedy(q: np.ndarray, epsilon: float) -> np.ndarray:
    row = np.full(len(q), epsilon / len(q))
    row[q.argmax()] += 1 - epsilon
    return row


def numpy_loop(p: Problem) -> Function:
    """Take one step at a time: z (X, A) for a Markov trace, an array of visits for a trajectory-aware one."""
    if p.row.num_steps > 100_000 or p.row.num_states > 10_000:
        raise LeftOut("O(X·A) per step: it would take hours")
    walker = Walker(p.mdp)
    gamma = p.mdp.gamma
    shape = p.mdp.shape
    control = p.row.task == "control"
    aware = p.row.trace == "rbis"
    alpha = ALPHA[p.row.task]

    def policy(given: Any, epsilon: float, q: np.ndarray, x: int) -> np.ndarray:
        return epsilon_greedy(q[x], epsilon) if control else given[x]

    def run() -> np.ndarray:
        q = np.zeros(shape)
        made = 0
        visits = np.empty(MAX_STEPS, np.int64)
        beta, reach, power = np.empty((3, MAX_STEPS))
        while made < p.row.num_steps:
            x = walker.first_state()
            z = np.zeros(shape)
            for t in range(min(MAX_STEPS, p.row.num_steps - made)):
                mu = policy(p.mu, BEHAVIOUR, q, x)
                a = walker.choice(mu)
                ratio = policy(p.pi, TARGET, q, x)[a] / mu[a]
                r, x_next, ended = walker.step(x, a)
                value = 0.0 if ended else policy(p.pi, TARGET, q, x_next) @ q[x_next]
                delta = r + gamma * value - q[x, a]
                if aware:
                    reach[:t] *= gamma
                    power[:t] *= LAMBDA
                    np.minimum(power[:t], beta[:t] * ratio, out=beta[:t])
                    beta[t] = reach[t] = power[t] = 1.0
                    visits[t] = x * shape[1] + a
                    np.add.at(q.reshape(-1), visits[: t + 1], alpha * delta * (reach * beta)[: t + 1])
                else:
                    z *= gamma * LAMBDA * min(1.0, ratio)
                    z[x, a] += 1
                    q += alpha * delta * z
                made += 1
                x = x_next
                if ended:
                    break
        return np.asarray(made)

    return run


class Published(NamedTuple):
    """The parts of trajectory_aware_etraces that are used."""

    sampling: Any
    training: Any
    trace: Any


def published(p: Problem) -> Published:
    if p.row.task != "control":
        raise LeftOut("it only has control on these grids")
    importlib.import_module("trajectory_aware_etraces.envs")
    sampling, training, algorithms = (
        importlib.import_module(f"trajectory_aware_etraces.{name}")
        for name in ("experiments.sampling", "experiments.training", "algorithms")
    )
    trace = {"rbis": algorithms.RBIS, "retrace": algorithms.Retrace}[p.row.trace]
    return Published(sampling, training, trace(p.mdp.gamma, LAMBDA))


def published_experiment(p: Problem) -> Function:
    """Run its experiment unchanged, with a test episode after every episode; only training steps are counted."""
    theirs = published(p)
    n = p.row.num_steps
    theirs.training.CONFIG = {"max_episode_len": 50, "eval_eps": 0.05, "explore_episodes": 5, "vf_noise_std": 0.01}
    run = functools.partial(
        theirs.training.run_control_trial, "Bifurcation1-v0", BEHAVIOUR, TARGET, theirs.trace, ALPHA["control"]
    )
    return lambda: np.asarray(len(run(n, seed=0)) - 1)


def published_learner(p: Problem) -> Function:
    """Run its environment, sampler, policies and traces in the loop of its experiments, without test episodes."""
    theirs = published(p)
    gamma = p.mdp.gamma
    alpha = ALPHA["control"]

    def run() -> np.ndarray:
        sampler = theirs.sampling.EnvSampler("Bifurcation1-v0", 0)
        q, made = np.zeros((sampler.env.observation_space.n, sampler.env.action_space.n)), 0
        behaviour, target = (theirs.training.epsilon_greedy_policy(q, epsilon) for epsilon in (BEHAVIOUR, TARGET))
        states: list[int] = []
        actions: list[int] = []
        while made < p.row.num_steps:
            x, a, r, x_next, ended = sampler.step(behaviour)
            states.append(x)
            actions.append(a)
            delta = r - q[x, a]
            if not ended:
                delta += gamma * (target(x_next) * q[x_next]).sum()
            made += 1
            done = ended or len(states) == MAX_STEPS or made == p.row.num_steps
            updates = theirs.trace.step(delta, behaviour(x)[a], target(x)[a], done)
            np.add.at(q, (states, actions), alpha * updates)
            if done:
                states, actions = [], []
        return np.asarray(made)

    return run


BENCHMARK = Benchmark(
    name="tabular_learning",
    question="How many steps per second does tabular learning make?",
    rows=(
        Workload("control", 25, "rbis", "step", 100_000),
        Workload("control", 25, "retrace", "step", 100_000),
        Workload("evaluation", 1_000, "retrace", "step", 100_000),
        Workload("nearby", 1_000, "retrace", "trajectory", 1_000_000),
        Workload("nearby", 30_000, "retrace", "trajectory", 1_000_000),
        Workload("nearby", 1_000_000, "retrace", "trajectory", 1_000_000),
        Workload("evaluation", 1_000, "retrace", "trajectory", 1_000_000),
        Workload("evaluation", 30_000, "retrace", "trajectory", 1_000_000),
        Workload("evaluation", 1_000_000, "retrace", "trajectory", 1_000_000),
    ),
    quick_rows=3,
    problem=problem,
    answer=lambda p: np.asarray(
        p.row.num_steps
    ),  # checks that all make the same steps; the tests check what is learned
    contenders={
        "offtrace": lambda p: ours(p, None),
        "offtrace, one thread": lambda p: ours(p, 1),
        "offtrace, one prepared run": one_run,
        "NumPy, one step at a time": numpy_loop,
        "published, its experiment": published_experiment,
        "published, its learner": published_learner,
    },
    ours=("offtrace",),
    columns={"M steps/s": lambda row, seconds: row.num_steps / seconds / 1e6},
    slow=("NumPy, one step at a time", "published, its experiment", "published, its learner"),
    repeats=7,
)
