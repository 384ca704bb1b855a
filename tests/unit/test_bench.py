"""The benchmark harness, with contenders not worth timing: no test depends on how fast anything is."""

import importlib.util
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offtrace import bench
from offtrace.agent.population import TickSummary
from offtrace.bench import measuring, running
from offtrace.cli import bench as verb
from offtrace.cli.streams import Console


def benchmark(**changes: Any) -> bench.Benchmark:
    """Doubling numbers; `min_time=0` makes a repeat one call."""
    arguments: dict[str, Any] = {
        "name": "doubles",
        "question": "Who doubles fastest?",
        "rows": (1, 2, 3),
        "problem": lambda row: np.arange(1.0, 1.0 + row),
        "answer": lambda x: 2 * x,
        "contenders": {"ours": lambda x: lambda: 2 * x, "peer": lambda x: lambda: x + x},
        "ours": ("ours",),
        "min_time": 0.0,
    }
    return bench.Benchmark(**(arguments | changes))


def missing(_: Any) -> Callable[[], object]:
    raise ModuleNotFoundError("No module named 'peerlib'")


def console() -> Console:
    return Console(file=StringIO(), width=80)


def printed(to: Console) -> str:
    assert isinstance(to.file, StringIO)
    return to.file.getvalue()


# -- measuring -----------------------------------------------------------------------------------------------


def test_contenders_take_turns() -> None:
    diary: list[str] = []
    functions = {name: (lambda name=name: diary.append(name)) for name in ("a", "b", "c")}
    bench.measure_together(functions, repeats=7, min_time=0.0)
    warm_up, turns = diary[:6], diary[6:]
    assert warm_up == ["a", "a", "b", "b", "c", "c"]
    assert turns == ["a", "b", "c"] * 7


def test_times_are_per_call_and_a_repeat_lasts_long_enough() -> None:
    """A clock that only moves while the function runs, 3 ms a call: 20 ms take 7 calls or a few more."""
    ticks = {"now": 0.0}

    def function() -> None:
        ticks["now"] += 0.003

    timing = bench.measure_together({"f": function}, repeats=8, min_time=0.02, clock=lambda: ticks["now"])["f"]
    assert timing.calls * 0.003 >= 0.02
    assert timing.calls <= 10
    assert timing.repeats == len(timing.seconds) == 8
    np.testing.assert_allclose([timing.median, timing.low, timing.high], 0.003, rtol=1e-9)


def test_a_compilation_in_the_first_call_is_not_counted() -> None:
    ticks = {"now": 0.0}
    durations = itertools.chain([60.0], itertools.repeat(0.001))

    def function() -> None:
        ticks["now"] += next(durations)

    timing = bench.measure_together({"f": function}, min_time=0.02, clock=lambda: ticks["now"])["f"]
    assert timing.calls >= 20
    assert max(timing.seconds) < 0.0011


def test_median_and_quartiles() -> None:
    durations = iter([9, 9, 4, 2, 7, 1, 5, 3, 6])  # two calls of warm-up, then 1..7 in disorder
    ticks = {"now": 0}

    def function() -> None:
        ticks["now"] += next(durations)

    timing = bench.measure_together({"f": function}, repeats=7, min_time=1, clock=lambda: ticks["now"])["f"]
    assert (timing.median, timing.low, timing.high) == (4, 2.5, 5.5)
    assert timing.seconds == (4, 2, 7, 1, 5, 3, 6)


def test_few_repeats_are_refused() -> None:
    with pytest.raises(ValueError, match="`repeats` must be at least 7"):
        bench.measure(lambda: None, repeats=6)


# -- one row -------------------------------------------------------------------------------------------------


def test_who_is_not_installed_is_noted() -> None:
    contenders = {"ours": lambda x: lambda: 2 * x, "peer": missing}
    row = bench.measure_row(benchmark(contenders=contenders), 2)
    assert list(row.timings) == ["ours"]
    assert row.left_out == {"peer": "not installed: No module named 'peerlib'"}


@pytest.mark.parametrize(
    ("output", "complaint"),
    [
        (np.array([2.0, 4.001]), "off by 0.001, allowed is 0.0004"),
        (np.array([2.0, np.nan]), "off by nan"),
        (np.array([2.0]), r"shape is (1,), not (2,)"),
    ],
)
def test_wrong_answers_are_refused(output: np.ndarray, complaint: str) -> None:
    wrong = {"ours": lambda x: lambda: 2 * x, "peer": lambda x: lambda: output}
    row = bench.measure_row(benchmark(contenders=wrong), 2)
    assert "peer" not in row.timings
    assert complaint in row.left_out["peer"]


def test_a_wrong_answer_of_ours_stops_the_run() -> None:
    wrong = {"ours": lambda x: lambda: 3 * x, "peer": lambda x: lambda: 2 * x}
    with pytest.raises(ArithmeticError, match="wrong answer"):
        bench.measure_row(benchmark(contenders=wrong), 2)


