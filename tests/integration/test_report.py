"""`offtrace report`: from files of results to a folder, whatever state the results are in."""

import csv
import hashlib
import io
import json
import os
import random
import re
import sqlite3
import subprocess
import sys
import textwrap
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from builders import sweep_results
from rich.console import Console

from offtrace.agent.spec import TrainSpec, resolved, to_json
from offtrace.agent.telemetry import TickRecord
from offtrace.cli import main
from offtrace.cli.report import print_troubles
from offtrace.experiments import engine
from offtrace.experiments.encoding import run_row
from offtrace.experiments.results import Study, studies
from offtrace.experiments.spec import Sweep, runs_of
from offtrace.experiments.store import Store, read
from offtrace.experiments.stored_runs import seal
from offtrace.report import folder as report_folder
from offtrace.report.appendix import trouble_sections
from offtrace.report.page import Cell, Grid, Section
from offtrace.report.sections import describe
from offtrace.report.tables import runs_csv
from offtrace.scores import Comparison, Key, claims

FEW = {"lambdas": (0.5, 1.0), "seeds": (0, 1, 2)}
NO_FIGURES = ("--formats",)
"""None of the formats: for tests of what the page says."""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sweep_results.store(tmp_path_factory.mktemp("results") / "results.sqlite", sweep_results.specs(**FEW))


def called(*arguments: object) -> int:
    """The exit code."""
    try:
        main(["report", *map(str, arguments)])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))


def in_words(page: Path) -> str:
    """What a reader sees, without charts."""
    text = re.sub(r"<(script|style).*?</\1>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", text).split())


