"""`ot.experiments` on stored results: records, arrays, data frames and rankings; and `--set` on the command line."""

import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import sweep_results

import offtrace as ot
from offtrace.cli import main
from offtrace.cli import sweep as sweep_command
from offtrace.cli.sweep_settings import parsed_axes
from offtrace.experiments import workers

STEP_SIZES = (1e-4, 1e-3)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two environments, two traces and DQN, two step sizes and three seeds; the last run failed."""
    plain = sweep_results.specs(traces=("retrace", "rbis", "dqn"), lambdas=(1.0,))
    wanted = [{**spec, "step_size": size, "hidden_sizes": [64, 64]} for spec in plain for size in STEP_SIZES]
    path = tmp_path_factory.mktemp("results") / "results.sqlite"
    return sweep_results.store(path, wanted, failing={len(wanted) - 1: "OSError: no room"})


@pytest.fixture(scope="module")
def results(file: Path) -> Any:
    return ot.experiments.read(file)


def test_scores_are_an_array_with_named_axes(results: Any, file: Path) -> None:
    """Against the file itself, by SQL."""
    found = results.scores("evaluation")
    assert {name: len(values) for name, values in found.axes.items()} == {
        "env": 2,
        "trace": 3,
        "lambda_": 2,
        "step_size": 2,
        "seed": 3,
    }
    with closing(sqlite3.connect(file)) as opened:
        query = (
            "SELECT env, trace, lambda, json_extract(spec, '$.step_size'), seed, "
            "(SELECT avg(return) FROM evaluations WHERE run = runs.id) FROM runs"
        )
        rows = opened.execute(query).fetchall()
    assert len(rows) == 36
    for env, trace, lambda_, step_size, seed, value in rows:
        place = {"env": env, "trace": trace, "lambda_": lambda_, "step_size": step_size, "seed": seed}
        expected = np.nan if value is None else value  # of the run that failed
        assert found.select(**place).values == pytest.approx(expected, nan_ok=True)
    assert np.isfinite(found.values).sum() == 35
    assert np.isnan(found.select(trace="dqn", lambda_=1.0).values).all()
    long = found.columns()
    assert {len(column) for column in long.values()} == {35}
    assert long["step_size"].dtype == float


def test_curves_are_arrays_with_the_steps(results: Any) -> None:
    found = results.curves("episode_return")
    assert list(found.axes)[-1] == "num_steps"
    run = results.runs[0]
    place = {"env": run.spec["env"], "trace": run.spec["trace"], "lambda_": run.spec["lambda_"], "step_size": 1e-4}
    curve = found.select(**place, seed=run.spec["seed"])
    assert curve.axes["num_steps"] == tuple(report.num_steps for report in run.reports)
    np.testing.assert_array_equal(curve.values, [report.episode_return for report in run.reports])


def test_records_and_the_data_frame(results: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = results.frame()
    assert len(frame) == len(results.records) == 36
    assert {record["protocol"] for record in results.records} == {""}
    names = ("env", "trace", "lambda_", "step_size", "seed", "status", "final", "evaluation", "early", "area")
    assert tuple(frame.columns) == (*names, "protocol")
    assert frame[frame.status == "failed"].evaluation.isna().all()
    by_trace = frame[frame.step_size == 1e-3].groupby("trace").final.mean()
    expected = results.scores("final").select(step_size=1e-3, trace="rbis").values
    assert by_trace["rbis"] == pytest.approx(np.nanmean(expected))
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(ImportError, match="`frame` needs pandas or polars: pip install pandas"):
        results.frame()


def test_rankings_are_best_first(results: Any) -> None:
    """Retrace has the largest skill of the three; step sizes are algorithms of their own."""
    ((name, found),) = results.rankings("final").items()
    assert name == "made"
    assert len(found.entries) == 6
    assert found.entries[0].algorithm.startswith("retrace, step_size ")
    assert {entry.algorithm for entry in found.entries[-2:]} == {f"dqn, step_size {size:g}" for size in STEP_SIZES}
    assert "36 runs: 35 done, 1 failed" in repr(results)


WRONG_READING = {
    "a score": (lambda found: found.scores("evaluations"), "`score` must be one of .* Did you mean 'evaluation'"),
    "a measure": (lambda found: found.curves("los"), "`measure` must be one of .* Did you mean 'loss'"),
    "an axis": (lambda found: found.scores().select(step=1), "`step` must be an axis; .* env, trace, lambda_"),
    "a value": (lambda found: found.scores().select(seed=9), r"`seed` must be one of \(0, 1, 2\); got 9"),
}


def test_wrong_questions_are_refused(results: Any, tmp_path: Path) -> None:
    for ask, text in WRONG_READING.values():
        with pytest.raises(ValueError, match=text):
            ask(results)
    with pytest.raises(FileNotFoundError, match=r"must be an existing results file; got .*none\.sqlite"):
        ot.experiments.read(tmp_path / "none.sqlite")
    sweep = ot.experiments.Sweep(["pocket/catch"])
    with pytest.raises(ValueError, match="`ray_address` must come with `engine='ray'`"):
        ot.experiments.run(sweep, tmp_path / "r.sqlite", ray_address="auto")


# -- axes ----------------------------------------------------------------------------------------------------


def test_axes_are_a_product() -> None:
    axes = {"step_size": np.array(STEP_SIZES), "window": [8, 16], "hidden_sizes": [(16,), (16, 16)]}
    sweep = ot.experiments.Sweep(["pocket/catch"], traces=["retrace", "dqn"], num_seeds=2, axes=axes)
    found = [(spec.trace, spec.step_size, spec.window, spec.hidden_sizes) for spec in ot.experiments.runs_of(sweep)]
    assert len(set(found)) == 8 + 4  # DQN has windows of one step
    assert len(found) == 2 * 12
    assert {window for trace, _, window, _ in found if trace == "dqn"} == {1}
    assert {type(size) for _, size, _, _ in found} == {float}


def test_axes_replace_what_a_preset_chose() -> None:
    from offtrace.experiments.spec import with_settings

    sweep = with_settings(ot.experiments.preset("table_2"), {"num_steps": 4_000}, {"step_size": [0.1, 0.2]})
    specs = ot.experiments.runs_of(sweep)
    assert len(specs) == 2 * 1540
    assert {(spec.num_steps, spec.step_size) for spec in specs} == {(4_000, 0.1), (4_000, 0.2)}


WRONG_AXES = {
    "unknown": ({"stepsize": [1]}, "`axes` must be fields of `TrainSpec`; got 'stepsize'. Did you mean 'step_size'"),
    "own": ({"trace": ["rbis"]}, "`axes` must not have 'trace'. Use `traces`"),
    "value": ({"step_size": [0.1, -1.0]}, "`step_size` must be a finite number above 0.*got -1.0"),
    "one value": ({"window": 8}, r"`window` must be a list of values; got 8. Write `\[8\]`"),
    "empty": ({"window": []}, "`axes` must have a value for 'window'"),
    "twice": ({"gamma": [0.9]}, "`axes` must not have 'gamma', which is among the settings too"),
}


def test_wrong_axes_are_refused() -> None:
    for axes, text in WRONG_AXES.values():
        with pytest.raises(ValueError, match=text):
            ot.experiments.Sweep(["pocket/catch"], settings={"gamma": 0.5}, axes=axes)
    with pytest.raises(ValueError, match="`envs` must be a list of values; got 'pocket/catch'"):
        ot.experiments.Sweep("pocket/catch")


GIVEN = {
    "step_size=1e-4,1e-3": [1e-4, 1e-3],
    "window=8,16": [8, 16],
    "num-steps=1e5,200_000": [100_000, 200_000],
    "hidden_sizes=64x64,128": [(64, 64), (128,)],
    "observation_scale=1x14,2": [(1.0, 14.0), (2.0,)],
    "anneal=true,False": [True, False],
    "double=true": [True],
    "max_gradient=none,10": [None, 10.0],
    "optimiser=adam,rmsprop": ["adam", "rmsprop"],
    "target_policy=greedy": ["greedy"],
}


def test_set_is_typed_by_the_field() -> None:
    for text, values in GIVEN.items():
        (found,) = parsed_axes([text]).values()
        assert found == values
        assert [type(value) for value in found] == [type(value) for value in values]


REFUSED = {
    "stepsize=1": "`--set` must be options of `offtrace train`; got 'stepsize'. Did you mean 'step_size'?",
    "trace=retrace,rbis": "`--set` must not have 'trace'. Use `--traces`.",
    "lambda=0,1": "`--set` must not have 'lambda'. Use `--lambdas`.",
    "seed=1": "`--set` must not have 'seed'. Use `--num-seeds` and `--first-seed`.",
    "options=1": "`--set` must not have 'options'. Use `--options`.",
    "step_size": "`--set` must look like `step_size=1e-4,1e-3`; got 'step_size'.",
    "step_size=fast": "`step_size` must be a number; got 'fast'.",
    "window=1.5": "`window` must be a whole number; got '1.5'.",
    "hidden_sizes=64xx": "`hidden_sizes` must be whole numbers joined by x, such as 64x64; got '64xx'.",
    "observation_scale=1x": "`observation_scale` must be a number; got ''.",
    "anneal=maybe": "`anneal` must be true or false; got 'maybe'.",
    "optimiser=sgd": "`optimiser` must be one of adam, rmsprop; got 'sgd'.",
}


def test_wrong_settings_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    for given, text in REFUSED.items():
        with pytest.raises(SystemExit, match="2"):
            main(["sweep", "pocket/catch", "--set", given])
        assert capsys.readouterr().err == f"offtrace: {text}\n"
    for more, text in (
        (["--step-size", "1"], "must not come with `--step-size`"),
        (["--set", "step_size=1"], "twice"),
    ):
        with pytest.raises(SystemExit, match="2"):
            main(["sweep", "pocket/catch", "--set", "step_size=0.1", *more])
        assert text in capsys.readouterr().err


def test_set_and_options_reach_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    specs: list[Any] = []

    def see(run: Any, given: Any, *_: Any, **__: Any) -> None:
        specs.extend(given)
        raise SystemExit(0)

    monkeypatch.setattr(sweep_command, "run_sweep", see)
    words = "sweep pocket/catch --traces retrace --set step_size=1e-4,1e-3 --set window=8,16 --num-seeds 2"
    with pytest.raises(SystemExit, match="0"):
        main([*words.split(), "--options", "rows", "6"])
    assert len(specs) == 8
    assert {(spec.step_size, spec.window) for spec in specs} == {(x, n) for x in STEP_SIZES for n in (8, 16)}
    assert {spec.options["rows"] for spec in specs} == {6}


def test_a_worker_does_not_import_the_script() -> None:
    """A script without `if __name__ == "__main__"` would start its sweep again in every worker."""

    class Process:
        def start(self) -> None:
            main_module = sys.modules["__main__"]
            assert main_module.__spec__ is None
            assert not hasattr(main_module, "__file__")

    before = sys.modules["__main__"]
    workers._start(Process())
    assert sys.modules["__main__"] is before
