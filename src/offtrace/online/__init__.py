"""Learning online from trajectories, in tables: Eq. 7 for every trace, evaluation and control.

For each (x, a) of the k-th trajectory, drawn from μ_k, with s the time of its first occurrence,

    Q_{k+1}(x, a) ← Q_k(x, a) + α_k Σ_{t≥s} δ_t Σ_{j=s..t} γ^{t−j} (Π_{i=j+1..t} c_i) 1{x_j, a_j = x, a}      (Eq. 7)
    δ_t = r_t + γ E_{π_k} Q_k(x_{t+1}, ·) − Q_k(x_t, a_t)

A `FiniteMDP` is compiled together with the learner; a Gymnasium environment is stepped; `Trajectories` are replayed.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any, Unpack

import numpy as np

from offtrace.mdp import FiniteMDP
from offtrace.online.checks import check_trace, count, table
from offtrace.online.options import Options
from offtrace.online.options import setting as setting_of
from offtrace.online.records import CURVES, Learned, Sweep, Trajectories
from offtrace.online.runner import run_all
from offtrace.online.schedules import DEFAULT_STEP_SIZE, ONE_OVER_VISITS, StepSize, decaying, linear, step_size
from offtrace.online.sequences import EpsilonGreedy, Fixed, Greedy, Mixture, Softmax, sequence
from offtrace.online.setting import Setting, model_of
from offtrace.traces import Trace, as_trace

__all__ = [
    "DEFAULT_STEP_SIZE",
    "ONE_OVER_VISITS",
    "EpsilonGreedy",
    "Fixed",
    "Greedy",
    "Learned",
    "Mixture",
    "Softmax",
    "StepSize",
    "Sweep",
    "Trajectories",
    "collect",
    "control",
    "decaying",
    "evaluate",
    "linear",
    "sweep",
]


def evaluate(
    source: Any,
    *,
    pi: Any,
    mu: Any = None,
    trace: Any,
    step_size: Any = DEFAULT_STEP_SIZE,
    seed: int = 0,
    **options: Unpack[Options],
) -> Learned:
    """Q^π of a fixed π from trajectories of μ, by Eq. 7: one run.

    `source` is a `FiniteMDP`, a Gymnasium environment with discrete spaces (with `gamma=`), or `Trajectories`, whose
    μ is the `mu_a` written down. `pi` and `mu` are (X, A); without `mu` it is on-policy. `mu` may be a sequence such
    as `EpsilonGreedy(0.1)`, too. The other options are those of `control`.

    >>> coin = FiniteMDP(p=[[[1.0], [1.0]]], r=[[1.0, 0.0]], gamma=0.0, terminates=[True])
    >>> learned = evaluate(coin, pi=[[0.5, 0.5]], trace="retrace", num_episodes=100, seed=1)
    >>> learned.q
    array([[1., 0.]])
    """
    target = sequence(pi, "pi")
    on_policy = mu is None or isinstance(source, Trajectories)
    setting = setting_of(source, target, target if on_policy else sequence(mu, "mu"), options)
    return _one(setting, trace, step_size, seed)


def control(
    source: Any,
    *,
    trace: Any,
    behaviour: Any = None,
    target: Any = None,
    step_size: Any = DEFAULT_STEP_SIZE,
    seed: int = 0,
    **options: Unpack[Options],
) -> Learned:
    """Q* by Eq. 7, with policies that follow Q_k: one run.

    `behaviour` is μ_k, `EpsilonGreedy(0.1)` unless given; `target` is π_k, `Greedy()` unless given, which makes
    Retrace Watkins' Q(λ). Both may be an array (X, A), `Greedy()`, `EpsilonGreedy(ε)`, `Softmax(β)`, `Mixture(mu, ε)`
    (Eq. 8) or a function of (q, x, k), with q = Q(x, ·); ε and β are numbers or schedules over k.

    Options: `num_episodes` (1,000; for `Trajectories` each once); `step_size`, a number or a `StepSize`,
    visits^−0.6 and never an overshoot unless given; `update="trajectory"` freezes Q_k, π_k and μ_k along a
    trajectory as Eq. 7 does, `"step"` lets all three follow every step; `view="forward"` or `"backward"`, the same
    numbers by another road, for `update="trajectory"`; `visits="every"` or `"first"`; `q0`, a number or (X, A);
    `gamma`, for environments, or instead of the source's; `order="stored"` or `"random"`, how trajectories are
    replayed. `max_steps` (1,000): a longer trajectory is cut there, which keeps the value of its last state and
    ends its trace. `truth` (X, A) gives curves of the error over `weights` (X, A), by default the same for every
    pair that can be visited; a point is taken every `record_every` trajectories. `engine="python"` goes step by
    step, as does whatever the kernels do not know.

    >>> coin = FiniteMDP(p=[[[1.0], [1.0]]], r=[[1.0, 0.0]], gamma=0.0, terminates=[True])
    >>> control(coin, trace="watkins", num_episodes=100, truth=[[1.0, 0.0]], record_every=50).max_error
    array([1., 0., 0.])
    """
    behaviour = EpsilonGreedy(0.1) if behaviour is None else behaviour
    target = Greedy() if target is None else target
    setting = setting_of(source, sequence(target, "target"), sequence(behaviour, "behaviour"), options)
    return _one(setting, trace, step_size, seed)


def sweep(
    source: Any,
    *,
    traces: Iterable[Any],
    lambdas: Iterable[float] = (1.0,),
    step_sizes: Iterable[Any] = (DEFAULT_STEP_SIZE,),
    seeds: Iterable[int] = (0,),
    target: Any = None,
    behaviour: Any = None,
    keep_q: bool = False,
    num_threads: int | None = None,
    progress: bool = False,
    **options: Unpack[Options],
) -> Sweep:
    """Every trace × λ × step size × seed, over the cores; arguments as in `control`, a fixed `target` evaluates it.

    A run depends on its seed alone, not on the threads; runs with the same seed draw the same random numbers, so they
    can be compared in pairs. `traces` are names, classes, values or functions, as in `ot.as_trace`; every one is run
    at every λ of `lambdas`, which replaces a value's own λ. `keep_q` keeps every final Q.

    >>> coin = FiniteMDP(p=[[[1.0], [1.0]]], r=[[1.0, 0.0]], gamma=0.0, terminates=[True])
    >>> grid = sweep(coin, traces=["retrace", "tree_backup"], lambdas=[0.5, 1.0], seeds=range(3), num_episodes=10)
    >>> grid.axes["trace"], grid.returns.shape
    (('retrace', 'tree_backup'), (2, 2, 1, 3, 11))
    """
    behaviour = EpsilonGreedy(0.1) if behaviour is None else behaviour
    target = Greedy() if target is None else target
    setting = setting_of(source, sequence(target, "target"), sequence(behaviour, "behaviour"), options)
    traces, lambdas, sizes = list(traces), [float(v) for v in lambdas], [_step_size(v) for v in step_sizes]
    seeds = [count("seeds", seed, 0) for seed in seeds]
    checked = [_checked(setting, given) for given in traces]
    grid = [[trace.with_lambda(lambda_) for lambda_ in lambdas] for trace in checked]
    for name, values in (("traces", traces), ("lambdas", lambdas), ("step_sizes", sizes), ("seeds", seeds)):
        if not values:
            raise ValueError(f"`{name}` must have one value or more; got none.")
    compiled = [(trace, setting.rule(trace)) for row in grid for trace in row]
    jobs: list[Any] = [
        partial(setting.run, trace, rule, size, seed) for trace, rule in compiled for size in sizes for seed in seeds
    ]
    threads = None if num_threads is None else count("num_threads", num_threads, 1)
    if any(rule is None for _, rule in compiled):
        threads = 1  # an environment has one state, and plain Python one thread
    runs = run_all(jobs, length=setting.num_episodes, num_threads=threads, progress=progress)
    shape = len(traces), len(lambdas), len(sizes), len(seeds)
    curves: dict[str, Any] = {
        name: np.stack([getattr(run, name) for run in runs]).reshape(*shape, -1)
        for name in CURVES
        if getattr(runs[0], name) is not None
    }
    return Sweep(
        axes={
            "trace": _labels([row[0] for row in grid]),
            "lambda_": tuple(lambdas),
            "step_size": tuple(size.scale if _plain(size) else size.label for size in sizes),
            "seed": tuple(seeds),
        },
        num_episodes=setting.points,
        num_steps=curves["num_steps"],
        returns=curves["returns"],
        max_error=curves.get("max_error"),
        rms_error=curves.get("rms_error"),
        diverged_at=np.array([-1 if run.diverged_at is None else run.diverged_at for run in runs]).reshape(shape),
        q=np.stack([run.q for run in runs]).reshape(*shape, *setting.shape) if keep_q else None,
    )


def collect(
    mdp: FiniteMDP, *, mu: Any, num_episodes: int, seed: int = 0, q: Any = 0.0, max_steps: int = 1_000
) -> Trajectories:
    """Trajectories of μ, to be replayed later: with every a_t the probability it was drawn with.

    `mu` is (X, A), or a sequence that reads `q` (X, A). The same seed gives the trajectories that `evaluate` learns
    from. One longer than `max_steps` is cut there.

    >>> coin = FiniteMDP(p=[[[1.0], [1.0]]], r=[[1.0, 0.0]], gamma=0.0, terminates=[True])
    >>> old = collect(coin, mu=[[0.5, 0.5]], num_episodes=3)
    >>> old.mu_a
    array([0.5, 0.5, 0.5])
    """
    if not isinstance(mdp, FiniteMDP):
        raise TypeError(f"the first argument must be a FiniteMDP; got {type(mdp).__name__}.")
    acting, num = sequence(mu, "mu"), count("num_episodes", num_episodes, 1)
    if acting.code is None:
        raise TypeError("`mu` must be a policy (X, A) or a sequence such as EpsilonGreedy(0.1); got a function.")
    limit, values = count("max_steps", max_steps, 1), table("q", q, mdp.shape)
    from offtrace.online import simulate
    from offtrace.online.streams import state

    model, words = model_of(mdp), state(count("seed", seed, 0))
    policy = simulate.Policy(acting.code, acting.parameters(num), acting.table(mdp.shape))
    row, steps = np.empty(mdp.num_actions), np.empty((3, limit), np.int64)
    mu_a, reward, terminated = np.empty(limit), np.empty(limit), np.empty(limit, np.bool_)
    parts, first = [], [0]
    for k in range(num):
        n = simulate.sample(model, policy, values, words, row, k, limit, steps, mu_a, reward, terminated)
        parts.append((steps[:, :n].copy(), mu_a[:n].copy(), reward[:n].copy(), terminated[:n].copy()))
        first.append(first[-1] + n)
    x, a, x_next = np.concatenate([part[0] for part in parts], axis=1)
    drawn, r, ended = (np.concatenate([part[i] for part in parts]) for i in (1, 2, 3))
    return Trajectories(
        x=x,
        a=a,
        r=r,
        x_next=x_next,
        terminated=ended,
        first=np.array(first),
        mu_a=drawn,
        num_states=mdp.num_states,
        num_actions=mdp.num_actions,
        gamma=mdp.gamma,
    )


def _checked(setting: Setting, given: Any) -> Trace:
    trace = as_trace(given)
    check_trace(trace, setting.source)
    return trace


def _one(setting: Setting, trace: Any, size: Any, seed: int) -> Learned:
    trace = _checked(setting, trace)
    learned = setting.run(trace, setting.rule(trace), _step_size(size), count("seed", seed, 0))
    assert learned is not None  # nobody stops it
    return learned


_step_size = step_size


def _plain(size: StepSize) -> bool:
    return size.power == 0 and isinstance(size.scale, int | float)


def _labels(traces: list[Trace]) -> tuple[str, ...]:
    """Return the names of the traces, or their whole repr where two have the same name."""
    names = [trace.name for trace in traces]
    return tuple(name if names.count(name) == 1 else repr(trace) for name, trace in zip(names, traces, strict=True))
