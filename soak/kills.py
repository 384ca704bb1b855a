"""kill −9 at random moments of training, sweeping and reporting; then the same command again, to the end.

What comes of it must be what comes of a command that nobody killed, to the last bit.
"""

import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import reference
from children import Case, Outcome, one_line


def cases(num: int, seed: int, home: Path) -> Iterator[Case]:
    rng = random.Random(seed)
    home = home / "kills"
    whole = {}
    for env in reference.ENVS:
        reference.made(reference.train(env, "whole"), home / env)
        whole[env] = reference.digest(home / env / "whole")
    reference.made(reference.SWEEP, home / "sweep")
    scores = reference.scores(home / "sweep" / reference.RESULTS)
    reference.made(reference.REPORT, home / "sweep")
    for number in range(num):
        folder = Path(tempfile.mkdtemp(prefix="kills-", dir=home))
        kind = ("train", "train", "train", "train", "sweep", "report")[number % 6]
        if kind == "train":
            env = rng.choice(reference.ENVS)
            yield _train(env, folder, rng, whole[env], number)
        elif kind == "sweep":
            yield _sweep(folder, rng, scores, number)
        else:
            shutil.copytree(home / "sweep", folder, dirs_exist_ok=True)
            shutil.rmtree(folder / "report")
            yield _report(folder, rng, scores, number)


def _killed(_: Outcome) -> str:
    return ""


def _train(env: str, folder: Path, rng: random.Random, whole: dict[str, str], number: int) -> Case:
    """Killed one to three times, then left alone."""

    def check(done: Outcome) -> str:
        if wrong := one_line(done):
            return wrong
        if done.code != 0:
            return f"exit {done.code}: {done.err or done.out}"
        return "" if reference.digest(folder / "run") == whole else "it is another run now"

    command = reference.train(env, "run")
    # Until its folder is there, it cannot be resumed.
    last = _Again("train, resumed", command, folder, check, clean=lambda: shutil.rmtree(folder), number=number)
    case: Case = last
    for _ in range(rng.randint(1, 3)):
        moment = rng.uniform(0.2, 6.0)
        case = _Again(f"train {env}", command, folder, _killed, kill_after=moment, then=case, number=number)
    return case


class _Again(Case):
    """Resumes, where there is something to resume."""

    @property
    def command(self) -> list[str]:
        there = (self.folder / "run" / "spec.json").exists()
        return [*self.arguments, "--resume"] if there else self.arguments


def _sweep(folder: Path, rng: random.Random, scores: list[tuple[str, str, str]], number: int) -> Case:
    def check(done: Outcome) -> str:
        if wrong := one_line(done):
            return wrong
        if done.code != 0:
            return f"exit {done.code}: {done.err or done.out}"
        return "" if reference.scores(folder / reference.RESULTS) == scores else "it has other scores now"

    case = Case("sweep, again", reference.SWEEP, folder, check, clean=lambda: shutil.rmtree(folder), number=number)
    for _ in range(rng.randint(1, 2)):
        moment = rng.uniform(0.2, 12.0)
        case = Case("sweep", reference.SWEEP, folder, _killed, kill_after=moment, then=case, number=number)
    return case


def _report(folder: Path, rng: random.Random, scores: list[tuple[str, str, str]], number: int) -> Case:
    def check(done: Outcome) -> str:
        if wrong := one_line(done):
            return wrong
        if done.code != 0 or not (folder / "report" / "index.html").read_text().rstrip().endswith("</html>"):
            return f"exit {done.code}, and the page is not whole"
        return "" if reference.scores(folder / reference.RESULTS) == scores else "it has other scores now"

    last = Case("report, again", reference.REPORT, folder, check, clean=lambda: shutil.rmtree(folder), number=number)
    moment = rng.uniform(0.2, 12.0)
    return Case("report", reference.REPORT, folder, _killed, kill_after=moment, then=last, number=number)
