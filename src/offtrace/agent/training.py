"""The training loop: ticks, and after each one its records, evaluations and checkpoints."""

import math
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
from jax.errors import JaxRuntimeError

from offtrace.agent.hints import Hints
from offtrace.agent.own_traces import check_saved
from offtrace.agent.population import TickSummary
from offtrace.agent.program import Probe
from offtrace.agent.runs import Result, RunFolder
from offtrace.agent.runtimes import HasActors, Runtime, runtime_for
from offtrace.agent.settings import explain_missing_package
from offtrace.agent.spec import Plan, TrainSpec, resolved
from offtrace.agent.telemetry import NOT_FINITE, TickRecord, Watcher, as_watcher
from offtrace.environments import on_host
from offtrace.environments.own import check_saveable

FINAL = 10**6
"""The number of the final evaluation; no tick has it."""
MOST_SAVING = 20
"""A checkpoint is followed by a pause of at least so many times its duration."""
NEW_EPISODES = "resumed with new episodes and an empty memory: not the same run as without the stop"


# -- ticks ---------------------------------------------------------------------------------------------------


class Loop:
    """The position of a run: a number of finished ticks, and perhaps a part of the next one.

    Tick 0 is the untrained agent, tick 1 fills the memory, the others learn.
    """

    def __init__(self, runtime: Runtime, num_steps: Sequence[int] = (), state: Any = None) -> None:
        """`num_steps` are the steps after each finished tick."""
        self.runtime = runtime
        self.state = state
        self.number = len(num_steps)
        """Number of the next tick."""
        self.event = ""
        """An event for the records of the next tick."""
        fill = math.ceil(runtime.program.fill / runtime.program.rounds)
        steps = runtime.program.rounds * runtime.program.num_actors  # per iteration
        per_tick = max(1, round(runtime.specs[0].tick_steps / steps))
        self._num_iterations = {"fill": fill, "learn": per_tick}
        done = fill * steps
        if len(num_steps) > 1:
            done = num_steps[-1]
        num_learning = max(0, math.ceil((runtime.specs[0].num_steps - done) / (per_tick * steps)))
        self.num_ticks = max(2, self.number) + num_learning
        self.total_steps = done + num_learning * per_tick * steps

    def tick(self, stop: Callable[[], bool] = lambda: False) -> list[TickRecord] | None:
        """Run the next tick and return a record per member; None if `stop` returned True before its end.

        The next call continues where this one stopped.
        """
        runtime = self.runtime
        number = self.number
        summary = None
        if number == 0:
            self.state = runtime.start()
        else:
            learns = number > 1
            num_iterations = self._num_iterations["learn" if learns else "fill"]
            self.state, summary = runtime.advance(self.state, num_iterations, learns=learns, stop=stop)
            if summary is None:
                return None
        evaluations = None
        if self._is_evaluated(number):
            num_episodes = max(1, runtime.specs[0].evaluation_episodes // 5)
            found = runtime.evaluate(self.state, number, num_episodes, stop=stop)
            if found is None:
                return None
            evaluations = found[0].mean(-1)
        records = _tick_records(runtime, self.state, number, summary, evaluations)
        if self.event:
            records = [record._replace(events=(*record.events, self.event)) for record in records]
            self.event = ""
        runtime.end_tick(self.state)
        self.number += 1
        return records

    def _is_evaluated(self, number: int) -> bool:
        """Return True every `evaluation_ticks`; the final evaluation covers the last tick."""
        period = self.runtime.specs[0].evaluation_ticks
        return bool(period) and number % period == 0 and number < self.num_ticks - 1


def _tick_records(
    runtime: Runtime, state: Any, number: int, summary: TickSummary | None, evaluations: np.ndarray | None
) -> list[TickRecord]:
    num_steps, num_updates = runtime.counts(state)
    probe = None
    if number > 1:
        probe = runtime.probe(state, number)
    records = []
    for i, spec in enumerate(runtime.specs):
        record = _untrained(spec)._replace(tick=number, num_steps=num_steps, num_updates=num_updates)
        if summary is not None:
            record = _with_summary(record, summary, i)._replace(
                events=_events(spec, runtime.max_return, summary, probe, i)
            )
        if probe is not None:
            record = _with_probe(record, probe, i)
        if isinstance(runtime, HasActors) and summary is not None:
            record = record._replace(actors=runtime.actors_record(state))
        if evaluations is not None:
            record = record._replace(evaluation=float(evaluations[i]))
        records.append(record)
    return records


def _untrained(spec: Plan) -> TickRecord:
    """Return the record of an agent of which nothing has been measured."""
    return TickRecord(
        tick=0,
        num_steps=0,
        num_updates=0,
        num_episodes=0,
        episode_return=math.nan,
        episode_length=math.nan,
        epsilon=1.0,
        step_size=spec.step_size,
        loss=math.nan,
        q=math.nan,
        c=math.nan,
        cut=math.nan,
        effective_length=math.nan,
        off_policy=math.nan,
        gradient=math.nan,
        off_policy_by_age=(math.nan,) * 5,
    )


def _with_summary(record: TickRecord, summary: TickSummary, i: int) -> TickRecord:
    num_episodes = int(summary.num_episodes[i])
    record = record._replace(
        num_episodes=num_episodes, loss=float(summary.loss[i]), gradient=float(summary.gradient[i])
    )
    if not num_episodes:
        return record
    return record._replace(
        episode_return=float(summary.total_return[i]) / num_episodes,
        episode_length=float(summary.total_length[i]) / num_episodes,
    )


def _with_probe(record: TickRecord, probe: Probe, i: int) -> TickRecord:
    metrics = probe.metrics
    return record._replace(
        epsilon=float(probe.epsilon[i]),
        step_size=float(probe.step_size[i]),
        q=float(metrics.q[i]),
        c=float(metrics.c[i]),
        cut=float(metrics.cut[i]),
        effective_length=float(metrics.effective_length[i]),
        off_policy=float(metrics.off_policy[i]),
        off_policy_by_age=tuple(float(value) for value in probe.off_policy_by_age[i]),
    )


def _events(
    spec: Plan, max_return: float | None, summary: TickSummary, probe: Probe | None, i: int
) -> tuple[str, ...]:
    """Return warnings: updates that were not applied, and values beyond any possible return."""
    events = []
    num_refused = int(summary.num_refused[i])
    if num_refused:
        events.append(f"{num_refused} updates were not applied: their loss or gradient was {NOT_FINITE}")
    if probe is None:
        return tuple(events)
    bound = math.inf
    if spec.gamma < 1:
        bound = float(probe.largest_reward[i]) / (1 - spec.gamma)
    if max_return is not None and max_return > 0 and spec.reward_clamp is None:
        bound = min(bound, max_return)
    largest = float(probe.metrics.largest_q[i])
    if not math.isfinite(largest):
        events.append(f"Q is {NOT_FINITE}")
    elif largest > 2 * max(bound, 1):  # networks overshoot the bound, but not to twice its size
        events.append(f"|Q| reached {largest:.4g}, beyond any possible return of {bound:.4g}")
    return tuple(events)


# -- a run ---------------------------------------------------------------------------------------------------


@overload
def train(
    spec: TrainSpec,
    output: str | Path | None = ...,
    *,
    resume: bool = ...,
    new_episodes: bool = ...,
    allow_changes: bool = ...,
    checkpoint_seconds: float = ...,
    tensorboard: bool = ...,
    watcher: Watcher | Callable[[TickRecord], object] | None = ...,
    stop: Callable[[], bool] = ...,
) -> Result: ...


@overload
def train(
    spec: Sequence[TrainSpec],
    output: str | Path | None = ...,
    *,
    resume: bool = ...,
    new_episodes: bool = ...,
    allow_changes: bool = ...,
    checkpoint_seconds: float = ...,
    tensorboard: bool = ...,
    watcher: Watcher | Callable[[list[TickRecord]], object] | None = ...,
    stop: Callable[[], bool] = ...,
) -> list[Result]: ...


def train(
    spec: TrainSpec | Sequence[TrainSpec],
    output: str | Path | None = None,
    *,
    resume: bool = False,
    new_episodes: bool = False,
    allow_changes: bool = False,
    checkpoint_seconds: float = 30.0,
    tensorboard: bool = False,
    watcher: Watcher | Callable[[Any], object] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Result | list[Result]:
    """Train the agent of a spec and return its `Result`; for a list of specs with the same shapes, a list of results.

    With `output` the run is kept in that folder. `resume=True` continues the run in the folder, to
    the last bit as if it had never stopped; a spec that differs from the saved one is an error
    unless `allow_changes=True`. Checkpoints are at least `checkpoint_seconds` apart, and further
    where they take longer than a twentieth of that.

    Environments on the host cannot be saved, so a resume repeats their actions, which takes as long
    as they took. With `new_episodes=True` it does not: they start new episodes, the memory is filled
    again, and the run is not the same as without the stop. An event of the next tick says so.

    `watcher` is a `Watcher`, or a function that is called after every tick with its record; for a
    list of specs, with a list of records.

    `stop` is called after every tick, about once a second within a tick, and after every step of
    Gymnasium's environments. When it returns True the run is saved, and its result has no returns.

    A module in the name of an environment, `my_module:MyEnv`, is imported, and `watcher.on_message`
    gets a line about it. An environment without a name, such as a lambda, cannot have an `output`.

    With `runtime="asynchronous"` and several actors, a run is not a function of its spec: a resumed
    run goes on from its saved state, and a repeated one differs.

    An agent that diverges raises `FloatingPointError` if its spec was given alone. In a list it is
    an event of its run (`telemetry.divergence`), and the others continue.
    """
    several = not isinstance(spec, TrainSpec)
    observer = as_watcher(watcher, several=several)
    specs = tuple(resolved(one, observer.on_message) for one in ([spec] if isinstance(spec, TrainSpec) else spec))
    if not specs:
        raise ValueError("`spec` must not be empty.")
    if output is None and resume:
        raise ValueError("`resume` must come with `output`, the folder of the run.")
    can_restart = on_host(specs[0].env) and specs[0].runtime == "synchronous"
    if new_episodes and not (resume and can_restart):
        raise ValueError(
            "`new_episodes` must come with `resume`, an environment on the host (Gymnasium's or Atari's) and the "
            f"synchronous runtime; got resume={resume}, {specs[0].env!r} and {specs[0].runtime}."
        )
    if output is not None:
        for one in specs:
            check_saved(one.trace)
            check_saveable(one.env)
    with explain_missing_package(specs[0]):
        # Before anything is written, so that wrong input leaves no folder behind.
        runtime = runtime_for(specs, observer.on_message)
    for note in runtime.notes:
        observer.on_message(note)
    run = _Run(runtime, observer, stop, checkpoint_seconds, alone=not several, new_episodes=new_episodes)
    try:
        if output is None:
            results = run.train()
        else:
            results = _train_in_folder(
                run, Path(output), resume=resume, allow_changes=allow_changes, tensorboard=tensorboard
            )
    finally:
        runtime.close()
    return results if several else results[0]


def _train_in_folder(
    run: "_Run", output: Path, *, resume: bool, allow_changes: bool, tensorboard: bool
) -> list[Result]:
    say = run.watcher.on_message
    with RunFolder(output, run.runtime.specs, resume=resume, tensorboard=tensorboard, say=say) as folder:
        results = folder.begin(allow_changes=allow_changes)
        if results is not None:
            say(f"{output} is finished already.")
            return results
        run.folder = folder
        return run.train()


@dataclass
class _Run:
    """One call of `train`."""

    runtime: Runtime
    watcher: Watcher
    stop: Callable[[], bool]
    checkpoint_seconds: float
    alone: bool
    """True for a spec that was not given in a list: divergence is then an error."""
    new_episodes: bool = False
    """Resume without repeating the actions of environments on the host."""
    folder: RunFolder | None = None

    def train(self) -> list[Result]:
        """Run the remaining ticks and the final evaluation."""
        history: list[list[TickRecord]] = []
        if self.folder is not None:
            history = self.folder.history
        loop = Loop(self.runtime, [records[0].num_steps for records in history])
        self.watcher.on_start(self.runtime.specs[0], loop.total_steps, [records[0] for records in history])
        hints = Hints(self.runtime.specs, loop.total_steps)
        found = None
        with _explain_memory(self.runtime, self.folder):
            if self._restore(loop) and self._run_ticks(loop, history, hints):
                num_episodes = self.runtime.specs[0].evaluation_episodes
                found = self.runtime.evaluate(loop.state, FINAL, num_episodes, stop=self.stop)
        parameters = None
        if found is not None:
            parameters = self.runtime.parameters(loop.state)
        results = self._results(history, found, parameters)
        if found is not None:
            if self.folder is not None:
                self.folder.finish(results)
            self._say(hints.at_end(history, [result.returns for result in results]))
        return results

    def _say(self, line: str | None) -> None:
        if line is not None:
            self.watcher.on_message(line)

    def _restore(self, loop: Loop) -> bool:
        """Restore the state of a resumed run; False if it was stopped before that was done."""
        if self.folder is None or self.folder.arrays is None:
            return True
        if self.new_episodes:
            loop.state = self.runtime.restore(self.folder.arrays, new_episodes=True, stop=self.stop)
            loop.event = NEW_EPISODES
            self.folder.saves_after = self.folder.loaded_number
        else:
            loop.state = self.runtime.restore(self.folder.arrays, stop=self.stop)
        self.folder.arrays = None
        return loop.state is not None

    def _run_ticks(self, loop: Loop, history: list[list[TickRecord]], hints: Hints) -> bool:
        """Run the remaining ticks; False if the run was stopped."""
        saved_at = time.monotonic()
        pause = self.checkpoint_seconds
        while loop.number < loop.num_ticks:
            with _save_on_failure(loop, self.folder):
                records = loop.tick(self.stop)
            if records is not None:
                if self.alone:
                    check_finite(self.runtime, records)
                history.append(records)
            stopping = records is None or self.stop()
            is_last = loop.number == loop.num_ticks
            if self.folder is not None:
                if records is not None:
                    self.folder.write_tick(records)
                started = time.monotonic()
                if stopping or is_last or started - saved_at > pause:
                    _save(loop, self.folder)
                    saved_at = time.monotonic()
                    if self.checkpoint_seconds:  # 0 means after every tick
                        pause = max(self.checkpoint_seconds, MOST_SAVING * (saved_at - started))
            if records is not None:
                self.watcher.on_tick(records)
                self._say(hints.after_tick(history))
            if stopping:
                return False
        return True

    def _results(
        self,
        history: Sequence[Sequence[TickRecord]],
        found: tuple[np.ndarray, np.ndarray] | None,
        parameters: Sequence[dict[str, np.ndarray]] | None,
    ) -> list[Result]:
        """Return a result per member; without returns if the run was stopped before its final evaluation."""
        results = []
        for i, spec in enumerate(self.runtime.specs):
            records = tuple(tick[i] for tick in history)
            returns: tuple[float, ...] = ()
            num_unfinished = 0
            if found is not None:
                returns = tuple(float(value) for value in found[0][i])
                num_unfinished = int((~found[1][i]).sum())
            path = None if self.folder is None else self.folder.path
            own = None if parameters is None else parameters[i]
            results.append(Result(spec, records, returns, num_unfinished, path, own))
        return results


def _save(loop: Loop, folder: RunFolder) -> None:
    if loop.number > 0:  # before the end of the first tick there is nothing to lose
        folder.save(loop.runtime.arrays(loop.state), loop.runtime.num_done(loop.state))


@contextmanager
def _save_on_failure(loop: Loop, folder: RunFolder | None) -> Generator[None, None, None]:
    """Save what was done before an environment failed."""
    try:
        yield
    except (RuntimeError, TimeoutError) as error:
        if folder is not None and not isinstance(error, JaxRuntimeError):
            _save(loop, folder)
        raise


def check_finite(runtime: Runtime, records: Sequence[TickRecord]) -> None:
    """Raise `FloatingPointError`, with a diagnosis, if the agent has diverged."""
    now = records[0]
    if not any(NOT_FINITE in event for event in now.events):
        return
    spec = runtime.specs[0]
    raise FloatingPointError(
        f"{spec.env} (seed {spec.seed}): by step {now.num_steps:,} {now.events[0]}. In this tick the mean loss was "
        f"{now.loss:.4g}, the mean norm of the gradient {now.gradient:.4g}, the mean Q {now.q:.4g}. Lower "
        f"`step_size`, {spec.step_size:g}, or set `max_gradient`."
    )


@contextmanager
def _explain_memory(runtime: Runtime, folder: RunFolder | None) -> Generator[None, None, None]:
    """Say which settings to lower when the device is out of memory, in place of the allocator's table."""
    try:
        yield
    except JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        names = ("replay_size", "num_actors", "num_windows", "evaluation_episodes")
        lower = ", ".join(f"`{name}` ({getattr(runtime.specs[0], name):,})" for name in names)
        members = ""
        if len(runtime.specs) > 1:
            members = f", or train fewer than {len(runtime.specs)} members together"
        saved = ""
        if folder is not None:
            saved = f" What is saved in {str(folder.path)!r} is intact."
        raise MemoryError(f"the device is out of memory. Lower {lower}{members}.{saved}") from error
