"""`evaluate`, `control`, `sweep` and `collect`: learning from trajectories by Eq. 7, and collecting them."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np

from offtrace.mdp import FiniteMDP
from offtrace.online.checks import check_trace, count, table
from offtrace.online.policy_sequences import EpsilonGreedy, Greedy, as_policy_sequence
from offtrace.online.problem import LearningProblem, learning_problem, model_of
from offtrace.online.records import CURVES, Learned, SweepResult, Trajectories
from offtrace.online.runner import run_all
from offtrace.online.schedules import DEFAULT_STEP_SIZE, StepSize, as_step_size
from offtrace.traces import Trace, as_trace


def evaluate(
    source: Any,
    *,
    pi: Any,
    mu: Any = None,
    trace: Any,
    step_size: Any = DEFAULT_STEP_SIZE,
    seed: int = 0,
    num_episodes: int | None = None,
    update: str = "trajectory",
    view: str = "forward",
    visits: str = "every",
    q0: Any = 0.0,
    gamma: float | None = None,
    order: str = "stored",
    max_steps: int = 1_000,
    truth: Any = None,
    weights: Any = None,
    record_every: int | None = None,
    engine: str = "auto",
) -> Learned:
    """Estimate Q^π of a fixed π from trajectories of μ, by Eq. 7: one run.

    `pi` and `mu` are (X, A). Without `mu` the run is on-policy. `mu` may also be a sequence of
    policies such as `EpsilonGreedy(0.1)`; `Trajectories` bring their own μ, the `mu_a` stored with
    them. The source and the other options are those of `control`.

    >>> coin = FiniteMDP(p=[[[1.0], [1.0]]], r=[[1.0, 0.0]], gamma=0.0, terminates=[True])
    >>> learned = evaluate(coin, pi=[[0.5, 0.5]], trace="retrace", num_episodes=100, seed=1)
    >>> learned.q
    array([[1., 0.]])
    """
    target = as_policy_sequence(pi, "pi")
    behaviour = target
    if mu is not None and not isinstance(source, Trajectories):
        behaviour = as_policy_sequence(mu, "mu")
    problem = learning_problem(
        source,
        target,
        behaviour,
        num_episodes=num_episodes,
        update=update,
        view=view,
        visits=visits,
        q0=q0,
        gamma=gamma,
        order=order,
        max_steps=max_steps,
        truth=truth,
        weights=weights,
        record_every=record_every,
        engine=engine,
    )
    return _run_once(problem, trace, step_size, seed)


def control(
    source: Any,
    *,
    trace: Any,
    behaviour: Any = None,
    target: Any = None,
    step_size: Any = DEFAULT_STEP_SIZE,
    seed: int = 0,
    num_episodes: int | None = None,
    update: str = "trajectory",
    view: str = "forward",
    visits: str = "every",
    q0: Any = 0.0,
    gamma: float | None = None,
    order: str = "stored",
    max_steps: int = 1_000,
    truth: Any = None,
    weights: Any = None,
    record_every: int | None = None,
    engine: str = "auto",
) -> Learned:
    """Estimate Q* by Eq. 7, with policies that follow Q_k: one run.

    Args:
        source: A `FiniteMDP`, a Gymnasium environment with discrete spaces (give `gamma=`), or `Trajectories`.
        trace: A trace such as `ot.Retrace(0.9)`, or anything that `ot.as_trace` takes.
        behaviour: μ_k, default `EpsilonGreedy(0.1)`. An array (X, A), `Greedy()`, `EpsilonGreedy(ε)`, `Softmax(β)`,
            `Mixture(mu, ε)` (Eq. 8) or a function of (q, x, k) with q = Q(x, ·). ε and β are numbers or schedules.
        target: π_k, in the same forms; default `Greedy()`, which makes Retrace Watkins' Q(λ).
        step_size: A number or a `StepSize`; default visits^−0.6, bounded so that it never overshoots.
        seed: Random seed.
        num_episodes: Number of trajectories; default 1,000, or every stored trajectory once.
        update: "trajectory" keeps Q_k, π_k and μ_k fixed along a trajectory, as Eq. 7 does; "step" updates them at
            every step.
        view: "forward" or "backward": two ways to compute the same numbers, for `update="trajectory"`.
        visits: "every" or "first": which visits of a pair in a trajectory count.
        q0: Initial Q: a number, or (X, A).
        gamma: Discount, required for environments; replaces the one of other sources.
        order: "stored" or "random": the order in which `Trajectories` are replayed.
        max_steps: Maximum steps per trajectory. A longer one is cut: its last state keeps its value, its trace ends.
        truth: The true Q (X, A), for curves of the error.
        weights: Weights of the error (X, A); default 1 for every pair that can be visited.
        record_every: Trajectories between two points of the curves; default a hundredth of all.
        engine: "compiled", "python", or "auto": compiled where the trace, the policies and the source allow it.

    >>> coin = FiniteMDP(p=[[[1.0], [1.0]]], r=[[1.0, 0.0]], gamma=0.0, terminates=[True])
    >>> control(coin, trace="watkins", num_episodes=100, truth=[[1.0, 0.0]], record_every=50).max_error
    array([1., 0., 0.])
    """
    problem = learning_problem(
        source,
        as_policy_sequence(Greedy() if target is None else target, "target"),
        as_policy_sequence(EpsilonGreedy(0.1) if behaviour is None else behaviour, "behaviour"),
        num_episodes=num_episodes,
        update=update,
        view=view,
        visits=visits,
        q0=q0,
        gamma=gamma,
        order=order,
        max_steps=max_steps,
        truth=truth,
        weights=weights,
        record_every=record_every,
        engine=engine,
    )
    return _run_once(problem, trace, step_size, seed)


def sweep(
    source: Any,
    *,
    traces: Iterable[Any],
    lambdas: Iterable[float] = (1.0,),
    step_sizes: Iterable[Any] = (DEFAULT_STEP_SIZE,),
    seeds: Iterable[int] = (0,),
    behaviour: Any = None,
    target: Any = None,
    keep_q: bool = False,
    num_threads: int | None = None,
    progress: bool = False,
    num_episodes: int | None = None,
    update: str = "trajectory",
    view: str = "forward",
    visits: str = "every",
    q0: Any = 0.0,
    gamma: float | None = None,
    order: str = "stored",
    max_steps: int = 1_000,
    truth: Any = None,
    weights: Any = None,
    record_every: int | None = None,
    engine: str = "auto",
) -> SweepResult:
    """Run every combination of trace, λ, step size and seed, over the cores.

    `traces` are names, classes, values or functions, as in `ot.as_trace`. Each is run at every λ of
    `lambdas`, which replaces a value's own λ. `keep_q` keeps every final Q; `num_threads` is by default
    one per core; `progress` shows a progress bar. The other options are those of `control`; a fixed
    `target` (X, A) is evaluated.

    A run depends on its seed only, not on the number of threads. Runs with the same seed draw the
    same random numbers, so they can be compared in pairs.

    >>> coin = FiniteMDP(p=[[[1.0], [1.0]]], r=[[1.0, 0.0]], gamma=0.0, terminates=[True])
    >>> grid = sweep(coin, traces=["retrace", "tree_backup"], lambdas=[0.5, 1.0], seeds=range(3), num_episodes=10)
    >>> grid.axes["trace"], grid.returns.shape
    (('retrace', 'tree_backup'), (2, 2, 1, 3, 11))
    """
    problem = learning_problem(
        source,
        as_policy_sequence(Greedy() if target is None else target, "target"),
        as_policy_sequence(EpsilonGreedy(0.1) if behaviour is None else behaviour, "behaviour"),
        num_episodes=num_episodes,
        update=update,
        view=view,
        visits=visits,
        q0=q0,
        gamma=gamma,
        order=order,
        max_steps=max_steps,
        truth=truth,
        weights=weights,
        record_every=record_every,
        engine=engine,
    )
    traces = list(traces)
    lambdas = [float(lambda_) for lambda_ in lambdas]
    sizes = [as_step_size(size) for size in step_sizes]
    seeds = [count("seeds", seed, 0) for seed in seeds]
    for name, values in (("traces", traces), ("lambdas", lambdas), ("step_sizes", sizes), ("seeds", seeds)):
        if not values:
            raise ValueError(f"`{name}` must not be empty.")
    checked = [_checked(problem, given) for given in traces]
    grid = [[trace.with_lambda(lambda_) for lambda_ in lambdas] for trace in checked]
    compiled = [(trace, problem.compile_trace(trace)) for row in grid for trace in row]
    jobs: list[Any] = [
        partial(problem.run, trace, compiled_trace, size, seed)
        for trace, compiled_trace in compiled
        for size in sizes
        for seed in seeds
    ]
    if num_threads is not None:
        num_threads = count("num_threads", num_threads, 1)
    if any(compiled_trace is None for _, compiled_trace in compiled):
        num_threads = 1  # an environment has one state, and Python runs one thread at a time
    runs = run_all(jobs, length=problem.num_episodes, num_threads=num_threads, progress=progress)

    axes = {
        "trace": _trace_labels([row[0] for row in grid]),
        "lambda_": tuple(lambdas),
        "step_size": tuple(size.scale if _is_constant(size) else size.label for size in sizes),
        "seed": tuple(seeds),
    }
    return _stacked(problem, runs, axes, keep_q)


def collect(
    mdp: FiniteMDP, *, mu: Any, num_episodes: int, seed: int = 0, q: Any = 0.0, max_steps: int = 1_000
) -> Trajectories:
    """Draw trajectories of μ to replay later, with the probability of every action drawn.

    `mu` is (X, A), or a sequence of policies that reads `q` (X, A). The same seed gives the
    trajectories that `evaluate` learns from. A trajectory longer than `max_steps` is cut there.

    >>> coin = FiniteMDP(p=[[[1.0], [1.0]]], r=[[1.0, 0.0]], gamma=0.0, terminates=[True])
    >>> old = collect(coin, mu=[[0.5, 0.5]], num_episodes=3)
    >>> old.mu_a
    array([0.5, 0.5, 0.5])
    """
    if not isinstance(mdp, FiniteMDP):
        raise TypeError(f"`mdp` must be a FiniteMDP; got {type(mdp).__name__}.")
    behaviour = as_policy_sequence(mu, "mu")
    if behaviour.code is None:
        raise TypeError("`mu` must be a policy (X, A) or a sequence such as EpsilonGreedy(0.1); got a function.")
    num_episodes = count("num_episodes", num_episodes, 1)
    max_steps = count("max_steps", max_steps, 1)
    q = table("q", q, mdp.shape)
    from offtrace.online import simulate
    from offtrace.online.streams import state as stream_state

    words = stream_state(count("seed", seed, 0))
    policy = simulate.Policy(behaviour.code, behaviour.parameters(num_episodes), behaviour.table(mdp.shape))
    model = model_of(mdp)
    row = np.empty(mdp.num_actions)
    steps = np.empty((3, max_steps), np.int64)  # x, a, x'
    mu_a = np.empty(max_steps)
    reward = np.empty(max_steps)
    terminated = np.empty(max_steps, np.bool_)
    parts = []
    for k in range(num_episodes):
        n = simulate.sample(model, policy, q, words, row, k, max_steps, steps, mu_a, reward, terminated)
        parts.append((*steps[:, :n].copy(), reward[:n].copy(), terminated[:n].copy(), mu_a[:n].copy()))
    states, actions, next_states, rewards, ended, drawn = (
        np.concatenate(column) for column in zip(*parts, strict=True)
    )
    return Trajectories(
        states=states,
        actions=actions,
        rewards=rewards,
        next_states=next_states,
        terminated=ended,
        first=np.cumsum([0, *(len(part[0]) for part in parts)]),
        mu_a=drawn,
        num_states=mdp.num_states,
        num_actions=mdp.num_actions,
        gamma=mdp.gamma,
    )


def _checked(problem: LearningProblem, given: Any) -> Trace:
    trace = as_trace(given)
    check_trace(trace, problem.source)
    return trace


def _run_once(problem: LearningProblem, trace: Any, step_size: Any, seed: int) -> Learned:
    trace = _checked(problem, trace)
    compiled_trace = problem.compile_trace(trace)
    learned = problem.run(trace, compiled_trace, as_step_size(step_size), count("seed", seed, 0))
    assert learned is not None  # only `progress` stops a run early
    return learned


def _stacked(problem: LearningProblem, runs: list[Learned], axes: dict[str, Any], keep_q: bool) -> SweepResult:
    """Return the runs, which are in the order of the grid, as arrays over its axes."""
    shape = tuple(len(values) for values in axes.values())
    curves: dict[str, Any] = dict.fromkeys(CURVES)
    for name in CURVES:
        if getattr(runs[0], name) is not None:
            curves[name] = np.stack([getattr(run, name) for run in runs]).reshape(*shape, -1)
    diverged_at = [-1 if run.diverged_at is None else run.diverged_at for run in runs]
    return SweepResult(
        axes=axes,
        num_episodes=problem.points,
        diverged_at=np.array(diverged_at).reshape(shape),
        q=np.stack([run.q for run in runs]).reshape(*shape, *problem.shape) if keep_q else None,
        **curves,
    )


def _is_constant(size: StepSize) -> bool:
    return size.power == 0 and isinstance(size.scale, int | float)


def _trace_labels(traces: list[Trace]) -> tuple[str, ...]:
    """Return the names of the traces, or their whole repr where two have the same name."""
    names = [trace.name for trace in traces]
    return tuple(name if names.count(name) == 1 else repr(trace) for name, trace in zip(names, traces, strict=True))
