"""Charts of comparisons and of what happened on the way: their numbers, their words, and names that are no words."""

import contextlib
import json
import math
import struct
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
import vl_convert
from builders import extreme_results
from builders.reports import report

from offtrace.agent.telemetry import TickRecord
from offtrace.experiments.results import studies
from offtrace.experiments.store import StoredRun, read
from offtrace.report import charts, comparisons, curves
from offtrace.report.findings import Contraction
from offtrace.report.opening import Point, _theory_panel, lambda_panel
from offtrace.scores import Comparison, Key, published_comparison

NAN = math.nan
HOSTILE = ("<script>alert('x')</script>", 'a.b["c"]', "datum.x[0]", "{{x}} \\ 'quoted'")


def layer_rows(chart, kind: str) -> list[dict]:
    """The data of the first layer with this mark."""
    spec = chart.to_dict()
    data = next(layer["data"] for layer in spec["layer"] if layer["mark"]["type"] == kind)
    return data["values"] if "values" in data else spec["datasets"][data["name"]]


def kinds(chart) -> list[str]:
    return [layer["mark"]["type"] for layer in chart.to_dict()["layer"]]


def words(chart) -> str:
    title = chart.to_dict()["title"]
    return " ".join(
        [title["text"] if isinstance(title["text"], str) else " ".join(title["text"]), *title["subtitle"]]
    )


NOT_MEASURED = {"c": NAN, "cut": NAN, "effective_length": NAN, "off_policy": NAN}


def reports(values, *, steps: int = 1000, episodes: int = 2, **measures) -> list[TickRecord]:
    """Return one report per value; tick 0 is the untrained agent."""
    fields = NOT_MEASURED | {"num_episodes": episodes} | measures
    return [report(i, tick_size=steps, episode_return=value, **fields) for i, value in enumerate([NAN, *values])]


def stored(game: str, trace: str, lambda_: float, seed: int, told, status: str = "done") -> StoredRun:
    spec = {"env": f"pocket/{game}", "trace": trace, "lambda_": lambda_, "seed": seed}
    name = f"{game} {trace} {lambda_} {seed}"
    return StoredRun(Path("results.sqlite"), 1, name, spec, status, None, tuple(told), (1.0,), 0, {}, None, None)


def synthetic(*, num_seeds=3, lambdas=(0.0, 0.5, 1.0), algorithms=("retrace", "tree_backup", "dqn"), num_games=4):
    rng = np.random.default_rng(0)
    runs: dict = {"final": {}, "early": {}}
    for game in range(num_games):
        for a, name in enumerate(algorithms):
            for x in (0.0,) if name == "dqn" else lambdas:
                for stretch in runs:
                    runs[stretch][Key(f"game {game}", name, x)] = (10 - a + x + rng.normal(size=num_seeds)).tolist()
    return Comparison("mine", runs)


# --- comparisons --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stretch", ["early", "final"])
def test_a_distribution_is_of_the_stretch_it_names(stretch):
    cells = {
        "early": {"retrace": 1.0, "tree_backup": 2.0, "dqn": 5.0},
        "final": {"retrace": 9.0, "tree_backup": 3.0, "dqn": 1.0},
    }
    runs = {s: {Key("pong", a, float(a != "dqn")): (v,) for a, v in row.items()} for s, row in cells.items()}
    chart = comparisons.score_distribution(Comparison("mine", runs), 1.0, stretch)
    ends = {row["algorithm"]: row["fraction"] for row in layer_rows(chart, "line") if row["score"] == 1.0}
    best = {"early": "DQN", "final": "Retrace(λ)"}[stretch]
    assert ends == {name: float(name == best) for name in ("Retrace(λ)", "TB(λ)", "DQN")}
    assert f"{stretch} training scores" in words(chart)
    assert "1 game, 3 runs, λ = 1" in words(chart)


