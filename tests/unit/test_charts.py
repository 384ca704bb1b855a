"""The charts hold the scores they claim to hold, and the files are pictures."""

import importlib
import struct
import sys
import xml.etree.ElementTree as ElementTree
import zlib

import numpy as np
import pytest

from offtrace import scores
from offtrace.report import charts, comparisons, figures
from offtrace.traces import TRACES

DISPLAYED = {"tree_backup": "TB(λ)", "retrace": "Retrace(λ)", "dqn": "DQN", "q_star": "Q*(λ)"}


def layer_rows(chart, layer: int) -> list[dict]:
    """The data of one layer as the viewer gets it, wherever Altair has put it in the specification."""
    spec = chart.to_dict()
    data = spec["layer"][layer]["data"]
    return data["values"] if "values" in data else spec["datasets"][data["name"]]


def figure_1():
    return comparisons.score_distribution(scores.published_comparison(), 1.0)


def figure_2():
    return comparisons.average_by_lambda(scores.published_comparison())


def rows_of(rows: list[dict], algorithm: str) -> list[dict]:
    return [row for row in rows if row["algorithm"] == DISPLAYED[algorithm]]


# --- what is in the charts ----------------------------------------------------------------------------------


def test_figure_1_draws_the_distribution_of_table_3():
    table = scores.published_table_3()
    z = scores.inter_algorithm_scores(table.scores)
    rows = layer_rows(figure_1(), 0)
    assert {row["algorithm"] for row in rows} == set(DISPLAYED.values())
    for a, algorithm in enumerate(table.algorithms):
        drawn = rows_of(rows, algorithm)
        x = [row["score"] for row in drawn]
        assert x == sorted({0.0, 1.0, *z[:, a].tolist()})
        assert [row["fraction"] for row in drawn] == [sum(z[:, a] >= threshold) / 60 for threshold in x]


def test_figure_1_steps_down_after_a_score_not_before():
    line = figure_1().to_dict()["layer"][0]
    assert line["mark"]["interpolate"] == "step-before"
    assert line["encoding"]["x"]["scale"]["domain"] == [0, 1]
    assert line["encoding"]["y"]["scale"]["domain"] == [0, 1]


def test_figure_2_draws_table_2():
    table = scores.published_table_2()
    chart = figure_2()
    for layer in (0, 1):  # the lines, then the points
        rows = layer_rows(chart, layer)
        assert len(rows) == table.averages.size
        for a, algorithm in enumerate(table.algorithms):
            drawn = rows_of(rows, algorithm)
            assert [row["lambda"] for row in drawn] == table.lambdas.tolist()
            assert [row["average"] for row in drawn] == table.averages[:, a].tolist()


def test_titles_say_what_it_is_and_from_what_data():
    first, second = figure_1().to_dict()["title"], figure_2().to_dict()["title"]
    assert "The paper's 60 Atari games" in first["text"]
    assert "Table 3" in " ".join(first["subtitle"])
    assert "Compare within one λ only" in " ".join(second["subtitle"])
    assert "Table 2" in " ".join(second["subtitle"])


@pytest.mark.parametrize("figure", [figure_1, figure_2])
def test_the_same_algorithm_has_the_same_colour_in_lines_and_labels(figure):
    layers = figure().to_dict()["layer"]
    scales = [layer["encoding"]["color"]["scale"] for layer in layers]
    palettes = [dict(zip(scale["domain"], scale["range"], strict=True)) for scale in scales]
    assert all(palette == palettes[0] for palette in palettes)
    assert palettes[0] == {DISPLAYED[name]: charts.COLOURS[name] for name in DISPLAYED}


def test_two_algorithms_never_share_a_colour():
    names = ["retrace", "q_lambda", "q_star", "one_step", "dqn", "mine", *(name for name in TRACES if "_is" in name)]
    colours = charts.colour(names).to_dict()["scale"]["range"]
    assert len(set(colours)) == len(names)
    assert colours[0] == charts.COLOURS["retrace"]


def test_every_trace_has_a_name_for_people_and_others_keep_theirs():
    shown = [charts.named(name) for name in TRACES]
    assert len(set(shown)) == len(TRACES)
    assert not any("_" in name for name in shown)
    assert charts.named('a.b["c"]') == 'a.b["c"]'


