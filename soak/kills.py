"""SIGKILL at random moments of training, sweeping and reporting; then the same command runs to its
end.

The result must be the same, bit for bit, as without the kill.
"""

import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import reference
from children import Case, Outcome, must_succeed


def cases(num: int, seed: int, home: Path) -> Iterator[Case]:
    rng = random.Random(seed)
    home = home / "kills"
    whole = reference.train_all(home)
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
    """Kill training one to three times, then let it finish."""

    def check(done: Outcome) -> str:
        wrong = must_succeed(done)
        return wrong or reference.same_run(folder / "run", whole)

    command = reference.train(env, "run")
    # It can be resumed only once its folder exists.
    last = _Resuming("train, resumed", command, folder, check, clean=lambda: shutil.rmtree(folder), number=number)
    case: Case = last
    for _ in range(rng.randint(1, 3)):
        moment = rng.uniform(0.2, 6.0)
        case = _Resuming(f"train {env}", command, folder, _killed, kill_after=moment, then=case, number=number)
    return case


class _Resuming(Case):
    """A training command that resumes the run if there is one."""

    @property
    def command(self) -> list[str]:
        exists = (self.folder / "run" / "spec.json").exists()
        return [*self.arguments, "--resume"] if exists else self.arguments


def _sweep(folder: Path, rng: random.Random, scores: list[tuple[str, str, str]], number: int) -> Case:
    def check(done: Outcome) -> str:
        return must_succeed(done) or reference.same_scores(folder / reference.RESULTS, scores)

    case = Case("sweep, again", reference.SWEEP, folder, check, clean=lambda: shutil.rmtree(folder), number=number)
    for _ in range(rng.randint(1, 2)):
        moment = rng.uniform(0.2, 12.0)
        case = Case("sweep", reference.SWEEP, folder, _killed, kill_after=moment, then=case, number=number)
    return case


def _report(folder: Path, rng: random.Random, scores: list[tuple[str, str, str]], number: int) -> Case:
    def check(done: Outcome) -> str:
        if wrong := must_succeed(done):
            return wrong
        if not (folder / "report" / "index.html").read_text().rstrip().endswith("</html>"):
            return "the page is not complete"
        return reference.same_scores(folder / reference.RESULTS, scores)

    last = Case("report, again", reference.REPORT, folder, check, clean=lambda: shutil.rmtree(folder), number=number)
    moment = rng.uniform(0.2, 12.0)
    return Case("report", reference.REPORT, folder, _killed, kill_after=moment, then=last, number=number)
