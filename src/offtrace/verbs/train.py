"""`offtrace train ENV` and `offtrace watch RUN`: the verbs."""

import dataclasses
import json as json_module
import os
import shlex
import signal
import socket
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Self

import tyro
from rich.console import Console

from offtrace.agent.spec import Plan, TrainSpec
from offtrace.agent.telemetry import TickRecord, Watcher
from offtrace.verbs.display import Display
from offtrace.verbs.numbers import count

RUNS = Path("runs")
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def train(
    spec: Annotated[TrainSpec, tyro.conf.arg(name=""), tyro.conf.OmitArgPrefixes],
    output: Path | None = None,
    resume: bool = False,
    allow_changes: bool = False,
    tensorboard: bool = False,
    quiet: bool = False,
    json: bool = False,
) -> None:
    """Trains one agent: Retrace by default, with settings that suit the environment.

    Stop it with Ctrl-C at any time: it saves, and the same command with --resume goes on as if it had never stopped.
    What is chosen by the environment if not given is then as it was.

    Example: offtrace train CartPole-v1

    Example: offtrace train minatar/breakout --trace tree_backup --lambda 0.9 --seed 1

    Args:
        output: folder of the run; runs/<env>-<trace>-<seed> if not given.
        resume: go on with the run that is there.
        allow_changes: resume also if the settings or versions have changed since.
        tensorboard: write TensorBoard events, too.
        quiet: no progress, only warnings and the result.
        json: print the result as JSON, for a program to read.
    """
    from offtrace.agent import compile_cache
    from offtrace.agent.runs import read_specs
    from offtrace.agent.spec import continued, resolved
    from offtrace.agent.training import train as run

    compile_cache.enable()
    console = _Lasting(stderr=json)
    folder = output or _free(resolved(spec), resume)
    switches = {"tensorboard": tensorboard, "quiet": quiet, "json": json}
    command = ["offtrace", "train", *typed(spec), "--output", str(folder), "--resume"]
    command += [f"--{name}" for name, is_on in switches.items() if is_on]
    if resume and (folder / "spec.json").exists():
        plans = read_specs(folder)
        spec = continued(spec, plans[0]) if len(plans) == 1 else spec
    watcher = _Shown(console, folder, shlex.join(command), quiet=quiet)
    with watcher, signals() as stopping:
        result = run(
            spec,
            folder,
            resume=resume,
            allow_changes=allow_changes,
            tensorboard=tensorboard,
            watcher=watcher,
            stop=lambda: stopping() or console.closed,
        )
        watcher.finish(result)
    if console.closed:
        print(f"offtrace: nobody reads the output any more. {watcher.last_line(result)}", file=sys.stderr)
        sys.exit(0 if result.finished else 130)
    if json:
        rows = {"mean_return": result.mean_return, "returns": result.returns, "folder": str(folder)}
        print(json_module.dumps(rows if result.finished else {"folder": str(folder)}, indent=2))
    if not result.finished:
        sys.exit(130)


def watch(
    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")],
    output: Path | None = None,
    episodes: int = 1,
    steps: int = 1_000,
    seed: int = 0,
    epsilon: float = 0.0,
    fps: float = 30.0,
    allow_import: bool = False,
) -> None:
    """A trained agent at play: in this terminal, or as a GIF or an MP4.

    Example: offtrace watch runs/CartPole-v1-retrace-0 --output cartpole.gif

    Args:
        run: the folder of a run.
        output: a file that ends in .gif or .mp4; without one it plays in the terminal.
        episodes: how many.
        steps: of an episode, at most.
        seed: of the environment.
        epsilon: share of actions that are drawn at random.
        fps: pictures a second.
        allow_import: import the module that the run's environment names, module:Name-v0. It runs that module's code.
    """
    from offtrace.agent import compile_cache
    from offtrace.agent.policy import load_policy
    from offtrace.verbs.watching import watch_policy

    compile_cache.enable()
    console = Console()
    policy = load_policy(
        run,
        allow_import=allow_import,
        warn=lambda line: console.print(line, style="yellow", markup=False, soft_wrap=True),
    )
    watch_policy(
        policy,
        output=output,
        terminal=output is None,
        num_episodes=episodes,
        max_steps=steps,
        seed=seed,
        epsilon=epsilon,
        fps=fps,
        console=console,
    )


def typed(spec: TrainSpec) -> list[str]:
    """The spec on a command line, without what is there by default.

    >>> " ".join(typed(TrainSpec(env="CartPole-v1", lambda_=0.9, anneal=False, hidden_sizes=(64, 32), seed=0)))
    'CartPole-v1 --lambda 0.9 --no-anneal --hidden-sizes 64 32'
    """
    words = [spec.env]
    for field in dataclasses.fields(TrainSpec):
        value, name = getattr(spec, field.name), field.name.rstrip("_").replace("_", "-")
        if field.name == "env" or value in (field.default, {}):
            continue
        if field.default is True:
            words.append(f"--no-{name}")
        elif isinstance(value, dict):
            words += [f"--{name}", *(str(word) for pair in value.items() for word in pair)]
        else:
            words += [f"--{name}", *map(str, value if isinstance(value, tuple) else [value])]
    return words


