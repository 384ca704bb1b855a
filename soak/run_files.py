"""Damage to the files of a run, finished or not; then it is resumed, or watched.

Either it ends as it would have, to the last bit, or it is refused.
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
    whole = {}
    for env in reference.ENVS:
        reference.made(reference.train(env, "whole"), home / env)
        reference.half(env, home / env / "half")
        whole[env] = reference.digest(home / env / "whole")
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
                return "" if same else "it plays otherwise now"
            return "" if _same(folder / "run", whole[env]) else "it is another run now"

        name = f"{'watch' if watches else 'train'} {env}, {which}: {what}"
        yield Case(name, arguments, folder, check, clean=lambda folder=folder: shutil.rmtree(folder), number=number)


def _watch(run: Path, film: Path) -> list[str]:
    return ["watch", str(run), "--output", str(film), "--max-steps", "8"]


def _same(run: Path, whole: dict[str, str]) -> bool:
    """A finished run whose checkpoints are gone or damaged still has its result."""
    try:
        return reference.digest(run) == whole
    except (ValueError, OSError):
        return reference.result(run) == whole["result"]