def test_averages_and_levels_have_the_comparisons_numbers_and_intervals():
    comparison = synthetic()
    for chart, scale, kind, field in (
        (comparisons.average_by_lambda(comparison), "score", "rule", "average"),
        (comparisons.sensitivity(comparison), "level", "area", "level"),
    ):
        expected = comparison.averages(scale)
        rows = layer_rows(chart, kind)
        shown = {"retrace": "Retrace(λ)", "tree_backup": "TB(λ)", "dqn": "DQN"}
        for a, name in enumerate(expected.algorithms):
            drawn = [row for row in rows if row["algorithm"] == shown[name]]
            for column, of in ((expected.value, field), (expected.low, "low"), (expected.high, "high")):
                assert [row[of] for row in drawn] == column[:, a].tolist()
        assert "4 games, 84 runs." in words(chart)
        assert "95% t intervals over seeds" in words(chart)


def test_a_baseline_is_one_dashed_level_without_points():
    chart = comparisons.sensitivity(synthetic())
    assert len({row["level"] for row in layer_rows(chart, "line") if row["algorithm"] == "DQN"}) == 1
    assert {row["algorithm"] for row in layer_rows(chart, "circle")} == {"Retrace(λ)", "TB(λ)"}
    line = next(layer for layer in chart.to_dict()["layer"] if layer["mark"]["type"] == "line")
    scale = line["encoding"]["strokeDash"]["scale"]
    assert dict(zip(scale["domain"], scale["range"], strict=True))["DQN"] == [6, 3]


def test_one_run_has_no_bars_and_says_why():
    comparison = synthetic(num_seeds=1)
    assert "rule" not in kinds(comparisons.average_by_lambda(comparison))
    assert "area" not in kinds(comparisons.sensitivity(comparison))
    assert "area" not in kinds(comparisons.profile(comparison, 1.0))
    for chart in (comparisons.average_by_lambda(comparison), comparisons.sensitivity(comparison)):
        assert "No intervals: a cell has a single run" in words(chart)


def test_a_profile_names_the_ends_of_its_scale():
    comparison = synthetic()
    exact = Comparison("exact", comparison.runs, anchors=dict.fromkeys(comparison.games, (0.0, 20.0)))
    for found, text in ((comparison, "1 = best mean of an algorithm"), (exact, "1 = the optimal policy")):
        assert text in json.dumps(comparisons.profile(found, 1.0).to_dict())


def test_a_profile_is_the_share_of_runs_above_each_score():
    comparison = synthetic()
    games, z = comparison.games, comparison.run_scores(1.0)
    rows = [row for row in layer_rows(comparisons.profile(comparison, 1.0), "line") if row["algorithm"] == "TB(λ)"]
    for row in rows:
        expected = sum((z["tree_backup"][g] > row["score"]).mean() for g in games) / len(games)
        assert row["share"] == pytest.approx(expected)
        assert row["low"] <= row["share"] <= row["high"]
    assert {0.0, 1.0} <= {row["score"] for row in rows}


def test_lambdas_that_only_one_algorithm_has_are_left_out():
    comparison = synthetic()
    more = {s: dict(cells) | {Key(g, "retrace", 0.9): (1.0, 2.0) for g in comparison.games}
            for s, cells in comparison.runs.items()}  # fmt: skip
    chart = comparisons.average_by_lambda(Comparison("mine", more))
    assert {row["lambda"] for row in layer_rows(chart, "circle")} == {0.0, 0.5, 1.0}


@pytest.mark.parametrize(
    ("draw", "text"),
    [
        (
            lambda: comparisons.score_distribution(published_comparison(), 1.0, "early"),
            "a game with early training scores of retrace, ",
        ),
        (lambda: comparisons.score_distribution(synthetic(), 0.3), r"at λ = 0.3; got none. Run what is missing"),
        (lambda: comparisons.score_distribution(Comparison("no", {}), 1.0), "2 or more algorithms; got none"),
        (lambda: comparisons.profile(synthetic(algorithms=("dqn",)), 1.0), "2 or more algorithms; got dqn"),
        (lambda: comparisons.sensitivity(published_comparison()), "averages are normalised within each λ"),
        (
            lambda: comparisons.sensitivity(synthetic(lambdas=(1.0,))),
            r"2 or more values of λ to compare them; got \[1.0\]",
        ),
        (lambda: comparisons.average_by_lambda(Comparison("no", {})), "`comparison` has no averages"),
    ],
)
def test_what_cannot_be_drawn_says_why(draw, text):
    with pytest.raises(ValueError, match=text):
        draw()


