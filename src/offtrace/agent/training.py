"""A run from its start, or from its checkpoint, to its result."""

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
from offtrace.agent.runs import Result, RunFolder
from offtrace.agent.runtimes import Runtime, runtime_for
from offtrace.agent.settings import explain_missing_package
from offtrace.agent.spec import TrainSpec, resolved
from offtrace.agent.telemetry import NOT_FINITE, TickRecord, Watcher, as_watcher
from offtrace.agent.ticks import Loop
from offtrace.environments import on_host
from offtrace.environments.own import check_saveable

FINAL = 10**6
"""The number of the final evaluation; no tick has it."""
MOST_SAVING = 20
"""A checkpoint is followed by a pause of at least so many times its duration."""
NEW_EPISODES = "resumed with new episodes and an empty memory: not the same run as without the stop"


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
