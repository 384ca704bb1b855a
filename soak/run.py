"""Attacks on what offtrace promises to survive: `make soak`.

Kills at random moments, damage to the files of a run and of a sweep, arrays from strangers, extreme values on the
command line. Nothing may change a score or a run in silence, end in a traceback, hang, or take more than a gigabyte.
Every case is made from the seed and its number, so that it can be made again: `python soak/run.py values
--seed 0 --only 17`.
"""

import importlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro
from children import Case, run_all

ATTACKS = {
    "kills": 200,
    "run_files": 300,
    "results_files": 300,
    "arrays": 200,
    "values": 100,
}
"""How many cases each has by default."""


@dataclass
class Row:
    """Of the table."""

    attack: str
    num_cases: int = 0
    num_same: int = 0
    """It went on, or had nothing to do with the damage: all as it would have been."""
    num_refused: int = 0
    """In one line, with an exit code."""
    wrong: list[str] | None = None
    seconds: float = 0.0
    most_megabytes: float = 0.0


def attack(name: str, num_cases: int, seed: int, only: Sequence[int], jobs: int, home: Path) -> Row:
    made: Callable[..., Iterator[Case]] = importlib.import_module(name).cases
    row, began = Row(name, wrong=[]), time.monotonic()
    cases = (case for case in made(num_cases, seed, home) if not only or case.number in only)
    for case, done, wrong in run_all(cases, jobs):
        row.num_cases += 1
        row.most_megabytes = max(row.most_megabytes, done.megabytes)
        if wrong:
            row.wrong = [*(row.wrong or []), f"{name} {case.number}: {case.name}: {wrong}"]
            print(f"  WRONG {row.wrong[-1]}", flush=True)
        elif done.code in (0, 130):
            row.num_same += 1
        else:
            row.num_refused += 1
        if only:
            print(f"{case.name}\n  exit {done.code}, {done.seconds:.1f} s\n{done.out[-2000:]}{done.err[-2000:]}")
        if row.num_cases % 25 == 0:
            print(f"  {name}: {row.num_cases} of {num_cases}, {len(row.wrong or [])} wrong", flush=True)
    row.seconds = time.monotonic() - began
    return row


def main(
    names: tyro.conf.Positional[tuple[str, ...]] = (),
    seed: int = 0,
    only: tuple[int, ...] = (),
    scale: float = 1.0,
    jobs: int = 2,
) -> None:
    """Runs the attacks, and prints a table.

    Args:
        names: kills, run_files, results_files, arrays, values; all of them if none is named.
        seed: random seed of the cases.
        only: numbers of single cases; their output is printed.
        scale: share of the cases, for a quick look.
        jobs: cases at once.
    """
    home = Path(tempfile.mkdtemp(prefix="offtrace-soak-"))
    os.environ["TMPDIR"] = tempfile.tempdir = str(home)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(home / "programs")
    os.environ["JAX_COMPILATION_CACHE_MAX_SIZE"] = str(1 << 30)
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["COLUMNS"] = "200"
    for module in ("offtrace.cli", "offtrace.agent.training", "offtrace.agent.host", "offtrace.agent.policy"):
        importlib.import_module(module)  # before the forks
    try:
        names = names or tuple(ATTACKS)
        rows = [attack(name, max(1, round(ATTACKS[name] * scale)), seed, only, jobs, home) for name in names]
    finally:
        shutil.rmtree(home, ignore_errors=True)
    print("\n| attack | cases | as without it | refused in one line | wrong | most memory | time |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row.attack.replace('_', ' ')} | {row.num_cases} | {row.num_same} | {row.num_refused} | "
            f"{len(row.wrong or [])} | {row.most_megabytes:,.0f} MB | {row.seconds / 60:.0f} min |"
        )
    sys.exit(any(row.wrong for row in rows))


if __name__ == "__main__":
    tyro.cli(main)
