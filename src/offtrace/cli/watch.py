"""`offtrace watch RUN`."""

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
    output: Annotated[Path | None, option("PATH", "show it in the terminal")] = None,
    num_episodes: int = 1,
    max_steps: int = 1_000,
    seed: int = 0,
    epsilon: float = 0.0,
    fps: float = 30.0,
    allow_import: Annotated[tuple[str, ...], option("MODULE …", "none")] = (),
) -> None:
    """Show a trained agent at play: in this terminal, or as a GIF or an MP4.

    Example: offtrace watch runs/CartPole-v1-retrace-0

    Example: offtrace watch runs/CartPole-v1-retrace-0 --output cartpole.gif

    Args:
        run: Folder of a run.
        output: File to write; its name ends in .gif or .mp4.
        num_episodes: Number of episodes.
        max_steps: Maximum steps per episode.
        seed: Random seed of the environment.
        epsilon: Probability of a random action.
        fps: Frames per second.
        allow_import: Modules that may be imported, if the run names them (my_module:MyEnv). This runs their code.
    """
    from offtrace import watch as library
    from offtrace.agent import compile_cache
    from offtrace.agent.policy import load_policy

    compile_cache.enable()
    for module in allow_import:
        import_module(module, tell)
    policy = load_policy(run, allow_import=allow_import, warn=warn)
    console = Console()
    settings: dict[str, Any] = {
        "num_episodes": num_episodes,
        "max_steps": max_steps,
        "seed": seed,
        "epsilon": epsilon,
        "fps": fps,
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
