"""Results and charts with extreme values, for tests that every mark of a chart stays inside its frame."""

import math
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from builders import sweep_results
from offtrace.agent.telemetry import TickRecord

INF, NAN = math.inf, math.nan
GAMES = ("made/alpha", "made/beta")
Spec = Mapping[str, Any]
Value = Callable[[Spec, TickRecord], float]


class Case(NamedTuple):
    """A sweep: its runs, and the mean return of each tick."""

    value: Value
    wanted: tuple[dict[str, Any], ...] = tuple(sweep_results.specs(GAMES))
    telemetry: Mapping[str, float] = {}
    """By measure: the value that replaces that of every second tick."""
    ticks: int = 25

    def reports(self, spec: Spec) -> list[TickRecord]:
        first, *later = sweep_results.reports(spec, ticks=self.ticks)
        told = [report._replace(episode_return=self.value(spec, report)) for report in later]
        odd = self.telemetry if spec["seed"] != 1 else {}
        return [first, *(report._replace(**odd) if report.tick % 2 else report for report in told)]


def plain(spec: Spec, report: TickRecord) -> float:
    return report.episode_return


def alike(spec: Spec, report: TickRecord) -> float:
    """Seeds differ by hundreds, and the means of algorithms by nearly nothing."""
    return 100.0 * (spec["seed"] - 1) + zlib.crc32(spec["trace"].encode()) % 7


def outlier(spec: Spec, report: TickRecord) -> float:
    is_one = (spec["env"], spec["trace"], spec["seed"]) == (GAMES[0], "retrace", 0)
    return 1e7 * report.episode_return if is_one and report.tick > 20 else report.episode_return


def broken(spec: Spec, report: TickRecord) -> float:
    """NaN in one seed of one algorithm, from the middle of the run."""
    return NAN if spec["seed"] == 2 and spec["trace"] == "tree_backup" and report.tick > 12 else report.episode_return


def mixed(spec: Spec, report: TickRecord) -> float:
    """A different kind of extreme values in each game."""
    return MIXTURE[spec["env"]](spec, report)


def times(factor: float) -> Value:
    return lambda spec, report: factor * report.episode_return


MIXTURE: dict[str, Value] = {
    "made/alike": alike,
    "made/broken": broken,
    "made/constant": lambda spec, report: 7.0,
    "made/huge": times(1e9),
    "made/negative": times(-1.0),
    "made/tiny": times(1e-9),
    "made/zero": times(0.0),
}
LONG_NAMES = tuple(f"an algorithm whose name is rather long, number {i}" for i in range(24))
CASES = {
    "alike": Case(alike),
    "broken": Case(broken, telemetry={"c": NAN, "cut": NAN, "effective_length": INF, "off_policy": -INF}),
    "constant": Case(lambda spec, report: 7.0),
    "zero": Case(lambda spec, report: 0.0),
    "huge": Case(times(1e9), telemetry={"c": 1e9, "effective_length": 1e9, "off_policy": 1e9}),
    "largest": Case(times(1e150)),
    "tiny": Case(times(1e-9), telemetry={"c": 1e-9, "effective_length": 1e-9, "off_policy": 1e-9}),
    "negative": Case(times(-1e9), telemetry={"c": -3.0, "cut": -1e9}),
    "outlier": Case(outlier),
    "one run": Case(plain, tuple(sweep_results.specs(GAMES, seeds=(0,)))),
    "one tick": Case(plain, ticks=1),
    "one game, one λ": Case(plain, tuple(sweep_results.specs(GAMES[:1], lambdas=(1.0,)))),
    "many algorithms": Case(
        alike, tuple(sweep_results.specs(GAMES, traces=LONG_NAMES, lambdas=(1.0,), seeds=(0, 1)))
    ),
    "all together": Case(mixed, tuple(sweep_results.specs(MIXTURE))),
}


def store(path: Path, name: str) -> Path:
    case = CASES[name]
    return sweep_results.store(path, case.wanted, told=case.reports)


def charts() -> dict[str, Any]:
    """Return charts by name, with numbers that no statistic should have; earlier versions drew such charts."""
    from offtrace.report.figures import average_by_lambda_chart
    from offtrace.report.opening import Point, lambda_panel

    names = ["retrace", "tree_backup", "q_lambda", "dqn"]
    words = {"title": "t", "subtitle": "s"}
    averages = {"averages": [[0.0, 0.5, 1.0, 0.5]] * 3, "lambdas": [0.0, 0.9, 1.0], "algorithms": names}
    panel = {"domain": (0.0, 1.5), "y_title": "y", "reference": (1.0, "above: errors can grow"), **words}
    far = [Point(0.0, -INF, -INF, INF), Point(0.5, 1e9, -1e9, 1e300), Point(0.99, NAN), Point(1.0, INF, NAN, 1.0)]
    near = [Point(x, 0.5, 0.4, 0.6) for x in (0.0, 0.5, 0.9, 0.95, 0.99, 1.0)]
    return {
        "bars": average_by_lambda_chart(
            **averages, low=[[-18.0, -INF, -2.0, NAN]] * 3, high=[[11.0, 1e9, 1e300, 1.0]] * 3, **words
        ),
        "bar": average_by_lambda_chart(
            [[0.0, 1.0]], lambdas=[1.0], algorithms=names[:2], low=[[-18.0, 0.9]], high=[[0.5, 11.0]], **words
        ),
        "panel": lambda_panel({"retrace": far, "tree_backup": near, "q_lambda": far[:2], "dqn": near}, **panel),
        "panel-of-one": lambda_panel({"retrace": [Point(1.0, 2.0)], "dqn": [Point(1.0, 2.0)]}, **panel),
        "panel-of-many": lambda_panel(dict.fromkeys(LONG_NAMES, near), **panel),
    }