# --- learning curves ----------------------------------------------------------------------------------------


def test_learning_curves_are_means_of_runs_with_bootstrap_bands():
    """Of five runs, with a plain loop as the oracle."""
    heights = [0.0, 1.0, 2.0, 4.0, 8.0]
    runs = {"retrace": [reports([height] * curves.POINTS) for height in heights]}
    runs["dqn"] = [reports([9.0] * curves.POINTS), reports([5.0] * curves.POINTS)]
    chart = curves.learning_curves(runs, title="t")
    rows = layer_rows(chart, "line")
    assert len(rows) == 2 * curves.POINTS
    ours = [row for row in rows if row["algorithm"] == "Retrace(λ)"]
    rng = np.random.default_rng(5)
    drawn = sorted(sum(heights[rng.integers(5)] for _ in range(5)) / 5 for _ in range(20_000))
    for row in ours:
        assert row["mean"] == 3.0
        assert row["low"] == pytest.approx(drawn[500], abs=0.2)
        assert row["high"] == pytest.approx(drawn[19_500], abs=0.3)
    theirs = {(row["mean"], row["low"], row["high"]) for row in rows if row not in ours}
    assert theirs == {(7.0, 5.0, 9.0)}
    assert "95% bootstrap intervals of the mean over 2 to 5 runs; for DQN the range." in words(chart)
    assert layer_rows(curves.learning_curves(runs, title="t"), "line") == rows


@pytest.mark.parametrize(("num_runs", "text"), [(1, "no band"), (2, "the range of 2 runs"), (3, "over 3 runs.")])
def test_learning_curves_say_what_their_band_is(num_runs, text):
    runs = {"retrace": [reports([1.0, 2.0])] * num_runs}
    assert text in words(curves.learning_curves(runs, title="t", subtitle="first"))


def test_a_run_without_episodes_in_a_stretch_does_not_count_there():
    last = curves.POINTS
    runs = {"retrace": [reports([*[1.0] * (last - 1), NAN]), *[reports([3.0] * last)] * 2]}
    rows = layer_rows(curves.learning_curves(runs, title="t"), "line")
    assert rows[0]["mean"] == pytest.approx(7 / 3, abs=1e-5)
    assert (rows[-1]["mean"], rows[-1]["low"], rows[-1]["high"]) == (3.0, 3.0, 3.0)


def test_learning_curves_weigh_by_episodes():
    few, many = reports([1.0], episodes=1), reports([4.0], episodes=2)
    chart = curves.learning_curves({"retrace": [[few[0], few[1], many[1]]]}, title="t", subtitle="s")
    assert [row["mean"] for row in layer_rows(chart, "line")] == [3.0]


@pytest.mark.parametrize(("steps", "unit", "at"), [(1000, "thousands", 2.0), (1_000_000, "millions", 2.0)])
def test_steps_are_in_a_unit_of_their_size(steps, unit, at):
    chart = curves.learning_curves({"retrace": [reports([1.0, 2.0], steps=steps)]}, title="t")
    assert layer_rows(chart, "line")[-1]["steps"] == at
    assert unit in chart.to_dict()["layer"][0]["encoding"]["x"]["title"]


@pytest.mark.parametrize("runs", [{}, {"retrace": []}, {"retrace": [[]]}, {"retrace": [reports([])]}])
def test_learning_curves_need_runs_with_episodes(runs):
    with pytest.raises(ValueError, match="`runs` must have"):
        curves.learning_curves(runs, title="t", subtitle="s")


# --- telemetry ----------------------------------------------------------------------------------------------


def traced(values, **other) -> list[TickRecord]:
    fields = NOT_MEASURED | {"num_episodes": 2, "episode_return": 1.0} | other
    return [report(i, **fields | {"c": value, "cut": 1 - value}) for i, value in enumerate([NAN, *values])]