def test_up_to_eight_algorithms_have_eight_colours():
    names = ["retrace", "dqn", "a", "b", "c", "d", "e", "f"]
    chart = figures.score_distribution_chart(np.eye(8), algorithms=names, title="", subtitle="")
    scale = chart.to_dict()["layer"][0]["encoding"]["color"]["scale"]
    assert scale["domain"] == ["Retrace(λ)", "DQN", *names[2:]]
    assert len(set(scale["range"])) == 8


@pytest.mark.parametrize("last", [[1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.01], [0.5, 0.52, 0.9, 0.91]])
def test_end_labels_never_overlap_nor_leave_the_chart(last):
    chart = figures.average_by_lambda_chart([last], lambdas=[1.0], algorithms=list(DISPLAYED), title="", subtitle="")
    heights = [row["y"] for row in layer_rows(chart, 2)]
    assert np.diff(np.sort(heights)).min() >= charts.LABEL_GAP - 1e-12  # rounding of three additions
    assert min(heights) >= 0.0
    assert max(heights) <= 1.0
    # labels stand in the order of their lines
    assert all(heights[i] < heights[j] for i in range(4) for j in range(4) if last[i] < last[j])


def test_labels_that_have_room_stand_at_the_end_of_their_line():
    rows = layer_rows(figure_1(), 1)
    assert {row["algorithm"]: row["y"] for row in rows} == {
        "Retrace(λ)": 31 / 60,
        "TB(λ)": 16 / 60,
        "DQN": 12 / 60,
        "Q*(λ)": 2 / 60,
    }


def test_labels_at_one_height_stand_in_the_order_of_merit():
    """DQN and Q* are never the best, so that both lines end at 0; DQN is the better of the two."""
    z = [[0.3, 0.5, 1.0], [0.0, 0.2, 1.0]]
    chart = figures.score_distribution_chart(z, algorithms=["q_star", "dqn", "retrace"], title="", subtitle="")
    heights = {row["algorithm"]: row["y"] for row in layer_rows(chart, 1)}
    assert 0 == heights["Q*(λ)"] < heights["DQN"] < heights["Retrace(λ)"] == 1


def test_intervals_are_bars_side_by_side():
    averages, low, high = [[0.4, 0.5], [0.6, 0.7]], [[0.3, 0.4], [0.5, 0.6]], [[0.5, 0.6], [0.7, 0.8]]
    chart = figures.average_by_lambda_chart(
        averages, lambdas=[0.0, 1.0], algorithms=["retrace", "dqn"], title="", subtitle="", low=low, high=high
    )
    rows = layer_rows(chart, 2)
    assert chart.to_dict()["layer"][2]["mark"]["type"] == "rule"
    found = {(row["algorithm"], row["lambda"]): (row["low"], row["average"], row["high"]) for row in rows}
    assert found == {
        ("Retrace(λ)", 0.0): (0.3, 0.4, 0.5),
        ("DQN", 0.0): (0.4, 0.5, 0.6),
        ("Retrace(λ)", 1.0): (0.5, 0.6, 0.7),
        ("DQN", 1.0): (0.6, 0.7, 0.8),
    }
    assert len({row["at"] for row in rows}) == 4
    assert all(abs(row["at"] - row["lambda"]) < 0.01 for row in rows)


def test_intervals_of_another_shape_are_refused():
    with pytest.raises(
        ValueError, match=r"`low` and `high` must have the shape of `averages`, \(1, 2\); got \(1, 1\)"
    ):
        figures.average_by_lambda_chart(
            [[0.1, 0.2]], lambdas=[1.0], algorithms=["a", "b"], title="", subtitle="", low=[[0.1]], high=[[0.2]]
        )


def test_lambdas_that_are_close_have_no_ticks_that_overlap():
    axis = charts.lambda_axis([0.0, 0.5, 0.98, 0.99, 1.0]).to_dict()["axis"]
    assert axis["values"] == [0.0, 0.5, 1.0]


def test_lambdas_are_written_as_they_are():
    """With fewer digits 0.25 would be 0.3."""
    assert charts.lambda_axis([0.0, 0.25, 1.0]).to_dict()["axis"]["format"] == ".6~g"


def test_many_names_are_smaller_and_do_not_overlap():
    names = [f"algorithm {i}" for i in range(40)]
    chart = figures.score_distribution_chart(np.eye(40), algorithms=names, title="", subtitle="")
    heights = sorted(row["y"] for row in layer_rows(chart, 1))
    assert np.diff(heights).min() * charts.HEIGHT >= chart.to_dict()["layer"][1]["mark"]["fontSize"]
    assert heights[0] >= -1e-9
    assert heights[-1] <= 1 + 1e-9


