"""Tables as files: what was printed comes out as it was printed, and names stay names."""

import csv
import io
import math
import re
from importlib import resources
from pathlib import Path

import pytest

from offtrace.agent.telemetry import TickRecord
from offtrace.experiments.results import studies
from offtrace.experiments.store import StoredRun
from offtrace.report import tables
from offtrace.scores import Comparison, Interval, Key, claims, published_comparison


def rows(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline="")))


def shipped(name: str) -> list[list[str]]:
    return rows(resources.files("offtrace.scores").joinpath(name).read_text(encoding="utf-8"))


def body(latex: str) -> list[list[str]]:
    """The cells of a tabular, the heading first."""
    lines = [line.removesuffix(r"\\") for line in latex.splitlines() if line.endswith(r"\\")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)&", line)] for line in lines]


def plain(cell: str) -> str:
    return re.sub(r"\\text(?:bf|sc)\{(.*)\}", r"\1", cell)


def mine(cells: dict[tuple[str, str, float], tuple[float, ...]]) -> Comparison:
    return Comparison("mine", {"final": {Key(*key): values for key, values in cells.items()}})


# --- the paper's ---------------------------------------------------------------------------------------------


def test_table_2_is_printed_as_the_paper_prints_it():
    header, *printed = shipped("table2_average_scores_by_lambda.csv")
    table = tables.table_2(published_comparison())
    places = [header.index(name) for name in ("lambda", *table.algorithms)]
    expected = [[row[place] for place in places] for row in printed]
    assert rows(table.csv()) == [["lambda", *table.algorithms], *expected]
    found = body(table.latex())
    assert [[plain(cell) for cell in row] for row in found[1:]] == expected
    assert found[0] == [r"$\lambda$", r"Retrace($\lambda$)", r"TB($\lambda$)", r"Q$^*$($\lambda$)", "DQN"]


def test_table_3_is_printed_as_the_paper_prints_it():
    """Freeway is a tie: the paper's bold one is bold, and counted, so that TB has 16."""
    header, *printed = shipped("table3_final_scores.csv")
    table = tables.table_3(published_comparison(), 1.0)
    names = table.algorithms
    expected = {row[0]: [row[header.index(name)] for name in names] for row in printed}
    heading, *games, last = body(table.latex())
    assert heading == ["", r"Retrace($\lambda$)", r"TB($\lambda$)", r"Q$^*$($\lambda$)", "DQN"]
    assert {plain(row[0]): [plain(cell) for cell in row[1:]] for row in games} == expected
    for row in games:
        bold = next(row_[-1] for row_ in printed if row_[0] == plain(row[0]))
        assert [name for name, cell in zip(names, row[1:], strict=True) if cell.startswith(r"\textbf")] == [bold]
    assert last == ["Times Best", "30", "16", "2", "12"]
    written = rows(table.csv())
    assert written[0] == ["game", *names]
    assert {game: [float(x) for x in row] for game, *row in written[1:]} == {
        game: [float(x) for x in row] for game, row in expected.items()
    }


# --- anybody's ----------------------------------------------------------------------------------------------


def test_ties_are_bold_for_all_and_counted_for_nobody():
    cells = {("tied", "retrace", 1.0): (5.0,), ("tied", "tree_backup", 1.0): (4.0, 6.0), ("tied", "dqn", 0.0): (1.0,)}
    cells |= {("won", "retrace", 1.0): (1.0,), ("won", "tree_backup", 1.0): (2.0,), ("won", "dqn", 0.0): (0.0,)}
    table = tables.table_3(mine(cells), 1.0)
    assert table.best.tolist() == [[True, True, False], [False, True, False]]
    assert table.times_best == (0, 1, 0)


def test_a_table_has_intervals_in_columns_of_their_own():
    cells = {("pong", "retrace", 1.0): (3.0, 5.0), ("pong", "tree_backup", 1.0): (2.0, 4.0)}
    comparison = mine(cells | {("pong", "dqn", 0.0): (0.0, 0.0)})
    expected = comparison.averages("score")
    header, row = rows(tables.table_2(comparison).csv())
    ends = ["retrace_low", "retrace_high", "tree_backup_low", "tree_backup_high", "dqn_low", "dqn_high"]
    assert header == ["lambda", "retrace", "tree_backup", "dqn", *ends]
    found = dict(zip(header, map(float, row), strict=True))
    for a, name in enumerate(expected.algorithms):
        assert found[name] == expected.value[0, a]
        assert (found[f"{name}_low"], found[f"{name}_high"]) == (expected.low[0, a], expected.high[0, a])


def test_lambdas_that_only_one_algorithm_has_are_left_out():
    cells = {("pong", "retrace", 0.5): (1.0,), ("pong", "retrace", 1.0): (1.0,), ("pong", "tree_backup", 1.0): (0.0,)}
    assert tables.table_2(mine(cells)).lambdas == (1.0,)