def test_telemetry_is_the_mean_of_games_whatever_their_runs():
    flat = [0.2] * curves.POINTS, [0.4] * curves.POINTS, [0.9] * curves.POINTS
    runs = [stored("catch", "retrace", 1.0, 0, traced(flat[0])), stored("catch", "retrace", 1.0, 1, traced(flat[1]))]
    runs += [stored("maze", "retrace", 1.0, 0, traced(flat[2])), stored("maze", "dqn", 0.0, 0, traced(flat[0]))]
    runs += [stored("catch", "dqn", 0.0, 0, traced(flat[0], effective_length=1.0))]
    runs += [stored("maze", "retrace", 1.0, 7, traced(flat[0]), "failed")]
    [study] = studies(runs)
    rows = layer_rows(curves.telemetry(study, 1.0, "c"), "line")
    assert {row["algorithm"] for row in rows} == {"Retrace(λ)"}  # DQN's windows have one step, and no c
    assert [row["value"] for row in rows] == pytest.approx([0.6] * curves.POINTS)
    assert rows[-1]["share"] == 1.0
    assert {row["algorithm"] for row in layer_rows(curves.telemetry(study, 1.0, "effective_length"), "line")} == {
        "DQN"
    }
    assert "3 runs on 2 games at λ = 1" in words(curves.telemetry(study, 1.0, "c"))
    assert words(curves.telemetry(study, 1.0, "c")).startswith("How much of a TD error is passed on")
    with pytest.raises(ValueError, match="with values of `off_policy`; got none"):
        curves.telemetry(study, 1.0, "off_policy")


def test_runs_of_few_ticks_are_drawn_from_their_first_update_to_their_end():
    [study] = studies([stored("catch", "retrace", 1.0, 0, traced([NAN, 0.5, 1.0, 0.5]))])
    rows = layer_rows(curves.telemetry(study, 1.0, "c"), "line")
    assert rows[0]["share"] == 0.5
    assert (rows[0]["value"], rows[-1]["value"]) == (0.5, 0.5)
    assert max(row["value"] for row in rows) == 1.0


def test_telemetry_refuses_other_measures():
    [study] = studies([stored("catch", "retrace", 1.0, 0, traced([0.5]))])
    with pytest.raises(
        ValueError, match=r"`measure` must be one of c, cut, effective_length, off_policy; got 'loss'"
    ):
        curves.telemetry(study, 1.0, "loss")


def test_values_that_are_not_finite_are_left_out():
    [study] = studies([stored("catch", "retrace", 1.0, 0, traced([math.inf, 0.25, -math.inf, 1e308, 0.75, NAN]))])
    values = {row["value"] for row in layer_rows(curves.telemetry(study, 1.0, "c"), "line")}
    assert (min(values), max(values)) == (0.25, 0.75)
    runs = {"retrace": [reports([math.inf, 2.0, -1e308, 2.0, NAN])]}
    assert {row["mean"] for row in layer_rows(curves.learning_curves(runs, title="t"), "line")} == {2.0}


def test_one_point_is_drawn_as_a_point():
    chart = curves.learning_curves({"retrace": [reports([1.0])], "dqn": [reports([1.0, 2.0])]}, title="t")
    assert [row["algorithm"] for row in layer_rows(chart, "circle")] == ["Retrace(λ)"]
    assert "circle" not in kinds(curves.learning_curves({"dqn": [reports([1.0, 2.0])]}, title="t"))


@pytest.mark.parametrize(("low", "high"), [(0.0, 0.0), (7.0, 7.0), (-1e9, -1e9 + 1), (1e-9, 1e-9), (-5.0, 1e9)])
def test_an_axis_has_room_around_its_values(low, high):
    bottom, top = charts.roomy(low, high)
    assert bottom < low <= high < top
    assert top - bottom <= 1.2 * max(high - low, abs(low), abs(high), 1.0)


# --- whatever the data are ----------------------------------------------------------------------------------


def svg_size(spec) -> tuple[float, float]:
    root = ElementTree.fromstring(vl_convert.vegalite_to_svg(json.dumps(spec, allow_nan=False)))
    return float(root.attrib["width"]), float(root.attrib["height"])


def assert_as_large_as_asked_for(spec):
    """The names on the right, the axis on the left, a title and its lines, and the padding are all there is more."""
    width, height = svg_size(spec)
    assert spec["width"] < width <= spec["width"] + charts.LABEL_WIDTH + 150
    assert spec["height"] < height <= spec["height"] + 220