def test_long_titles_go_on_in_a_second_line_and_no_further():
    chart = figures.score_distribution_chart(
        [[0.0, 1.0]], algorithms=["a", "b"], title="word " * 60, subtitle=["x" * 400, "short"]
    )
    title = chart.to_dict()["title"]
    assert [len(line) <= charts.TITLE_LENGTH for line in title["text"]] == [True, True]
    assert title["text"][1].endswith("…")
    assert len(title["subtitle"]) == 2
    assert len(title["subtitle"][0]) <= charts.LONGEST_WORD


# --- the files ----------------------------------------------------------------------------------------------


def png_chunks(data: bytes) -> dict[bytes, bytes]:
    """The chunks of a PNG by kind (equal kinds joined), their checksums verified."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks: dict[bytes, bytes] = {}
    place = 8
    while place < len(data):
        length, kind = struct.unpack(">I4s", data[place : place + 8])
        body = data[place + 8 : place + 8 + length]
        assert zlib.crc32(kind + body) == struct.unpack(">I", data[place + 8 + length : place + 12 + length])[0]
        chunks[kind] = chunks.get(kind, b"") + body
        place += length + 12
    return chunks


def test_save_writes_three_real_pictures(tmp_path):
    paths = charts.save(figure_1(), tmp_path / "new folder" / "score_0.5")
    assert [path.name for path in paths] == ["score_0.5.png", "score_0.5.svg", "score_0.5.pdf"]
    png, svg, pdf = paths

    chunks = png_chunks(png.read_bytes())
    width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
    assert width > 2 * charts.WIDTH  # twice the size of the plot, and the labels
    assert height > 2 * charts.HEIGHT
    assert len(set(zlib.decompress(chunks[b"IDAT"]))) > 10  # something is drawn
    assert b"IEND" in chunks

    root = ElementTree.fromstring(svg.read_text(encoding="utf-8"))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert set(DISPLAYED.values()) <= set(root.itertext())
    colours = {element.get("stroke") for element in root.iter("{http://www.w3.org/2000/svg}path")}
    assert set(charts.COLOURS.values()) <= colours

    assert pdf.read_bytes().startswith(b"%PDF-")


def test_save_refuses_a_stem_with_an_ending(tmp_path):
    with pytest.raises(ValueError, match=r"`stem` must have no file extension; got '.*figure.PNG'. Give '.*figure'"):
        charts.save(figure_1(), tmp_path / "figure.PNG")
    assert not list(tmp_path.iterdir())


# --- what is refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [["retrace"], ["retrace", "retrace"], ["retrace", "dqn", "q_star"]])
def test_refused_algorithms(names):
    with pytest.raises(ValueError, match=r"`algorithms` must name each of the 2 columns of `z` once; got .*. Give 2"):
        figures.score_distribution_chart([[0.0, 1.0]], algorithms=names, title="", subtitle="")


@pytest.mark.parametrize(
    ("averages", "lambdas", "text"),
    [
        ([[0.1, 0.2]], [0.0, 1.0], r"got shapes \(1, 2\) and \(2,\). Transpose"),
        ([0.1, 0.2], [0.0, 1.0], r"got shapes \(2,\) and \(2,\)"),
        (
            [[0.1, 0.2], [0.3, 40.0]],
            [0.0, 1.0],
            r"`averages` must lie in \[0, 1\]; got 40.0 at row 1, column 1",
        ),
        ([[0.1, np.nan]], [0.0], r"got nan at row 0, column 1. Average inter-algorithm scores"),
        ([[0.1, 0.2], [0.3, 0.4]], [1.0, 0.0], r"`lambdas` must increase; got \[1.0, 0.0\]. Sort"),
        ([[0.1, 0.2]], [np.nan], r"`lambdas` must increase; got \[nan\]"),
    ],
)
def test_refused_averages(averages, lambdas, text):
    with pytest.raises(ValueError, match=text):
        figures.average_by_lambda_chart(averages, lambdas=lambdas, algorithms=["a", "b"], title="", subtitle="")


@pytest.mark.parametrize("package", ["altair", "vl_convert"])
def test_a_missing_package_names_the_extra(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "offtrace.report.charts")
    with pytest.raises(ImportError) as refused:
        importlib.import_module("offtrace.report.charts")
    assert str(refused.value) == f"charts need `{package}`: pip install 'offtrace[report]'"