def test_no_table_of_nothing():
    with pytest.raises(ValueError, match="`comparison` has no averages: no game has runs"):
        tables.table_2(Comparison("no", {}))
    with pytest.raises(ValueError, match=r"2 or more algorithms at λ = 0.5; got none"):
        tables.table_3(published_comparison(), 0.5)


def test_claims_and_statistics_come_out_whole():
    comparison, found = published_comparison(), claims(published_comparison())
    header, *written = rows(tables.claims_csv(found))
    assert len(written) == len(found)
    for row, claim in zip(written, found, strict=True):
        cells = dict(zip(header, row, strict=True))
        assert (cells["claim"], cells["verdict"]) == (claim.text, claim.verdict)
        assert cells["reason"] == (claim.reason or "")
        if claim.difference is None:
            assert cells["difference"] == cells["low"] == cells["high"] == ""
        else:
            assert float(cells["difference"]) == claim.difference.value
    statistics = comparison.statistics(1.0)
    header, *written = rows(tables.statistics_csv(statistics))
    assert [row[0] for row in written] == list(comparison.algorithms)
    by_name = {row[0]: dict(zip(header, row, strict=True)) for row in written}
    assert float(by_name["retrace"]["mean"]) == statistics[0].mean.value
    assert by_name["retrace"]["mean_low"] == ""  # one run of each game has no spread
    assert float(by_name["retrace"]["improvement"]) == statistics[0].improvement.value
    assert by_name["dqn"]["improvement"] == by_name["dqn"]["area"] == ""


def test_an_interval_has_its_ends():
    assert tables._numbers(Interval(0.5, 0.25, 0.75, 4)) == [0.5, 0.25, 0.75]


def test_every_run_has_a_row_and_only_those_that_are_done_have_scores():
    nan = math.nan
    untrained = TickRecord(0, 0, 0, 0, nan, nan, 1.0, 1e-3, *(nan,) * 7, (nan,) * 5)
    told = [
        untrained._replace(tick=i, num_steps=10 * i, num_episodes=1, episode_return=float(i)) for i in range(1, 11)
    ]

    def run(status, seed, returns):
        spec = {"env": "pocket/=catch", "trace": "retrace", "lambda_": 0.9, "seed": seed}
        file = Path("/somewhere/secret/results.sqlite")
        return StoredRun(file, seed, str(seed), spec, status, None, (untrained, *told), returns, 0, {}, None, None)

    [study] = studies([run("done", 0, (1.0, 2.0)), run("failed", 1, ())])
    text = tables.runs_csv(study)
    header, done, failed = rows(text)
    assert dict(zip(header, done, strict=True)) == {
        "game": "'=catch",
        "algorithm": "retrace",
        "lambda": "0.9",
        "seed": "0",
        "status": "done",
        "early": "1.0",
        "final": "10.0",
        "area": "5.5",
        "evaluation": "1.5",
        "file": "results.sqlite",
        "protocol": "",
    }
    assert failed == ["'=catch", "retrace", "0.9", "1", "failed", "", "", "", "", "results.sqlite", ""]
    assert "secret" not in text


# --- names ---------------------------------------------------------------------------------------------------

HOSTILE = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", 'a,"b"', "two\nlines", "\\input{x}", "50% & $5_{#}^~|<>", "λ é 游"]


def hostile() -> Comparison:
    cells = {(game, name, 1.0): (float(-i),) for game in HOSTILE for i, name in enumerate(HOSTILE)}
    return mine(cells)


def test_no_name_is_a_formula_in_a_spreadsheet_and_numbers_stay_numbers():
    for text in (tables.table_3(hostile(), 1.0).csv(), tables.statistics_csv(hostile().statistics(1.0))):
        header, *found = rows(text)
        for cell in [*header, *(row[0] for row in found)]:
            assert not cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))
    header, *found = rows(tables.table_3(hostile(), 1.0).csv())
    assert {row[0].removeprefix("'") for row in found} == set(HOSTILE)
    assert sorted({float(cell) for row in found for cell in row[1:]}) == [float(-i) for i in range(9, -1, -1)]


def test_no_name_means_anything_in_latex():
    """Every special character is escaped, and every row has its cells."""
    text = tables.table_3(hostile(), 1.0).latex()
    found = body(text)
    assert len(found) == len(HOSTILE) + 2
    assert {len(row) for row in found} == {len(HOSTILE) + 1}
    assert r"\input" not in text
    assert r"\textbackslash{}input\{x\}" in text
    assert r"50\% \& \$5\_\{\#\}\textasciicircum{}\textasciitilde{}\textbar{}\textless{}\textgreater{}" in text
    assert text.count("{") == text.count("}")
    assert "two lines" in text