EVERY_CHART = ("broken", "huge", "tiny", "negative", "all together")
"""Cases with extreme telemetry, or games that differ; the charts of measures and games of the others are alike."""


def charts_of(study, *, every: bool):
    """Return the charts that can be drawn: of every measure and game, or of the first ones."""
    count = None if every else 1
    comparison, lambda_ = study.comparison, study.comparison.lambdas[-1]
    makers = [
        lambda: comparisons.score_distribution(comparison, lambda_),
        lambda: comparisons.average_by_lambda(comparison),
        lambda: comparisons.sensitivity(comparison),
        lambda: comparisons.profile(comparison, lambda_),
        *(lambda m=measure: curves.telemetry(study, lambda_, m) for measure in list(curves.MEASURES)[:count]),
    ]
    for game, runs in list(study.curves(lambda_).items())[:count]:
        makers.append(lambda game=game, runs=runs: curves.learning_curves(runs, title=game))
    for make in makers:
        with contextlib.suppress(ValueError):
            yield make()


@pytest.mark.parametrize("name", extreme_results.CASES)
def test_pictures_of_whatever_results_are_as_large_as_asked_for(name, tmp_path):
    [study] = studies(read([extreme_results.store(tmp_path / "results.sqlite", name)]))
    every = name in EVERY_CHART
    drawn = list(charts_of(study, every=every))
    assert len(drawn) >= (6 if every else 4)
    for chart in drawn:
        assert_as_large_as_asked_for(chart.to_dict())


def test_pictures_of_values_beyond_the_axis_are_as_large_as_asked_for():
    """Bars from −18 to 11 on an axis from 0 to 1 once made a picture of 20,000 pixels."""
    for chart in extreme_results.charts().values():
        spec = chart.to_dict()
        assert_as_large_as_asked_for(spec)
        png = vl_convert.vegalite_to_png(json.dumps(spec), scale=2)
        assert struct.unpack(">II", png[16:24]) == tuple(2 * round(size) for size in svg_size(spec))


def test_tooltips_have_the_values_themselves():
    rows = {row["algorithm"]: row for row in layer_rows(extreme_results.charts()["bars"], "rule")}
    assert (rows["Retrace(λ)"]["low"], rows["Retrace(λ)"]["high"]) == (-18.0, 11.0)
    assert set(rows) == {"Retrace(λ)", "Q(λ)"}  # the others' ends are infinite, or not known


# --- panels at the top of the page --------------------------------------------------------------------------


def panel(lines, **options):
    common = {"title": "t", "subtitle": "s", "y_title": "contraction", "domain": (0.0, 1.5)}
    return lambda_panel(lines, **common | options)


def test_a_panel_draws_values_at_the_edge_and_tells_what_they_are():
    points = [Point(0.0, 0.5, 0.25, 0.75), Point(0.5, 9.0, -4.0, math.inf), Point(0.9, NAN), Point(1.0, -math.inf)]
    rows = layer_rows(panel({"retrace": points}), "circle")
    assert [(row["lambda"], row["value"]) for row in rows] == [(0.0, 0.5), (0.5, 1.5), (1.0, 0.0)]
    assert [row["shown"] for row in rows] == ["0.5", "9", "−∞"]
    assert [row["interval"] for row in rows] == ["0.25 to 0.75", "−4 to ∞", ""]
    bands = layer_rows(panel({"retrace": points}), "area")
    assert [(row["low"], row["high"]) for row in bands] == [(0.25, 0.75), (0.0, 1.5)]


def test_a_panel_has_names_colours_and_dashes_of_other_charts():
    lines = {"retrace": [Point(0.0, 0.9), Point(1.0, 0.8)], "dqn": [Point(0.0, 0.5), Point(1.0, 0.5)]}
    chart = panel(lines)
    spec = chart.to_dict()
    assert (spec["width"], spec["height"]) == (360, 280)
    assert kinds(chart) == ["line", "circle", "text"]
    assert {row["algorithm"] for row in layer_rows(chart, "circle")} == {"Retrace(λ)"}
    assert {row["algorithm"]: row["y"] for row in layer_rows(chart, "text")} == {"Retrace(λ)": 0.8, "DQN": 0.5}
    encoding = spec["layer"][0]["encoding"]
    assert encoding["color"]["scale"]["range"] == [charts.COLOURS["retrace"], charts.COLOURS["dqn"]]
    assert encoding["strokeDash"]["scale"]["range"] == [[1, 0], [6, 3]]
    assert encoding["y"]["scale"] | {"domain": [0.0, 1.5], "clamp": True} == encoding["y"]["scale"]


