"""Undamaged runs and results to compare with."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from children import Case, run_all

SMALL = """
--hidden-sizes 16 --num-actors 4 --num-steps 200 --fill 40 --replay-size 160 --tick-steps 40 --window 4
--num-windows 4 --target-period 8 --epsilon-steps 100 --evaluation-ticks 0 --evaluation-episodes 5
--evaluation-steps 100 --quiet
""".split()  # noqa: SIM905 (as a person would type it)
ENVS = ("pocket/catch", "CartPole-v1")


RESULTS = "results.sqlite"
SWEEP = ["sweep", "pocket/catch", "--traces", "retrace", "q_lambda", "--lambdas", "0.5", "1.0"]
SWEEP += ["--num-seeds", "2", "--num-steps", "2000", "--output", RESULTS, "--jobs", "1"]
REPORT = ["report", RESULTS, "--output", "report", "--formats", "svg"]


def train(env: str, output: str, *more: str) -> list[str]:
    return ["train", env, *SMALL, "--output", output, *more]


def made(arguments: list[str], folder: Path) -> None:
    """Run a command in a child process, which must succeed."""
    folder.mkdir(parents=True, exist_ok=True)
    ((_, done, _),) = run_all([Case("reference", arguments, folder, lambda _: "")], 1)
    if done.code != 0:
        raise RuntimeError(f"{arguments}: {done.err or done.out}")


def half(env: str, run: Path) -> None:
    """Train a run that is stopped in the middle."""
    from offtrace.agent import training
    from offtrace.cli import main

    left = iter(range(30 if env == "CartPole-v1" else 3, -1, -1))
    real = training.train

    def stopped(*given: Any, stop: Any, **options: Any) -> Any:
        return real(*given, stop=lambda: next(left) == 0, **options)

    pid = os.fork()
    if pid == 0:
        training.train = stopped
        try:
            main(train(env, str(run)))
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def result(run: Path) -> str:
    return hashlib.sha256((run / "result.json").read_bytes()).hexdigest()


def scores(path: Path) -> list[tuple[str, str, str]]:
    """Return everything in a results file that goes into a report."""
    from offtrace.experiments.store import read

    return sorted((run.fingerprint, run.status, run.checksum) for run in read([path]))


def data(report: Path) -> dict[str, str]:
    """Return the checksums of a report's data files."""
    files = sorted((report / "data").rglob("*"))
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files if path.is_file()}


def digest(run: Path) -> dict[str, str]:
    """Return checksums of a run's last checkpoint and result."""
    from offtrace.agent import checkpoints

    found = checkpoints.load(run, warn=lambda _: None)
    seen = {"number": str(found.number), "record": json.dumps(found.record)}
    for name, array in found.arrays.items():
        seen[name] = hashlib.sha256(array.tobytes()).hexdigest()
    seen["result"] = result(run)
    return seen


def train_all(home: Path) -> dict[str, dict[str, str]]:
    """Train one run per environment, and return their checksums."""
    found = {}
    for env in ENVS:
        made(train(env, "whole"), home / env)
        found[env] = digest(home / env / "whole")
    return found


def same_run(run: Path, whole: dict[str, str]) -> str:
    """Return what is wrong if a run differs from the undamaged one."""
    return "" if digest(run) == whole else "the run differs"


def same_scores(path: Path, whole: list[tuple[str, str, str]]) -> str:
    """Return what is wrong if a results file differs from the undamaged one."""
    return "" if scores(path) == whole else "the scores differ"
