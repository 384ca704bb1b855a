"""`offtrace train ENV`."""

import dataclasses
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Self

import tyro

from offtrace.agent.consent import modules
from offtrace.agent.spec import Plan, TrainSpec
from offtrace.agent.telemetry import TickRecord, Watcher
from offtrace.cli.display import Display
from offtrace.cli.exit_codes import DONE, INTERRUPTED
from offtrace.cli.interrupts import stop_requests
from offtrace.cli.numbers import count
from offtrace.cli.options import option
from offtrace.cli.streams import Console, print_json, tell
from offtrace.cli.train_list import print_environments
from offtrace.environments import protocol

RUNS = Path("runs")


@dataclasses.dataclass(frozen=True)
class CommandSpec(TrainSpec):
    """A spec whose environment may be missing, as with `--list`."""

    env: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV", help_behavior_hint="")] = ""
    """Environment: one of `--list`, such as `CartPole-v1`, or your own: `my_module:MyEnv`, `my_module:my/Env-v0`."""

    def __post_init__(self) -> None:
        if self.env:
            super().__post_init__()


def train(
    spec: Annotated[CommandSpec, tyro.conf.arg(name=""), tyro.conf.OmitArgPrefixes],
    output: Annotated[Path | None, option("PATH", "runs/ENV-TRACE-SEED")] = None,
    resume: bool = False,
    new_episodes: bool = False,
    allow_changes: bool = False,
    tensorboard: bool = False,
    quiet: bool = False,
    list: Annotated[bool, tyro.conf.arg(name="list")] = False,
    json: bool = False,
) -> None:
    """Train one agent: Retrace by default, with settings that suit the environment.

    Ctrl-C stops and saves the run. The same command with --resume continues it; the result is the same as without the
    stop. Repeat the options you gave; those with the default "what suits the environment" may be omitted.

    Example: offtrace train CartPole-v1

    Example: offtrace train minatar/breakout --trace tree_backup --lambda 0.9

    Example: offtrace train CartPole-v1 --trace my_module:MyTrace

    Example: offtrace train my_module:MyEnv --options size 5

    Args:
        output: Folder of the run.
        resume: Resume the run in the output folder.
        new_episodes: With --resume, for Gymnasium and Atari: start new episodes instead of repeating all actions, as
            that takes long after a long run. The result is then not the same as without the stop.
        allow_changes: Resume even if settings or package versions have changed since.
        tensorboard: Also write TensorBoard events.
        quiet: Print only warnings and the result.
        list: Print what can be trained, and what is installed, and exit.
        json: Print the result as JSON.
    """
    if list:
        print_environments(as_json=json)
        return
    if not spec.env:
        raise ValueError("name an environment: `offtrace train CartPole-v1`. `offtrace train --list` shows all.")
    _train(TrainSpec(**vars(spec)), output, resume, new_episodes, allow_changes, tensorboard, quiet, json)


def _train(
    spec: TrainSpec,
    output: Path | None,
    resume: bool,
    new_episodes: bool,
    allow_changes: bool,
    tensorboard: bool,
    quiet: bool,
    json: bool,
) -> None:
    from offtrace.agent import compile_cache
    from offtrace.agent.consent import import_modules
    from offtrace.agent.runs import read_specs
    from offtrace.agent.spec import continued, resolved
    from offtrace.agent.training import train as run

    compile_cache.enable()
    import_modules([spec], tell)
    console = Console(stderr=json)
    plan = resolved(spec, tell)
    folder = output or _default_folder(plan, resume)
    switches = {"tensorboard": tensorboard, "quiet": quiet, "json": json}
    command = ["offtrace", "train", *as_arguments(spec), "--output", str(folder), "--resume"]
    command += [f"--{name}" for name, is_on in switches.items() if is_on]
    if resume and (folder / "spec.json").exists():
        plans = read_specs(folder)
        if len(plans) == 1:
            spec = continued(spec, plans[0])
    watcher = _TrainingWatcher(console, folder, shlex.join(command), quiet=quiet)
    with watcher, stop_requests() as is_stop_requested:
        result = run(
            spec,
            folder,
            resume=resume,
            new_episodes=new_episodes,
            allow_changes=allow_changes,
            tensorboard=tensorboard,
            watcher=watcher,
            stop=lambda: is_stop_requested() or console.closed,
        )
        watcher.finish(result)
    if console.closed:
        print(f"offtrace: the output was closed. {watcher.last_line(result)}", file=sys.stderr)
        sys.exit(DONE if result.finished else INTERRUPTED)
    if json:
        rows: dict[str, Any] = {}
        if result.finished:
            rows = {"mean_return": result.mean_return, "returns": result.returns}
        print_json({**rows, "protocol": protocol(result.spec.env, result.spec.options), "folder": str(folder)})
    if not result.finished:
        sys.exit(INTERRUPTED)