def test_a_missing_part_of_ours_is_no_missing_library() -> None:
    def broken(_: Any) -> Callable[[], object]:
        raise ModuleNotFoundError("No module named 'offtrace.returns.torch'", name="offtrace.returns.torch")

    with pytest.raises(ModuleNotFoundError):
        bench.measure_row(benchmark(contenders={"ours": broken}), 2)


def test_a_failing_peer_is_noted_and_one_may_step_aside() -> None:
    def fails(_: Any) -> Callable[[], object]:
        raise RuntimeError("no compiler\nlong trace")

    def steps_aside(_: Any) -> Callable[[], object]:
        raise bench.LeftOut("too long")

    contenders = {"ours": lambda x: lambda: 2 * x, "a": fails, "b": steps_aside}
    row = bench.measure_row(benchmark(contenders=contenders), 2)
    assert row.left_out == {"a": "RuntimeError: no compiler", "b": "too long"}


def test_slow_contenders_stay_out_of_a_quick_run() -> None:
    assert "peer" in bench.measure_row(benchmark(slow=("peer",)), 2).timings
    row = bench.measure_row(benchmark(slow=("peer",)), 2, quick=True)
    assert row.left_out == {"peer": "not in a quick run"}
    assert row.timings["ours"].repeats == bench.MIN_REPEATS


def test_ratios_floors_and_columns_follow_from_the_times(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"ours": 2.0, "peer": 8.0, "floor": 1.0, "other floor": 1.5}

    def fake(functions: dict[str, Callable], **_: Any) -> dict[str, bench.Timing]:
        return {name: bench.Timing(times[name], 0, 0, 7, 1, (times[name],) * 7) for name in functions}

    monkeypatch.setattr(measuring, "measure_together", fake)
    floors = {"floor": lambda x: lambda: None, "other floor": lambda x: lambda: None}
    row = bench.measure_row(benchmark(floors=floors, columns={"numbers/s": lambda row, s: row / s}), 4)
    assert row.ratios == {"ours": {"ours": 1.0, "peer": 4.0}}
    assert row.columns == {
        "of floor": {"ours": 0.5, "peer": 0.125},
        "numbers/s": {"ours": 2.0, "peer": 0.5},
    }
    assert set(row.timings) == set(times)


def test_a_crowded_machine_is_noted() -> None:
    asked = benchmark()
    quiet = replace(bench.measure_row(asked, 1), others=0.05)
    rows = (quiet, replace(quiet, row="2", others=0.8), replace(quiet, row="3", others=None))
    (note,) = verb.notes(bench.Result(asked, False, "", {}, rows, True))
    assert note == "Other processes were busy: measure again when they are idle, at 2"


def test_names_in_ours_and_slow_must_be_contenders() -> None:
    with pytest.raises(ValueError, match=r"`ours` and `slow` must name contenders.*'nobody'"):
        benchmark(slow=("nobody",))


# -- a run ---------------------------------------------------------------------------------------------------


def test_a_run_leaves_a_table_and_every_number(tmp_path: Path) -> None:
    asked = benchmark(contenders={"ours": lambda x: lambda: 2 * x, "[peer]": missing})
    to = console()
    result = verb.run_and_print(asked, False, tmp_path, to)
    stored = json.loads((tmp_path / "doubles.json").read_text(encoding="utf-8"))
    assert stored == json.loads(json.dumps(result.as_dict()))
    assert (stored["name"], stored["ours"], stored["complete"], stored["quick"]) == (
        "doubles",
        ["ours"],
        True,
        False,
    )
    assert stored["machine"]["cores"] >= 1
    assert stored["machine"]["libraries"]["numpy"] == np.__version__
    assert [row["row"] for row in stored["rows"]] == ["1", "2", "3"]
    timing = stored["rows"][0]["timings"]["ours"]
    assert len(timing["seconds"]) == timing["repeats"] == 9
    assert timing["low"] <= timing["median"] <= timing["high"]
    assert "Who doubles fastest?" in printed(to)
    assert "Left out: [peer] (not installed: No module named 'peerlib')" in printed(to)
    assert list(tmp_path.glob("*.tmp")) == []


def test_a_quick_run_does_not_replace_a_full_one(tmp_path: Path) -> None:
    asked = benchmark(quick_rows=2)
    assert len([*bench.run(asked, output=tmp_path)]) == 3
    assert len([*bench.run(asked, quick=True, output=tmp_path)]) == 2
    rows = {path.name: len(json.loads(path.read_text())["rows"]) for path in tmp_path.iterdir()}
    assert rows == {"doubles.json": 3, "doubles-quick.json": 2}


def test_an_interrupted_run_keeps_its_rows(tmp_path: Path) -> None:
    def interrupted_at_three(x: np.ndarray) -> Callable[[], object]:
        if len(x) == 3:
            raise KeyboardInterrupt
        return lambda: 2 * x

    asked = benchmark(contenders={"ours": lambda x: lambda: 2 * x, "peer": interrupted_at_three})
    to = console()
    with pytest.raises(KeyboardInterrupt):
        verb.run_and_print(asked, False, tmp_path, to)
    stored = json.loads((tmp_path / "doubles.json").read_text(encoding="utf-8"))
    assert [row["row"] for row in stored["rows"]] == ["1", "2"]
    assert stored["complete"] is False
    assert "(interrupted)" in printed(to)


