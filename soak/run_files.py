"""Damage to the files of a finished or unfinished run, which is then resumed or watched.

It must end the same, bit for bit, or be refused.
"""

import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import reference
from children import Case, Outcome, one_line
from damage import damaged


def cases(num: int, seed: int, home: Path) -> Iterator[Case]:
    rng = random.Random(seed)
    home = home / "run_files"
    whole = reference.train_all(home)
    for env in reference.ENVS:
        reference.half(env, home / env / "half")
    film = home / "whole.gif"
    reference.made(_watch(home / reference.ENVS[0] / "whole", film), home)
    for number in range(num):
        folder = Path(tempfile.mkdtemp(prefix="run_files-", dir=home))
        watches = number % 5 == 4
        env = reference.ENVS[0] if watches else rng.choice(reference.ENVS)
        which = "whole" if watches else rng.choice(("whole", "half", "half"))
        shutil.copytree(home / env / which, folder / "run")
        what = damaged(folder / "run", rng)
        arguments = reference.train(env, "run", "--resume")
        if watches:
            arguments = _watch(folder / "run", folder / "film.gif")

        def check(done: Outcome, folder: Path = folder, env: str = env, watches: bool = watches) -> str:
            if (wrong := one_line(done)) or done.code != 0:
                return wrong
            if watches:
                same = (folder / "film.gif").read_bytes() == film.read_bytes()
                return "" if same else "it plays differently"
            return _same_result(folder / "run", whole[env])

        name = f"{'watch' if watches else 'train'} {env}, {which}: {what}"
        yield Case(name, arguments, folder, check, clean=lambda folder=folder: shutil.rmtree(folder), number=number)


def _watch(run: Path, film: Path) -> list[str]:
    return ["watch", str(run), "--output", str(film), "--max-steps", "8"]


def _same_result(run: Path, whole: dict[str, str]) -> str:
    """Compare the runs; a finished run whose checkpoints are damaged still has its result."""
    try:
        return reference.same_run(run, whole)
    except (ValueError, OSError):
        return "" if reference.result(run) == whole["result"] else "the result differs"
