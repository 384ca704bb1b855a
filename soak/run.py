"""Soak tests of crashes, damaged files and bad input: `make soak`.

The tests kill commands at random moments, damage the files of runs and sweeps, and pass damaged
arrays and extreme values. None of this may silently change a score or a run, print a traceback,
hang, or use more than a gigabyte of memory. A case is determined by the seed and its number, so it
can be repeated: `python soak/run.py values --seed 0 --only 17`.
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
"""The number of cases per attack."""


@dataclass
class AttackResult:
    """One row of the table of results."""

    attack: str
    num_cases: int = 0
    num_same: int = 0
    """Cases that ended the same as without the attack."""
    num_refused: int = 0
    """Cases that were refused in one line, with an exit code."""
    wrong: list[str] | None = None
    seconds: float = 0.0
    most_megabytes: float = 0.0


def attack(name: str, num_cases: int, seed: int, only: Sequence[int], jobs: int, home: Path) -> AttackResult:
    made: Callable[..., Iterator[Case]] = importlib.import_module(name).cases
    row = AttackResult(name, wrong=[])
    started = time.monotonic()
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
    row.seconds = time.monotonic() - started
    return row


def main(
    names: tyro.conf.Positional[tuple[str, ...]] = (),
    seed: int = 0,
    only: tuple[int, ...] = (),
    scale: float = 1.0,
    jobs: int = 2,
) -> None:
    """Run the attacks, and print a table.

    Args:
        names: kills, run_files, results_files, arrays, values. Default: all.
        seed: Random seed of the cases.
        only: Numbers of the cases to run; their output is printed.
        scale: Share of the cases to run.
        jobs: Number of cases at a time.
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
    print("\n| attack | cases | unaffected | refused in one line | wrong | peak memory | time |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row.attack.replace('_', ' ')} | {row.num_cases} | {row.num_same} | "
            f"{row.num_refused} | {len(row.wrong or [])} | {row.most_megabytes:,.0f} MB | "
            f"{row.seconds / 60:.0f} min |"
        )
    sys.exit(any(row.wrong for row in rows))


if __name__ == "__main__":
    tyro.cli(main)