def test_the_progress_of_a_run_ends_at_its_total() -> None:
    """Also where a contender is left out, whose repeats are skipped."""
    asked = benchmark(contenders={"ours": lambda x: lambda: 2 * x, "peer": missing})
    seen: list[tuple[int, int, str]] = []
    assert len([*bench.run(asked, progress=lambda *told: seen.append(told))]) == 3
    total = 3 * 2 * asked.repeats
    starts = [(done, label) for done, _, label in seen if done % (2 * asked.repeats) == 0]
    assert starts == [(0, "doubles 1"), (total // 3, "doubles 2"), (2 * total // 3, "doubles 3")]
    assert {told[1] for told in seen} == {total}


def test_without_an_output_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert [result.complete for result in bench.run(benchmark())] == [False, False, True]
    assert list(tmp_path.iterdir()) == []


def test_the_table_fits_80_columns_without_cutting_words() -> None:
    ours = ("offtrace", "offtrace, torch", "offtrace, jax.jit")
    contenders = dict.fromkeys((*ours, "offtrace, checked"), lambda x: lambda: 2 * x)
    floors = {"read, all threads": lambda x: lambda: None}
    asked = benchmark(contenders=contenders, ours=ours, floors=floors)
    row = bench.measure_row(asked, 1)
    to = console()
    to.print(verb.table(bench.Result(asked, False, "", {}, (row,), True)))
    assert "…" not in printed(to)
    assert "  offtrace, checked " in printed(to)


# -- the benchmarks there are --------------------------------------------------------------------------------


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown benchmark `speed`; valid options: .*return_operator"):
        bench.load("speed")


def test_file_and_name_must_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one.py").write_text("import types\nBENCHMARK = types.SimpleNamespace(name='two')\n")
    monkeypatch.setattr(running, "folder", lambda: tmp_path)
    with pytest.raises(ValueError, match="defines the benchmark `two`"):
        bench.load("one")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # rlax asks JAX for names it has deprecated
@pytest.mark.parametrize("name", sorted({*bench.names()} - {"population", "training"}))  # those take half a minute
def test_everybody_is_right_at_the_smallest_size(name: str) -> None:
    """Whoever is missing from the first row has a reason of its own, or is not installed; nobody failed."""
    asked = bench.load(name)
    _, left_out = measuring._entrants(asked, asked.problem(asked.rows[0]), quick=True)
    failed = re.compile(r"[A-Z]\w*(Error|Exception|Warning|Exit): ")
    assert {name: reason for name, reason in left_out.items() if failed.match(reason)} == {}


@pytest.mark.parametrize("contender", ["offtrace, Retrace", "offtrace, Gymnasium"])
def test_training_makes_the_same_steps_in_every_call(contender: str) -> None:
    asked = bench.load("training")
    run = asked.contenders[contender](asked.rows[0])
    np.testing.assert_array_equal(run(), asked.answer(asked.rows[0]))
    np.testing.assert_array_equal(run(), asked.answer(asked.rows[0]))


def test_a_population_makes_a_tick_per_call(monkeypatch: pytest.MonkeyPatch) -> None:
    population = sys.modules[bench.load("population").problem.__module__]
    assert population.megabytes(1, "") > 1
    monkeypatch.setattr(population, "ENV", "pocket/catch")
    monkeypatch.setattr(population, "NUM_ACTORS", 16)
    run = population.population(1, precision="float32")
    assert isinstance(run(), TickSummary)
    assert isinstance(run(), TickSummary)


def test_a_peer_of_training_that_is_absent_says_how_to_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = bench.load("training")
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    with pytest.raises(bench.LeftOut, match="pip install stable-baselines3"):
        asked.contenders["Stable-Baselines3"](asked.rows[0])
    monkeypatch.delenv("OFFTRACE_CLEANRL", raising=False)
    with pytest.raises(bench.LeftOut, match=r"git clone .*cleanrl, and set OFFTRACE_CLEANRL"):
        asked.contenders["CleanRL, JAX"](asked.rows[0])


def test_a_script_is_held_between_steps_and_what_it_defines_is_replaced(tmp_path: Path) -> None:
    """As CleanRL's is: its main part runs in a thread, for as many steps as it is told."""
    training = sys.modules[bench.load("training").problem.__module__]
    script = tmp_path / "script.py"
    script.write_text(
        'made, by = 0, 1\nif __name__ == "__main__":\n    while made < 12:\n        step()\n        made += by\n'
    )
    loop = training.PausedLoop()
    module = training.module_of(script, {"by": 2, "step": loop.step})
    loop.start(lambda: module.__loader__.exec_module(module))
    loop.advance(3)
    assert module.made == 6
    loop.advance(2)
    assert module.made == 10
    with pytest.raises(RuntimeError, match="ended too early"):
        loop.advance(2)


def test_importing_it_loads_nothing_heavy() -> None:
    heavy = [name for name in ("jax", "torch", "numba", "rlax") if importlib.util.find_spec(name)]
    code = f"import sys, offtrace.bench; print([name for name in {heavy} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