def _free(spec: Plan, resume: bool) -> Path:
    """A folder that is not taken; to resume, the newest that is."""
    taken, free = None, RUNS / spec.name
    number = 2
    while (free / "spec.json").exists():
        taken, free = free, RUNS / f"{spec.name}-{number}"
        number += 1
    if resume:
        if taken is None:
            raise ValueError(f"there is no run in {str(free)!r} to resume.")
        return taken
    return free


class _Lasting(Console):
    """A console that outlives whoever reads it, as in `offtrace train … | head`: the run is to be saved."""

    closed = False

    def on_broken_pipe(self) -> None:
        self.closed = self.quiet = True
        # Python flushes its streams at the end, which must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())


class _Shown(Watcher):
    """A run as a person watches it."""

    def __init__(self, console: Console, folder: Path, command: str, *, quiet: bool) -> None:
        self.console, self.folder, self.quiet = console, folder, quiet
        self.command = command
        """What goes on with it, to be pasted."""
        self._display: Display | None = None
        self._early: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        if self._display is not None:
            self._display.__exit__(*error)

    def on_start(self, spec: Plan, total_steps: int, records: Sequence[TickRecord]) -> None:
        actors = f"{spec.num_actors} actors, windows of {spec.window}, memory of {count(spec.replay_size)}"
        display = Display(self.console, spec.title, f"{actors}; kept in {self.folder}", total_steps, self.quiet)
        self._display = display.__enter__()
        for line in self._early:
            display.say(line)
        if records:
            display.recall(records)
            display.say(f"Resumed at step {records[-1].num_steps:,}.")

    def on_tick(self, records: Sequence[TickRecord]) -> None:
        if self._display is None:
            return
        try:
            self._display.show(records[0])
        except OSError:  # the terminal is gone
            self.console.on_broken_pipe()

    def on_message(self, line: str) -> None:
        if self._display is None:
            self._early.append(line)
        else:
            self._display.say(line)

    def last_line(self, result: Any) -> str:
        """What to do next."""
        if result.finished:
            return f"Watch it: offtrace watch {shlex.quote(str(self.folder))}"
        return f"Stopped and saved. Go on with: {self.command}"

    def finish(self, result: Any) -> None:
        lines = list(self._early) if self._display is None else []
        if result.finished:
            among = f"mean return {result.mean_return:.4g} over {len(result.returns)} episodes"
            low, high = min(result.returns), max(result.returns)
            if result.spec.env.startswith("mdp/"):
                lines.append(f"Evaluation: expected return {result.mean_return:.4g}, computed exactly.")
            else:
                lines.append(f"Evaluation: {among} (least {low:.4g}, most {high:.4g}).")
            if result.num_unfinished:
                lines.append(f"{result.num_unfinished} of them were cut off and count as they stood.")
        lines.append(self.last_line(result))
        if self._display is not None:
            self._display.finish(lines)
        if self._display is None or self.quiet:
            for line in lines:
                self.console.print(line, markup=False, soft_wrap=True)


@contextmanager
def signals() -> Generator[Callable[[], bool], None, None]:
    """Ctrl-C, SIGTERM and a terminal that is closed ask for a stop; a second signal ends the program at once.

    Under `nohup` a closed terminal is ignored, as it should be.

    Python's handlers wait until a compiled program returns, which may take long, and see two signals as one. A thread
    that reads their numbers from a socket does not.
    """
    asked: list[int] = []
    wanted = [number for number in STOPS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {n: signal.signal(n, lambda number, _: asked.append(number)) for n in wanted}
    numbers, written = socket.socketpair()
    written.setblocking(False)
    former = signal.set_wakeup_fd(written.fileno(), warn_on_full_buffer=False)
    thread = threading.Thread(target=_exit_on_second, args=(numbers,), daemon=True)
    thread.start()
    try:
        yield lambda: bool(asked)
    finally:
        signal.set_wakeup_fd(former)
        for number, handler in before.items():
            signal.signal(number, handler)
        written.close()
        thread.join()
        numbers.close()


def _exit_on_second(numbers: socket.socket) -> None:
    seen = 0
    while number := numbers.recv(1):
        seen += number[0] in STOPS
        if seen == 2:
            if sys.stdout.isatty():
                os.write(1, b"\x1b[?25h\n")  # the cursor, which a live display hides
            os._exit(128 + number[0])
