"""`offtrace watch RUN`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich import filesize
from rich.markup import escape

from offtrace.cli.options import option
from offtrace.cli.progress import ProgressBar
from offtrace.cli.streams import Console, tell, warn
from offtrace.imports import import_module


def watch(
    run: Annotated[tyro.conf.Positional[Path], option("RUN")],
    select: Annotated[tuple[str, ...], option("FIELD=VALUE …", "none")] = (),
    output: Annotated[Path | None, option("PATH", "show it in the terminal")] = None,
    num_episodes: int = 1,
    max_steps: int = 1_000,
    seed: int = 0,
    epsilon: float = 0.0,
    fps: Annotated[float | None, option("FLOAT", "30; for Atari 15, the speed of the games")] = None,
    allow_import: Annotated[tuple[str, ...], option("MODULE …", "none")] = (),
) -> None:
    """Show a trained agent at play: in this terminal, or as a GIF or an MP4.

    Example: offtrace watch runs/CartPole-v1-retrace-0

    Example: offtrace watch runs/CartPole-v1-retrace-0 --output cartpole.gif

    Example: offtrace watch runs/atari-pong-retrace-0 --output pong.mp4

    Example: offtrace watch results.sqlite --select trace=retrace seed=0

    Args:
        run: Folder of a run or a population, or results file of a sweep.
        select: Fields that select one run of a population or a sweep.
        output: File to write; its name ends in .gif or .mp4.
        num_episodes: Number of episodes.
        max_steps: Maximum steps per episode.
        seed: Random seed of the environment.
        epsilon: Probability of a random action.
        fps: Frames per second; there is one per step.
        allow_import: Modules that may be imported, if the run names them (my_module:MyEnv). This runs their code.
    """
    from offtrace import watch as library
    from offtrace.agent import compile_cache
    from offtrace.experiments.trained import load_policy

    compile_cache.enable()
    for module in allow_import:
        import_module(module, tell)
    policy = load_policy(run, allow_import=allow_import, warn=warn, **_selection(select))
    console = Console()
    settings: dict[str, Any] = {
        "num_episodes": num_episodes,
        "max_steps": max_steps,
        "seed": seed,
        "epsilon": epsilon,
        "fps": library.usual_fps(policy.env) if fps is None else fps,
    }
    if output is None:
        library.show(policy, console, **settings)
        return
    with ProgressBar("starting …") as bar:

        def update(frame: Any) -> None:
            # An episode may end before `max_steps`: the time left is an upper bound.
            done = frame.episode - 1 + (1 if frame.ended else frame.step / max_steps)
            bar.update(done, num_episodes, f"episode {frame.episode}, step {frame.step}", "left, at most:")

        library.record(policy, output, **settings, progress=update)
    size = filesize.decimal(output.stat().st_size)
    console.print(f"Written to [bold]{escape(str(output))}[/bold], {size}", highlight=False, soft_wrap=True)


def _selection(words: Sequence[str]) -> dict[str, Any]:
    """Return fields of a spec from `FIELD=VALUE`; a value that is not JSON is a text.

    >>> _selection(["trace=retrace", "lambda=0.9", "hidden-sizes=[64]"])
    {'trace': 'retrace', 'lambda_': 0.9, 'hidden_sizes': (64,)}
    """
    found: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name:
            raise ValueError(f"`--select` must have the form FIELD=VALUE, such as trace=retrace; got {word!r}.")
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        name = name.replace("-", "_")
        found["lambda_" if name == "lambda" else name] = tuple(value) if isinstance(value, list) else value
    return found
