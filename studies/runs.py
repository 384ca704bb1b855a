"""What the studies share: options, results as JSON lines, processes, and tables as CSV files."""

import argparse
import csv
import json
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any


def add_options(parser: argparse.ArgumentParser, *, repetitions: int, output: str) -> None:
    """Add the options that every study has."""
    parser.add_argument("--repetitions", type=int, default=repetitions, help=f"logs per setting ({repetitions})")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first log (0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (one per core)")
    parser.add_argument("--quick", action="store_true", help="a small part, to see that it works")
    parser.add_argument("--tables", action="store_true", help="print the tables of the results so far")
    parser.add_argument("--output", type=Path, default=Path(output), help=f"file of results ({output})")


def run_all(
    work: Callable[[Any], dict[str, Any]],
    tasks: Sequence[Any],
    output: Path,
    jobs: int,
    *,
    key: Callable[[dict[str, Any]], Any],
    of_task: Callable[[Any], Any],
) -> None:
    """Append the line of every task to `output`, except for those that are there already."""
    done = {key(line) for line in read_lines(output)}
    left = [task for task in tasks if of_task(task) not in done]
    with open(output, "a", encoding="utf-8") as file:
        for line in _results(work, left, jobs):
            file.write(json.dumps(line) + "\n")
            file.flush()


def _results(work: Callable[[Any], dict[str, Any]], tasks: Sequence[Any], jobs: int) -> Iterable[dict[str, Any]]:
    if jobs == 1:
        yield from map(work, tasks)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(work, tasks, chunksize=4)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file of results; a last line that was cut short is left out."""
    if not path.exists():
        return []
    found = []
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            found.append(json.loads(text))
        except json.JSONDecodeError:
            continue
    return found


def write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows with the same keys as a CSV file."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
