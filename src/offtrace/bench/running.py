"""Finding benchmarks, running them row by row, and storing the results."""

import importlib.metadata
import importlib.util
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from offtrace.bench.measuring import MIN_REPEATS, measure_row
from offtrace.bench.records import Benchmark, Result
from offtrace.threads import num_cores
from offtrace.writing import write_whole

LIBRARIES = ("offtrace", "numpy", "numba", "scipy", "jax", "jaxlib", "torch", "triton", "rlax", "gymnasium")


def folder() -> Path:
    """Return the folder of the benchmark files: in the installed package, or beside `src` in the repository."""
    package = Path(__file__).resolve().parents[1]
    for candidate in (package / "benchmarks", package.parents[1] / "benchmarks"):
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(
        f"there is no folder `benchmarks` in {package} or {package.parents[1]}. Reinstall offtrace."
    )


def names() -> list[str]:
    """Return the names of all benchmarks."""
    return sorted(path.stem for path in folder().glob("*.py"))


def load(name: str) -> Benchmark:
    """Return the `BENCHMARK` of the file `<name>.py` in `folder()`."""
    if name not in names():
        raise ValueError(f"unknown benchmark `{name}`; valid options: {', '.join(names())}.")
    path = folder() / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"offtrace_benchmark_{name}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be imported.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    if module.BENCHMARK.name != name:
        raise ValueError(f"{path} defines the benchmark `{module.BENCHMARK.name}`; file and name must agree.")
    return module.BENCHMARK


def run(
    benchmark: Benchmark,
    *,
    quick: bool = False,
    output: Path | None = None,
    progress: Callable[[int, int, str], object] = lambda done, total, label: None,
) -> Iterator[Result]:
    """Measure a benchmark row by row, and yield the result so far after each row.

    All numbers so far are then in `<output>/<name>.json` (`<name>-quick.json` for a quick run, which
    does not replace a full one). `progress` is called with the repeats done, their total, and a label.
    """
    result = Result(benchmark, quick, datetime.now(UTC).isoformat(timespec="seconds"), machine())
    rows = benchmark.rows[: benchmark.quick_rows] if quick else benchmark.rows
    repeats = MIN_REPEATS if quick else benchmark.repeats
    repeats_per_row = repeats * (len(benchmark.contenders) + len(benchmark.floors))
    total = repeats_per_row * len(rows)
    for place, row in enumerate(rows):
        done = place * repeats_per_row  # contenders that were left out of earlier rows had no repeats
        label = f"{benchmark.name} {row}"
        progress(done, total, label)

        def advance(label: str = label) -> None:
            nonlocal done
            done += 1
            progress(done, total, label)

        measured = measure_row(benchmark, row, quick=quick, progress=advance)
        result = replace(result, rows=(*result.rows, measured), complete=place == len(rows) - 1)
        if output is not None:
            write(result, output)
        yield result


def write(result: Result, output: Path) -> None:
    """Write a result as JSON; a reader never sees a part of the file."""
    output.mkdir(parents=True, exist_ok=True)
    path = output / f"{result.benchmark.name}{'-quick' if result.quick else ''}.json"
    text = json.dumps(result.as_dict(), indent=1, ensure_ascii=False) + "\n"
    write_whole(path, [text.encode()])


def machine() -> dict[str, Any]:
    """Return what the numbers depend on: processor, cores and their load, versions of Python and libraries."""
    model = platform.processor()
    with suppress(OSError):
        facts = [line.partition(":") for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()]
        model = next((value.strip() for name, _, value in facts if name.strip() == "model name"), model)
    versions = {}
    for library in LIBRARIES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[library] = importlib.metadata.version(library)
    return {
        "processor": model,
        "cores": num_cores(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "platform": platform.platform(),
        "python": platform.python_version(),
        "libraries": versions,
    }
