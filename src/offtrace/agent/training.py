"""The training loop: ticks, and what is done with them: reports, evaluations, checkpoints."""

import math
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from jax.errors import JaxRuntimeError

from offtrace.agent.runs import Folder, Result
from offtrace.agent.runtimes import Runtime, Synchronous, needs_of, never
from offtrace.agent.spec import Plan, TrainSpec, resolved
from offtrace.agent.telemetry import NOT_FINITE, Report, Watcher
from offtrace.environments import on_host, with_options

FINAL = 10**6
"""The number of the evaluation at the end, which no tick has."""


# -- ticks -------------------------------------------------------------------------------------------


class Loop:
    """Where a run stands: so many ticks are over, and perhaps a part of the next one.

    Tick 0 is the untrained agent, tick 1 fills the memory, the others learn.
    """

    def __init__(self, runtime: Runtime, num_steps: Sequence[int] = (), state: Any = None) -> None:
        """`num_steps` are those after each tick that is over."""
        self.runtime, self.state = runtime, state
        self.number = len(num_steps)
        """Of the next tick."""
        left = runtime.specs[0].num_steps - (num_steps[-1] if len(num_steps) > 1 else _fill_steps(runtime))
        num_learning = max(0, math.ceil(left / (_iterations(runtime) * _steps(runtime))))
        self.num_ticks = max(2, self.number) + num_learning
        self.total_steps = runtime.specs[0].num_steps - left + num_learning * _iterations(runtime) * _steps(runtime)

    def tick(self, stop: Callable[[], bool] = never) -> list[Report] | None:
        """Return the reports of the next tick; None if `stop` returned True before its end.

        The next call continues where this one stopped.
        """
        runtime, number, tick = self.runtime, self.number, None
        if number == 0:
            self.state = runtime.start()
        else:
            num_iterations = _iterations(runtime) if number > 1 else _fill_iterations(runtime)
            self.state, tick = runtime.advance(self.state, num_iterations, learns=number > 1, stop=stop)
            if tick is None:
                return None
        evaluations = None
        spec = runtime.specs[0]
        if spec.evaluation_ticks and number % spec.evaluation_ticks == 0 and number < self.num_ticks - 1:
            found = runtime.evaluate(self.state, number, max(1, spec.evaluation_episodes // 5), stop=stop)
            if found is None:
                return None
            evaluations = found[0].mean(-1)
        reports = _reports(runtime, self.state, number, tick, evaluations)
        runtime.over(self.state)
        self.number += 1
        return reports


def _steps(runtime: Runtime) -> int:
    """Of one iteration."""
    return runtime.program.rounds * runtime.program.num_actors


def _fill_iterations(runtime: Runtime) -> int:
    """Of tick 1."""
    return math.ceil(runtime.program.fill / runtime.program.rounds)


def _fill_steps(runtime: Runtime) -> int:
    return _fill_iterations(runtime) * _steps(runtime)


def _iterations(runtime: Runtime) -> int:
    """Of one tick."""
    return max(1, round(runtime.specs[0].tick_steps / _steps(runtime)))


def _reports(
    runtime: Runtime, state: Any, number: int, tick: Any | None, evaluations: np.ndarray | None
) -> list[Report]:
    num_steps, num_updates = runtime.counts(state)
    probe = runtime.probe(state, number) if number > 1 else None
    found = []
    for i, spec in enumerate(runtime.specs):
        evaluation = None if evaluations is None else float(evaluations[i])
        ended = 0 if tick is None else int(tick.num_episodes[i])
        seen = {name: math.nan for name in ("q", "c", "cut", "effective_length", "off_policy")}
        by_age, epsilon, step_size = (math.nan,) * 5, 1.0, spec.step_size
        if probe is not None:
            seen = {name: float(getattr(probe.metrics, name)[i]) for name in seen}
            by_age = tuple(float(value) for value in probe.off_policy_by_age[i])
            epsilon, step_size = float(probe.epsilon[i]), float(probe.step_size[i])
        found.append(
            Report(
                tick=number,
                num_steps=num_steps,
                num_updates=num_updates,
                num_episodes=ended,
                episode_return=float(tick.total_return[i]) / ended if tick is not None and ended else math.nan,
                episode_length=float(tick.total_length[i]) / ended if tick is not None and ended else math.nan,
                epsilon=epsilon,
                step_size=step_size,
                loss=math.nan if tick is None else float(tick.loss[i]),
                gradient=math.nan if tick is None else float(tick.gradient[i]),
                off_policy_by_age=by_age,
                evaluation=evaluation,
                events=() if tick is None else _events(spec, runtime.max_return, tick, probe, i),
                **seen,
            )
        )
    return found


def _events(spec: Plan, max_return: float | None, tick: Any, probe: Any, i: int) -> tuple[str, ...]:
    """What should not be: updates that were refused, values that no return can have."""
    events = []
    refused = int(tick.num_refused[i])
    if refused:
        events.append(f"{refused} updates were not applied: their loss or gradient was {NOT_FINITE}")
    if probe is not None:
        largest, reward = float(probe.metrics.largest_q[i]), float(probe.largest_reward[i])
        bound = reward / (1 - spec.gamma) if spec.gamma < 1 else math.inf
        if max_return is not None and spec.reward_clamp is None:
            bound = min(bound, abs(max_return)) if max_return > 0 else bound
        if not math.isfinite(largest):
            events.append(f"Q is {NOT_FINITE}")
        elif largest > 2 * max(bound, 1):  # a network overshoots; twice the bound is more than that
            events.append(f"|Q| reached {largest:.4g}, beyond any possible return of {bound:.4g}")
    return tuple(events)


# -- a run ---------------------------------------------------------------------------------------------------


def train(
    spec: TrainSpec | Sequence[TrainSpec],
    output: str | Path | None = None,
    *,
    resume: bool = False,
    allow_changes: bool = False,
    checkpoint_seconds: float = 30.0,
    tensorboard: bool = False,
    watcher: Watcher | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Any:
    """Train the agent of a spec and return its `Result`; for a list of specs with the same shapes, a list of results.

    With `output` the run is kept in that folder. `resume=True` continues the run in the folder, to the last bit as if
    it had never stopped; a spec that differs from the saved one is refused unless `allow_changes=True`. Checkpoints
    are at least `checkpoint_seconds` apart.

    `stop` is called after every tick, about once a second within a tick, and after every step of Gymnasium's
    environments. When it returns True the run is saved, and its result has no returns.

    An agent that diverges raises `FloatingPointError` if its spec was given alone. In a list it is an event of its
    run (`telemetry.divergence`), and the others continue.
    """
    several = not isinstance(spec, TrainSpec)
    specs = tuple(resolved(one) for one in ([spec] if isinstance(spec, TrainSpec) else spec))
    if not specs:
        raise ValueError("`spec` must be at least one; got none.")
    watcher = watcher or Watcher()
    if output is None and resume:
        raise ValueError("`resume` must come with `output`, the folder of the run.")
    with needs_of(specs[0]):
        runtime = runtime_for(specs)  # before anything is written: what it refuses leaves no folder behind
    try:
        results = _kept(
            runtime, output, resume, allow_changes, checkpoint_seconds, tensorboard, watcher, stop, alone=not several
        )
    finally:
        runtime.close()
    return results if several else results[0]


def _kept(
    runtime: Runtime,
    output: str | Path | None,
    resume: bool,
    allow_changes: bool,
    checkpoint_seconds: float,
    tensorboard: bool,
    watcher: Watcher,
    stop: Callable[[], bool],
    *,
    alone: bool,
) -> list[Result]:
    if output is None:
        return _run(runtime, None, watcher, stop, checkpoint_seconds, alone=alone)
    with Folder(Path(output), runtime.specs, resume=resume, tensorboard=tensorboard, say=watcher.says) as folder:
        results = folder.begin(allow_changes=allow_changes)
        if results is not None:
            watcher.says(f"{output} is finished already.")
            return results
        return _run(runtime, folder, watcher, stop, checkpoint_seconds, alone=alone)


def runtime_for(specs: Sequence[Plan]) -> Runtime:
    """For resolved specs: the host's for Gymnasium, one compiled program for pure environments."""
    env = with_options(specs[0].env, specs[0].options)
    if on_host(specs[0].env):
        from offtrace.agent.host import Host

        return Host(env, specs)
    return Synchronous(env, specs)


def _run(
    runtime: Runtime,
    folder: Folder | None,
    watcher: Watcher,
    stop: Callable[[], bool],
    checkpoint_seconds: float,
    *,
    alone: bool,
) -> list[Result]:
    path = None if folder is None else folder.path
    history = [] if folder is None else folder.history
    loop = Loop(runtime, [reports[0].num_steps for reports in history])
    watcher.begins(runtime.specs[0], loop.total_steps, [reports[0] for reports in history])
    saved_at = time.monotonic()

    def stopped() -> list[Result]:
        return [Result(spec, _of(history, i), (), 0, path) for i, spec in enumerate(runtime.specs)]

    with _explained_memory(runtime, path):
        if folder is not None and folder.arrays is not None:
            loop.state, folder.arrays = runtime.restored(folder.arrays, stop=stop), None
            if loop.state is None:
                return stopped()  # the checkpoint is still there
        while loop.number < loop.num_ticks:
            with _saved_at_a_fault(loop, folder):
                reports = loop.tick(stop)
            if reports is not None:
                if alone:
                    refuse_diverged(runtime, reports)
                history.append(reports)
            stopping = reports is None or stop()
            is_last = loop.number == loop.num_ticks
            if folder is not None:
                if reports is not None:
                    folder.note(reports)
                if stopping or is_last or time.monotonic() - saved_at > checkpoint_seconds:
                    _save(loop, folder)
                    saved_at = time.monotonic()
            if reports is not None:
                watcher.ticks(reports)
            if stopping:
                return stopped()
        found = runtime.evaluate(loop.state, FINAL, runtime.specs[0].evaluation_episodes, stop=stop)
    if found is None:
        return stopped()
    returns, ended = found
    results = []
    for i, spec in enumerate(runtime.specs):
        values = tuple(float(value) for value in returns[i])
        results.append(Result(spec, _of(history, i), values, int((~ended[i]).sum()), path))
    if folder is not None:
        folder.finish(results)
    return results


def _save(loop: Loop, folder: Folder) -> None:
    if loop.number > 0:  # before the first tick is over there is nothing to lose
        folder.save(loop.runtime.arrays(loop.state), loop.runtime.num_done(loop.state))


@contextmanager
def _saved_at_a_fault(loop: Loop, folder: Folder | None) -> Generator[None, None, None]:
    """Save what was done before an environment broke."""
    try:
        yield
    except (RuntimeError, TimeoutError) as error:
        if folder is not None and not isinstance(error, JaxRuntimeError):
            _save(loop, folder)
        raise


def refuse_diverged(runtime: Runtime, reports: Sequence[Report]) -> None:
    """Raise if the run has diverged: a single run ends there; in a population it is an event of its member."""
    if not any(NOT_FINITE in event for event in reports[0].events):
        return
    now, spec = reports[0], runtime.specs[0]
    raise FloatingPointError(
        f"{spec.env} (seed {spec.seed}): by step {now.num_steps:,} {now.events[0]}. The loss of the tick is "
        f"{now.loss:.4g}, the norm of its gradient {now.gradient:.4g}, the mean of Q {now.q:.4g}. Lower `step_size`, "
        f"{spec.step_size:g}, or set `max_gradient`."
    )


@contextmanager
def _explained_memory(runtime: Runtime, path: Path | None) -> Generator[None, None, None]:
    """Say which settings to lower where an allocator runs out of memory."""
    try:
        yield
    except JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        names = ("replay_size", "num_actors", "num_windows", "evaluation_episodes")
        lower = ", ".join(f"`{name}` ({getattr(runtime.specs[0], name):,})" for name in names)
        members = f", or train fewer than {len(runtime.specs)} members together" if len(runtime.specs) > 1 else ""
        saved = "" if path is None else f" What is saved in {str(path)!r} is intact."
        raise MemoryError(f"the device is out of memory. Lower {lower}{members}.{saved}") from error


def _of(history: Sequence[Sequence[Report]], member: int) -> tuple[Report, ...]:
    return tuple(reports[member] for reports in history)