def as_arguments(spec: TrainSpec) -> list[str]:
    """Return the command-line arguments that give this spec, without defaults.

    >>> " ".join(as_arguments(TrainSpec(env="CartPole-v1", lambda_=0.9, anneal=False, hidden_sizes=(64, 32), seed=0)))
    'CartPole-v1 --lambda 0.9 --no-anneal --hidden-sizes 64 32'
    """
    words = [spec.env]
    for field in dataclasses.fields(TrainSpec):
        value = getattr(spec, field.name)
        name = field.name.rstrip("_").replace("_", "-")
        if field.name == "env" or value in (field.default, {}):
            continue
        if field.default is True:
            words.append(f"--no-{name}")
        elif isinstance(value, dict):
            words += [f"--{name}", *(str(word) for pair in value.items() for word in pair)]
        elif isinstance(value, tuple):
            words += [f"--{name}", *map(str, value)]
        else:
            words += [f"--{name}", str(value)]
    return words


def _default_folder(spec: Plan, resume: bool) -> Path:
    """Return the first folder that has no run yet, or, to resume, the last one that has a run."""
    taken = None
    free = RUNS / spec.name
    number = 2
    while (free / "spec.json").exists():
        taken = free
        free = RUNS / f"{spec.name}-{number}"
        number += 1
    if not resume:
        if taken is not None:
            kind = "a finished run"
            if not (taken / "result.json").exists():
                kind = "an unfinished run, which --resume goes on with"
            tell(f"{taken} holds {kind}. This is a new run, in {free}.")
        return free
    if taken is None:
        raise ValueError(f"there is no run to resume in {str(free)!r}.")
    return taken


class _TrainingWatcher(Watcher):
    """Shows a run on a console as it trains."""

    def __init__(self, console: Console, folder: Path, command: str, *, quiet: bool) -> None:
        self.console = console
        self.folder = folder
        self.quiet = quiet
        self.command = command
        """Command that resumes the run."""
        self._display: Display | None = None
        self._early: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        if self._display is not None:
            self._display.__exit__(*error)

    def on_start(self, spec: Plan, total_steps: int, records: Sequence[TickRecord]) -> None:
        sizes = f"{spec.num_actors} actors, windows of {spec.window}, replay of {count(spec.replay_size)}"
        display = Display(self.console, spec.title, f"{sizes}; saved in {self.folder}", total_steps, self.quiet)
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
        """Return the command to run next."""
        if result.finished:
            words = ["offtrace", "watch", str(self.folder)]
            if allowed := modules([result.spec]):
                words += ["--allow-import", *allowed]
            return f"Watch it: {shlex.join(words)}"
        return f"Stopped and saved. Resume with: {self.command}"

    def finish(self, result: Any) -> None:
        """Print the evaluation and the command to run next."""
        lines = list(self._early) if self._display is None else []
        if result.finished:
            lines += _evaluation_lines(result)
        lines.append(self.last_line(result))
        if self._display is not None:
            self._display.finish(lines)
        if self._display is None or self.quiet:
            for line in lines:
                self.console.print(line, markup=False, soft_wrap=True)


def _evaluation_lines(result: Any) -> list[str]:
    if result.spec.env.startswith("mdp/"):
        return [f"Evaluation: expected return {result.mean_return:.4g}, computed exactly."]
    low = min(result.returns)
    high = max(result.returns)
    among = f"mean return {result.mean_return:.4g} over {len(result.returns)} episodes"
    lines = [f"Evaluation: {among} (min {low:.4g}, max {high:.4g})."]
    if result.num_unfinished:
        lines.append(f"{result.num_unfinished} of them were cut off; their return up to there counts.")
    return lines