def test_the_folder(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "new" / "report"
    assert called(results, "--output", output) == 0
    told = capsys.readouterr().out
    assert "TB(λ) is above DQN at the end" in told
    assert "42 of 42 runs are done." in told
    assert f"Open {output / 'index.html'}" in told.replace("\n", "")
    assert max(map(len, told.split("Open")[0].splitlines())) <= 80
    figures = {path.stem for path in (output / "figures").iterdir()}
    assert figures == {path.stem for path in (output / "figures").glob("*.pdf")}
    wanted = ("distribution-early", "distribution-final", "by-lambda", "sensitivity", "profile", "curve-alpha")
    assert {f"made_{name}" for name in wanted} <= figures
    assert {f"made_telemetry-{name}" for name in ("c", "cut", "effective-length", "off-policy")} <= figures
    assert {"published_distribution-final", "published_by-lambda", "contraction-against-variance"} <= figures
    for path in (output / "figures").iterdir():
        data = path.read_bytes()
        if path.suffix == ".svg":
            assert ElementTree.fromstring(data).tag.endswith("svg")
        else:
            assert data.startswith(b"\x89PNG\r\n" if path.suffix == ".png" else b"%PDF-"), path.name
    for path in (output / "tables").glob("*.csv"):
        rows = list(csv.reader(io.StringIO(path.read_text(encoding="utf-8"))))
        assert len(rows) > 1, path.name
        assert {len(row) for row in rows} == {len(rows[0])}, path.name
    for path in (output / "tables").glob("*.tex"):
        plain = re.sub(r"\\[{}]", "", path.read_text(encoding="utf-8"))
        assert plain.count("{") == plain.count("}") > 0, path.name
        assert plain.count(r"\begin") == plain.count(r"\end") == 1, path.name
    assert len(rows_of(output / "tables" / "made_runs.csv")) == 42
    assert not [name for name in files(output) if Path(name).name.startswith(".")]


def test_the_page_says_what_was_run_and_how_it_was_made(results: Path, tmp_path: Path) -> None:
    page = report_folder.write(tmp_path, studies(read([results])), command="offtrace report <it>", formats=())
    text = in_words(page)
    games = "made: 42 runs on 2 games (made/alpha and made/beta)"
    assert f"{games}, with Retrace(λ), TB(λ), Q(λ) and DQN at λ = 0.5, 1, seeds 0–2." in text
    assert "Traces: " not in text  # there are no runs at λ = 0
    assert "Safety: with networks, Q(λ) goes from" in text
    assert "still running" not in text
    assert "failed" not in text
    order = [
        "Verdicts",
        "The paper&#x27;s claims",
        "Score distributions",
        "Scores by λ",
        "Aggregate statistics",
        "Game by game",
    ]
    order += ["Learning curves", "Traces during training", "The paper&#x27;s 60 Atari games", "Notes", "Provenance"]
    html = page.read_text(encoding="utf-8")
    places = [re.search(rf"<h[23]>{re.escape(title)}", html) for title in order]
    assert all(places)
    assert [place.start() for place in places if place] == sorted(place.start() for place in places if place)
    for words in (
        "4e1c9ab",
        "a desk, 2 cores",
        "offtrace sweep made-up",
        "results.sqlite",
        "offtrace report &lt;it&gt;",
    ):
        assert words in text
    assert "a claim gets a verdict in at most 5 % of cases" in text
    assert str(results.parent) not in html  # a page that is shared says nothing of folders
    assert "://" not in re.sub(r"<script.*?</script>", "", html, flags=re.DOTALL)


def test_the_published_tables_go_the_same_way(results: Path, tmp_path: Path) -> None:
    """What is said of them is the same, whatever else is on the page; and a page has them even without any run."""
    with_runs = report_folder.write(tmp_path / "a", studies(read([results])), formats=())
    alone = report_folder.write(tmp_path / "b", [], formats=())
    told = [json.loads((page.parent / "data" / "claims.json").read_text())[-1] for page in (with_runs, alone)]
    assert told[0] == told[1]
    assert told[0]["study"] == "The paper's 60 Atari games"
    verdicts = {claim["claim"]: claim["verdict"] for claim in told[0]["claims"]}
    assert verdicts["Retrace(λ) is above DQN at the end"] == "holds"
    tables = [(page.parent / "tables" / "published_games-lambda-1.csv").read_bytes() for page in (with_runs, alone)]
    assert tables[0] == tables[1]
    assert "The published results of Munos et al. (2016), scored again." in in_words(alone)
    assert "No intervals: one number is printed for each game" in in_words(alone)


def test_json(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert called(results, "--output", tmp_path, "--json", "--formats", "svg") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["page"] == str(tmp_path / "index.html")
    made, published = told["studies"]
    assert made["study"] == "made"
    assert made["num_by_status"] == {"done": 42}
    assert published["study"] == "The paper's 60 Atari games"
    assert [each["score"] for each in made["claims"]] == ["final"] * 9 + ["evaluation"] * 7
    assert len(published["claims"]) == 9
    claim = next(each for each in made["claims"] if each["claim"] == "Retrace(λ) is above DQN at the end")
    assert claim["verdict"] == "holds"
    assert 0 < claim["p_value"] <= 0.05
    assert 0 < claim["low"] <= claim["difference"] <= claim["high"] <= 1
    assert (claim["num_games"], claim["num_runs"]) == (2, 24)
    assert {Path(name).suffix for name in files(tmp_path / "figures")} == {".svg"}


def test_your_own_comparison(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other algorithms and settings than the paper's: best first, each against the best, and nothing of the paper."""
    plain = sweep_results.specs(("made/alpha", "made/beta"), ("retrace", "rbis"), (0.5, 1.0), range(3))
    sizes = (0.1, 0.01, 0.001, 0.0001)
    wanted = [{**spec, "step_size": size} for spec in plain for size in sizes]
    path = sweep_results.store(tmp_path / "results.sqlite", wanted)
    monkeypatch.chdir(tmp_path)  # so that no long path is printed
    assert called(path, *NO_FIGURES) == 0
    told = capsys.readouterr().out
    assert "of the paper" not in told
    assert "Atari" not in told
    lines = told.splitlines()
    assert max(map(len, lines)) <= 80
    assert "The best 15 of 16;" in told
    first = next(i for i, line in enumerate(lines) if line.startswith("made, best first: training score"))
    assert re.match(r"Retrace\(1\), step_size [\d.]+ +[\d.]+ +best", lines[first + 3])
    text = in_words(tmp_path / "report" / "index.html")
    assert "Which algorithm is best on made/alpha and made/beta?" in text
    assert "The data cannot tell it from Retrace(" in text
    assert "<h2>Verdicts" not in (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert "Munos" not in text
    (study,) = json.loads((tmp_path / "report" / "data" / "rankings.json").read_text())
    for found in study["rankings"]:
        averages = [entry["average"] for entry in found["entries"]]
        assert averages == sorted(averages, reverse=True)
        assert len(found["entries"]) == 16
        assert len(found["differences"]) == 16 * 15 // 2
        for each in found["differences"]:
            assert (each["low"] <= 0 <= each["high"]) == (each["verdict"] == "cannot tell")
    rows = rows_of(tmp_path / "report" / "tables" / "made_ranking.csv")
    assert [row["verdict"] for row in rows[:1]] == ["best"]
    assert len(rows_of(tmp_path / "report" / "tables" / "made_runs.csv")) == len(wanted)


def test_claims_that_can_be_tested_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the paper's nine, those about algorithms and λ that were run."""
    wanted = sweep_results.specs(("made/alpha",), ("retrace", "rbis", "dqn"), (1.0,), range(3))
    path = sweep_results.store(tmp_path / "results.sqlite", wanted)
    assert called(path, "--output", tmp_path / "report", "--json", *NO_FIGURES) == 0
    (study,) = json.loads(capsys.readouterr().out)["studies"]
    assert {each["claim"] for each in study["claims"]} == {
        "Retrace(λ) is above DQN early",
        "Retrace(λ) is above DQN at the end",
        "Retrace(λ) does not do poorly at any λ > 0",
    }
    assert [found["score"] for found in study["rankings"]] == ["final", "evaluation"]


def test_two_sweeps_are_one_report(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A game and seeds from another file; a run that is in both counts once."""
    more = sweep_results.specs(("made/alpha", "made/delta"), lambdas=(0.5, 1.0), seeds=(2, 3))
    other = sweep_results.store(
        tmp_path / "more.sqlite", more, made={**sweep_results.MADE, "machine": "another desk"}
    )
    assert called(results, other, "--output", tmp_path / "report", *NO_FIGURES) == 0
    assert capsys.readouterr().err == ""
    text = in_words(tmp_path / "report" / "index.html")
    assert "(made/alpha, made/beta and made/delta)" in text
    assert "made: 63 runs on 3 games" in text
    assert "seeds 0–3" in text
    assert "another desk" in text
    assert "more.sqlite" in text
    rows = rows_of(tmp_path / "report" / "tables" / "made_runs.csv")
    assert sorted(row["seed"] for row in rows if row["algorithm"] == "dqn" and row["game"] == "alpha") == list("0123")


def test_sweeps_that_contradict_each_other_are_told_of(results: Path, tmp_path: Path, capsys: Any) -> None:
    spec = sweep_results.specs(**FEW)[0]
    with Store(tmp_path / "other.sqlite") as store:
        (run_id,) = store.register([spec], sweep_results.MADE)
        store.claim(run_id, "me")
        store.write(run_id, sweep_results.reports(spec, ticks=7))
        store.finish(run_id, [1.0])
    assert called(results, tmp_path / "other.sqlite", "--output", tmp_path / "report", *NO_FIGURES) == 0
    assert "has different results" in capsys.readouterr().err


SWEEP = """
import sys
sys.path.insert(0, sys.argv[2])
from builders import sweep_results
from pathlib import Path
from offtrace.experiments.store import Store
wanted = sweep_results.specs(("made/alpha", "made/beta"), lambdas=(0.5, 1.0), seeds=(0, 1))
with Store(Path(sys.argv[1])) as store:
    for i, (run_id, spec) in enumerate(zip(store.register(wanted, sweep_results.MADE), wanted)):
        store.claim(run_id, "the sweep")
        reports = sweep_results.reports(spec)
        for written in ([reports] if i < 15 else [[report] for report in reports]):
            store.write(run_id, written)
            report = written[-1]
            if i == 15 and report.tick == 10:
                print("under way", flush=True)
            if i > 15 or (i == 15 and report.tick >= 10):
                if sys.stdin.readline() != "go on\\n":
                    sys.exit(0)
        store.finish(run_id, [1.0])
"""


def test_a_report_while_the_sweep_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A process is in the middle of a run, with 15 of 28 done; then it writes on, and the next report has more."""
    path = tmp_path / "results.sqlite"
    command = [sys.executable, "-c", textwrap.dedent(SWEEP), str(path), str(Path(sweep_results.__file__).parents[1])]
    sweep = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert sweep.stdin
        assert sweep.stdout
        assert sweep.stdout.readline() == "under way\n"
        assert called(path, "--output", tmp_path / "report", *NO_FIGURES) == 0
        assert "15 of 28 runs are done, 13 not done yet." in capsys.readouterr().out
        text = in_words(tmp_path / "report" / "index.html")
        state = "15 of 28 runs are complete, and 1 is started but not finished."
        assert f"The sweep is still running or was stopped: {state}" in text
        assert "15 done, 1 in progress, 12 not run yet" in text
        sweep.stdin.write("go on\n" * 50)
        sweep.stdin.flush()
        end = time.monotonic() + 30
        while sum(run.status == "done" for run in read([path])) < 17:
            assert time.monotonic() < end
            time.sleep(0.1)
        assert called(path, "--output", tmp_path / "report", *NO_FIGURES) == 0
        assert "15 of 28 runs are complete" not in in_words(tmp_path / "report" / "index.html")
    finally:
        sweep.communicate(timeout=30)
    assert sweep.returncode == 0  # it did not notice


def test_only_failed_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = sweep_results.specs(("made/alpha",), lambdas=(1.0,), seeds=(0,))
    failing = {i: f"Traceback:\n  line\nFloatingPointError: Q reached nan in run {i}\n" for i in range(len(wanted))}
    path = sweep_results.store(tmp_path / "results.sqlite", wanted, failing=failing)
    assert called(path, "--output", tmp_path / "report") == 0
    assert "0 of 4 runs are done, 4 failed." in capsys.readouterr().out
    text = in_words(tmp_path / "report" / "index.html")
    assert "4 runs failed. See Failures." in text
    assert "No run is done yet, so there is nothing to compare." in text
    assert "FloatingPointError: Q reached nan in run 0" in text, "the reason, in the words of the first"
    assert "in run 3" not in text
    assert "Traceback" not in text
    assert "The paper&#x27;s 60 Atari games" in text


def test_troubles_are_told_by_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A hundred runs that failed alike are one row, on the page and in the terminal; so is what runs noted."""
    wanted = sweep_results.specs(("made/a",), lambdas=(1.0,), seeds=range(30))
    failing = {i: f"OSError: no room in block {i}" for i in range(100)} | {100: "ValueError: other"}

    def told(spec: Mapping[str, Any]) -> list[TickRecord]:
        event = f"|Q| reached {spec['seed']}.5, beyond any possible return of 10"
        return [report._replace(events=(event,)) for report in sweep_results.reports(spec, ticks=2)]

    path = sweep_results.store(tmp_path / "results.sqlite", wanted, failing=failing, told=told)
    runs = read([path])
    rows = {section.title: section.tables[0].rows for section in trouble_sections(runs)}
    shown = {title: [[cell.text for cell in row[:2]] for row in found] for title, found in rows.items()}
    assert shown == {
        "Failures": [["OSError: no room in block 0", "100"], ["ValueError: other", "1"]],
        "Events": [["|Q| reached 0.5, beyond any possible return of 10", "120"]],
    }
    print_troubles(runs, Console())
    assert capsys.readouterr().out.splitlines() == [
        "failed: made/a retrace λ = 1 seed 0 and 99 other runs: OSError: no room in block 0",
        "failed: made/a dqn λ = 0 seed 10: ValueError: other",
        "noted: made/a retrace λ = 1 seed 0 and 119 other runs: |Q| reached 0.5, beyond any possible return of 10",
    ]


def test_runs_that_were_never_begun(tmp_path: Path) -> None:
    wanted = sweep_results.specs(("made/alpha",), seeds=(0,))
    path = sweep_results.store(tmp_path / "results.sqlite", wanted, unfinished=range(len(wanted)))
    assert called(path, "--output", tmp_path / "report", *NO_FIGURES) == 0
    text = in_words(tmp_path / "report" / "index.html")
    assert "The sweep is not finished: 0 of 7 runs are complete. Run the same command again to continue." in text


@pytest.mark.parametrize(
    "wanted",
    [
        sweep_results.specs(("made/alpha",), traces=("retrace",), seeds=(0,)),
        sweep_results.specs(("made/alpha",), traces=("dqn",), seeds=(0, 1)),
        sweep_results.specs(("made/alpha", "alone"), traces=("retrace", "dqn"), lambdas=(1.0,), seeds=(0,)),
        [*sweep_results.specs(("a/b",), seeds=(0,)), *sweep_results.specs(("a/c",), traces=("retrace",), seeds=(0,))],
    ],
    ids=["one algorithm", "baseline only", "two suites, one seed", "incomplete games"],
)
def test_little_is_enough(tmp_path: Path, wanted: list[dict[str, Any]]) -> None:
    path = sweep_results.store(tmp_path / "results.sqlite", wanted)
    page = report_folder.write(tmp_path / "report", studies(read([path])), formats=())
    assert "There is nothing to compare yet" not in in_words(page)


HOSTILE = (
    "<script>alert(1)</script>",
    "../../evil",
    '"><img src=x onerror=alert(1)>',
    "=1+1",
    "a" * 300,
    "λ 🚀 \u202e",
    "\x1b[31mred\x07 \x00 \ufffe \x85",
)


def test_hostile_names_stay_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = sweep_results.specs(
        [f"made/{name}" for name in HOSTILE], traces=("retrace", "dqn"), lambdas=(1.0,), seeds=(0, 1)
    )
    made = dict.fromkeys(sweep_results.MADE, "<b>bold</b>")
    path = sweep_results.store(tmp_path / "in" / "results.sqlite", wanted, made=made)
    before = files(tmp_path)
    assert called(path, "--output", tmp_path / "report", "--formats", "svg") == 0
    assert all(name.startswith("report/") for name in files(tmp_path) - before)
    html = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert html.count("<script") == 3
    assert "<img" not in re.sub(r"<script>.*?</script>", "", html, flags=re.DOTALL)
    assert "<b>" not in re.sub(r"<script>.*?</script>", "", html, flags=re.DOTALL)
    for name in HOSTILE[:3]:
        assert name.replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;") in html
    charts = re.search(r'id="charts">(.*?)</script>', html, re.DOTALL)
    assert charts
    assert "<" not in charts[1]
    assert len(json.loads(charts[1])) > 10
    tex = (tmp_path / "report" / "tables" / "made_games-lambda-1.tex").read_text(encoding="utf-8")
    assert r"\textless{}script" in tex
    assert "\x1b" not in capsys.readouterr().out
    for picture in (tmp_path / "report" / "figures").glob("*.svg"):
        tags = {element.tag.rpartition("}")[2] for element in ElementTree.parse(picture).iter()}
        assert tags <= {"svg", "g", "path", "text", "tspan", "rect", "line", "defs", "clipPath"}


def forged_specs(seed: int) -> Iterator[dict[str, Any]]:
    """A spec with one value that no sweep has written there, or without one."""
    rng = random.Random(seed)
    plain = to_json(resolved(TrainSpec(env="pocket/catch", num_steps=50_000)))
    odd = [None, True, "", "x", -1, 0.5, 10**30, -(10**30), 1e308, [], [[]], {}, {"a": [1]}, ["x"] * 3]
    deep: Any = 1
    for _ in range(60):
        deep = [deep]
    for name in plain:
        without = {key: value for key, value in plain.items() if key != name}
        yield rng.choice([without, {**plain, name: deep}, {**plain, name: rng.choice(odd)}])
        yield {**plain, name: rng.choice(odd)}
        yield {**plain, name: rng.choice(odd), rng.choice(list(plain)): rng.choice(odd)}
    yield from (
        {},
        {"env": 1},
        {**plain, "extra": deep},
        {**plain, "options": {"time_limit": 10**30}, "env": "mdp/fork"},
    )


def test_forged_specs_are_refused_or_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With checksums that fit: a refusal that names the file and the run, or tables. Now and then, the whole page."""
    path = sweep_results.store(
        tmp_path / "results.sqlite", sweep_results.specs(("made/a",), traces=("retrace",), seeds=(0, 1))
    )
    refused = shown = 0
    for number, forged in enumerate(forged_specs(0)):
        with Store(path) as store, closing(sqlite3.connect(path)) as connection:
            with connection:
                connection.execute("UPDATE runs SET spec = ? WHERE id = 1", (json.dumps(forged),))
                with suppress(ValueError):
                    row = run_row(forged)[:-1]
                    names = "fingerprint, env, trace, lambda, seed"
                    connection.execute(f"UPDATE runs SET ({names}) = (?, ?, ?, ?, ?) WHERE id = 1", row)
            seal(store._database, [1])
        try:
            for study in studies(read([path])):
                assert runs_csv(study)
                assert describe(study)
                assert claims(study.comparison)
            shown += 1
        except ValueError as error:
            refused += f"{path}' is damaged at run 1" in str(error)
        if number % 40 == 1:
            code = called(path, "--output", tmp_path / "report", *NO_FIGURES)
            assert (code, capsys.readouterr().err.count("\n")) in ((0, 0), (2, 1))
    assert refused + shown == number + 1
    assert min(refused, shown) > 10


@pytest.mark.parametrize("text", ["[" * 100_000, "[1]", "7", '"x"', "{", "", '{"env": NaN}', '{"seed": 1e999}'])
def test_what_is_no_spec_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    path = sweep_results.store(
        tmp_path / "results.sqlite", sweep_results.specs(("made/a",), traces=("retrace",), seeds=(0,))
    )
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE runs SET spec = ? WHERE id = 1", (text,))
    with Store(path) as store:
        seal(store._database, [1])
    assert called(path, "--output", tmp_path / "report", *NO_FIGURES) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "is damaged at run 1" in told
    with pytest.raises(ValueError, match="is damaged at run 1"):
        engine.run(runs_of(Sweep(("pocket/catch",), num_seeds=1)), path, jobs=0)


def test_a_report_again_replaces_and_takes_away_only_its_own(tmp_path: Path) -> None:
    wanted = sweep_results.specs(("made/alpha",), traces=("retrace", "dqn"), seeds=(0, 1))
    found = studies(read([sweep_results.store(tmp_path / "results.sqlite", wanted)]))
    extra = Section(
        "Extra", ["words"], charts={"extra": report_folder.charts_of([_first_charts(found)])["made_by-lambda"]}
    )
    report_folder.write(tmp_path, found, extra_sections=[extra], formats=("svg",))
    (tmp_path / "figures" / "mine.svg").write_text("mine")
    before = files(tmp_path)
    assert "figures/extra.svg" in before
    report_folder.write(tmp_path, found, extra_sections=[extra], formats=("svg",))
    assert files(tmp_path) == before
    page = report_folder.write(tmp_path, found[:0], formats=("svg",))
    after = files(tmp_path)
    assert "figures/mine.svg" in after
    assert not [name for name in after if Path(name).name.startswith(("made", "extra"))]
    assert "Extra" not in in_words(page)


def test_a_report_takes_nothing_away_that_it_did_not_write(tmp_path: Path) -> None:
    """Whatever `files.json` says: behind a link, beside the folder, or changed by somebody since."""
    report, docs = tmp_path / "report", tmp_path / "docs"
    docs.mkdir()
    (docs / "thesis.tex").write_text("mine")
    report_folder.write(report, [], formats=())
    (report / "figures").mkdir(exist_ok=True)
    mine = {"figures/mine.svg": "mine", "tables/changed.csv": "changed"}
    for name, text in mine.items():
        (report / name).write_text(text)
    (report / "figures" / "link.svg").symlink_to(docs / "thesis.tex")
    (report / "figures" / "folder.svg").mkdir()
    same = hashlib.sha256(b"mine").hexdigest()
    forged = {"figures/link.svg": same, "figures/../../docs/thesis.tex": same, "../docs/thesis.tex": same}
    forged |= {"tables/changed.csv": same, "figures/folder.svg": same, "figures/\x00": same, "figures/mine.svg": None}
    for record in (forged, sorted(forged), "figures/mine.svg", [[]]):
        (report / "data" / "files.json").write_text(json.dumps(record))
        before = files(tmp_path)
        report_folder.write(report, [], formats=())
        assert files(tmp_path) == before
    (report / "data" / "files.json").write_text(json.dumps({"figures/mine.svg": same}))
    report_folder.write(report, [], formats=())
    assert not (report / "figures" / "mine.svg").exists(), "that was as a report wrote it"
    assert (docs / "thesis.tex").read_text() == "mine"


def test_a_report_does_not_write_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "thesis.tex").write_text("mine")
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "figures").symlink_to("../docs")
    before = files(tmp_path)
    with pytest.raises(ValueError, match=r"symbolic links .*figures'"):
        report_folder.write(tmp_path / "report", [], formats=())
    assert files(tmp_path) == before


def _first_charts(found: list[Any]) -> Section:
    from offtrace.report.sections import study_part

    return study_part(found[0], "made", {"final": claims(found[0].comparison)}).section


def test_a_study_without_stored_runs_and_sections_of_others(tmp_path: Path) -> None:
    """As `offtrace reproduce` has them."""
    names = ("retrace", "tree_backup", "q_lambda", "dqn")
    runs = {Key(game, name, 1.0): (i + 1.0, i + 1.5) for i, name in enumerate(names) for game in "ab"}
    runs = {key._replace(lambda_=0.0) if key.algorithm == "dqn" else key: values for key, values in runs.items()}
    study = Study(Comparison("small <MDPs>", {"final": runs}), ())
    extra = Section(
        "More", ["with `code`"], tables=[Grid("a table", ("x", "y"), [[Cell("1"), Cell("2", number=2.0)]])]
    )
    page = report_folder.write(tmp_path, [study], extra_sections=[extra], formats=("png",))
    text = in_words(page)
    assert "16 runs on 2 games (a and b), with Retrace(λ), TB(λ), Q(λ) and DQN at λ = 1." in text
    assert "small &lt;MDPs&gt;" in text
    assert "<code>code</code>" in page.read_text(encoding="utf-8")
    assert text.index("small &lt;MDPs&gt;") < text.rindex("a table") < text.rindex("Atari games 60 games")
    assert (tmp_path / "figures" / "small-mdps_profile.png").exists()
    twice = Section(
        "Twice", charts={"published_profile": report_folder.charts_of([_first_charts([study])])["made_profile"]}
    )
    with pytest.raises(ValueError, match=r"unique names .*got 'published_profile'"):
        report_folder.write(tmp_path, [], extra_sections=[twice], formats=())


def test_an_interrupted_report_leaves_the_page_before(results: Path, tmp_path: Path) -> None:
    found = studies(read([results]))
    page = report_folder.write(tmp_path, [], formats=())
    before = page.read_bytes()

    def stop(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        report_folder.write(tmp_path, found, formats=("svg",), progress=stop)
    assert page.read_bytes() == before
    assert not list(tmp_path.rglob(".*"))


def test_progress_counts_to_the_end(results: Path, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    report_folder.write(tmp_path, [], formats=("svg",), progress=lambda *now: told.append(now))
    assert told == [(i, told[0][1]) for i in range(told[0][1] + 1)]


def test_wrong_input_is_one_line(tmp_path: Path, results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not a database, but long enough to look like a file of something" * 20)
    with Store(tmp_path / "empty.sqlite"):
        pass
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    for arguments, words in (
        ((), "Name a file"),
        ((tmp_path / "nothing.sqlite",), "must be existing files"),
        ((text,), "is not a results file"),
        ((tmp_path / "empty.sqlite",), "must have at least one run"),
        ((results, "--output", in_the_way), "file"),
        (
            (results, "--formats", "gif", "--output", tmp_path / "r"),
            "`formats` must be among png, svg, pdf; got 'gif'",
        ),
    ):
        assert called(*arguments) == 2, arguments
        error = capsys.readouterr().err
        assert words in error
        assert error.startswith("offtrace: ")
        assert error.count("\n") == 1


@pytest.mark.parametrize("package", ["altair", "vl_convert"])
def test_without_its_extra_the_remedy_is_told(results: Path, tmp_path: Path, package: str) -> None:
    (tmp_path / f"{package}.py").write_text(f"raise ModuleNotFoundError('No module {package}', name='{package}')")
    call = "import sys; from offtrace.cli import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", call, "report", str(results)]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env=environment, cwd=tmp_path, check=False
    )
    assert done.returncode == 2
    assert done.stderr == f"offtrace: `report`: charts need `{package}`: pip install 'offtrace[report]'\n"


@pytest.mark.parametrize("package", ["altair", "vl_convert"])
def test_every_part_of_it_tells_the_remedy(package: str) -> None:
    code = f"""
import importlib, sys
sys.modules["{package}"] = None
for name in ("curves", "page", "sections", "folder"):
    try:
        importlib.import_module(f"offtrace.report.{{name}}")
    except ImportError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"charts need `{package}`: pip install 'offtrace[report]'\n" * 4