def test_a_panel_can_have_a_reference():
    chart = panel({"retrace": [Point(1.0, 0.5)]}, reference=(1.0, "above: errors can grow"))
    assert kinds(chart)[:2] == ["rule", "text"]
    assert layer_rows(chart, "rule") == [{"y": 1.0, "text": "above: errors can grow"}]


@pytest.mark.parametrize(
    ("lines", "options", "text"),
    [
        ({}, {}, "`lines` must have a point with a finite λ and a value"),
        ({"retrace": [Point(1.0, NAN)]}, {}, "`lines` must have a point with a finite λ and a value"),
        ({"retrace": [Point(1.0, 1.0)]}, {"domain": (1.0, 1.0)}, "`domain` must be two finite numbers, the lower"),
        ({"retrace": [Point(1.0, 1.0)]}, {"domain": (0.0, math.inf)}, "`domain` must be two finite numbers"),
        (
            {"retrace": [Point(1.0, 1.0)]},
            {"reference": (2.0, "x")},
            r"`reference` must lie in `domain`, \(0.0, 1.5\)",
        ),
    ],
)
def test_refused_panels(lines, options, text):
    with pytest.raises(ValueError, match=text):
        panel(lines, **options)


# --- names are data -----------------------------------------------------------------------------------------


def hostile_charts():
    names = [*HOSTILE, "dqn"]
    told = traced([0.5] * 10, effective_length=2.0, off_policy=0.5)
    runs = [
        stored(game, name, x, seed, told)
        for game in HOSTILE
        for name in names
        for x in ((0.0,) if name == "dqn" else (0.5, 1.0))
        for seed in range(3)
    ]
    [study] = studies(runs)
    comparison = study.comparison
    yield comparisons.score_distribution(comparison, 1.0)
    yield comparisons.average_by_lambda(comparison)
    yield comparisons.sensitivity(comparison)
    yield comparisons.profile(comparison, 1.0)
    yield curves.learning_curves(study.curves(1.0)[comparison.games[0]], title=HOSTILE[0])
    yield curves.telemetry(study, 1.0, "c")


FIELDS = {"algorithm", "score", "fraction", "share", "low", "high", "lambda", "at", "average", "level", "steps"}
FIELDS |= {"mean", "value", "x", "y"}


def fields(spec) -> set[str]:
    if isinstance(spec, list):
        return set().union(*map(fields, spec))
    if not isinstance(spec, dict):
        return set()
    found = {spec["field"]} if "field" in spec else set()
    return found.union(*(fields(value) for key, value in spec.items() if key not in ("data", "datasets", "values")))


@pytest.mark.parametrize("place", range(6))
def test_whatever_is_in_a_name_it_is_drawn_as_it_is(place):
    chart = list(hostile_charts())[place]
    spec = chart.to_dict()
    assert "layer" in spec
    assert fields(spec) <= FIELDS
    json.dumps(spec, allow_nan=False)
    root = ElementTree.fromstring(vl_convert.vegalite_to_svg(json.dumps(spec)))
    assert not [element for element in root.iter() if "script" in element.tag]
    drawn = set(root.itertext())
    assert set(HOSTILE[1:]) <= drawn
    assert any(text.startswith("<script>alert(") for text in drawn)


def test_the_chart_of_theory_says_that_it_is_cut_off() -> None:
    small = [
        Contraction("a", trace, 0.5, norm, norm)
        for trace, norm in (("retrace", 0.9), ("tree_backup", 0.9), ("q_lambda", 1.4))
    ]
    assert "drawn at" not in words(_theory_panel(small))
    assert "Larger values are drawn at 3." in words(
        _theory_panel([*small, Contraction("a", "q_lambda", 1.0, 11.8, 5.0)])
    )
