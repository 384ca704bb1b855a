"""Benchmarks: speed beside peers, measured together on this machine.

A file in `benchmarks/` asks one question and defines one `BENCHMARK`; `run` measures it and stores
every number as JSON. All contenders of a row are checked against one answer, then measured in turns
(repeat 1 of each, repeat 2 of each, …), so that a slowdown of the machine affects all of them.
"""

from offtrace.bench.measuring import MIN_REPEATS, measure, measure_row, measure_together
from offtrace.bench.records import Benchmark, LeftOut, Result, Row, Timing
from offtrace.bench.running import folder, load, machine, names, run, write

__all__ = [
    "MIN_REPEATS",
    "Benchmark",
    "LeftOut",
    "Result",
    "Row",
    "Timing",
    "folder",
    "load",
    "machine",
    "measure",
    "measure_row",
    "measure_together",
    "names",
    "run",
    "write",
]
