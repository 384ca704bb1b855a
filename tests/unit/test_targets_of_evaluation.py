"""Target policies: what describes one, what is refused, and how it must fit the log."""

import dataclasses
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loops import each
from refusals import refusal

from offtrace.evaluation.log import Log
from offtrace.evaluation.problems import LogError
from offtrace.evaluation.target import Target, as_target, impossible

PI = np.array([[0.25, 0.75, 0.0], [0.0, 0.5, 0.5], [1.0, 0.0, 0.0], [0.1, 0.2, 0.7]])


def make_log(**changes: Any) -> Log:
    columns: dict[str, Any] = {
        "episode": [0, 0, 0, 1, 1],
        "step": [0, 1, 2, 0, 1],
        "state": [0, 1, 3, 2, 0],
        "action": [1, 2, 0, 0, 1],
        "reward": [0.0, 0.0, 1.0, 0.0, 1.0],
        "terminated": [False, False, True, False, False],
        "truncated": [False, False, False, False, True],
    }
    return Log.from_columns({name: values for name, values in {**columns, **changes}.items() if values is not None})


def observed() -> Log:
    return make_log(state=None, observation=[[0.0, 1.0], [1.0, 1.0], [2.0, 0.5], [0.5, 0.0], [1.5, 1.5]])


def by_state(states: np.ndarray) -> np.ndarray:
    """Return π of the table: a function of states."""
    assert states.ndim == 1
    return PI[states]


def by_observation(x: np.ndarray) -> np.ndarray:
    """Return probabilities that depend on the first number."""
    assert x.ndim == 2
    first = x[:, 0] / 4
    return np.stack([first, 1 - first, np.zeros(len(x))], axis=1)


def test_a_table_from_every_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "pi.npy", PI)
    np.savez(tmp_path / "pi.npz", pi=PI, q=np.zeros((4, 3)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("ot_test_targets.py").write_text(
        "import numpy as np\n"
        f"TABLE = np.array({PI.tolist()})\n"
        "def by_state(states):\n    return TABLE[states]\n"
        "def broken(states):\n    return TABLE[states][:, :2]\n"
        "NAME = 'pi.npy'\n"
    )
    log = make_log()
    lines: list[str] = []
    given = (
        PI,
        PI.tolist(),
        tmp_path / "pi.npy",
        "pi.npz",
        by_state,
        "ot_test_targets:by_state",
        "ot_test_targets:TABLE",
        as_target(PI),
    )
    for source in given:
        target = as_target(source, log=log, tell=lines.append)
        assert target.num_actions == 3
        assert target.table is not None
        assert target.table.tolist() == PI.tolist()
        assert target.of_actions(log).tolist() == [0.75, 0.5, 0.1, 1.0, 0.75]
        assert target.probabilities(np.array([3, 0])).tolist() == PI[[3, 0]].tolist()
    assert lines == [f"Imported ot_test_targets from {tmp_path / 'ot_test_targets.py'}."]
    assert repr(as_target("ot_test_targets:by_state", log=log)) == "Target(ot_test_targets:by_state, 3 actions)"
    assert "`target` must have rows that sum to 1" in refusal(as_target, "ot_test_targets:broken", log=log)
    assert "must be a function or a table" in refusal(as_target, "ot_test_targets:NAME")
    assert "has no 'pi'" in refusal(as_target, "ot_test_targets:pi")
    np.savez(tmp_path / "no.npz", mu=PI)
    assert "`target` must have an array `pi` in no.npz; got mu." in refusal(as_target, "no.npz")
    Path("cut.npy").write_bytes(Path("pi.npy").read_bytes()[:-8])
    assert "`target`: cut.npy: it declares 96 bytes of numbers and has 88." in refusal(as_target, "cut.npy")


def test_a_function_of_observations(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is called with a few rows at a time, in the order of the log."""
    monkeypatch.setattr("offtrace.evaluation.target.ROWS_AT_ONCE", 2)
    log = observed()
    target = as_target(by_observation, log=log)
    assert (target.num_actions, target.table) == (3, None)
    assert target.title == "function by_observation"
    assert target.of_actions(log).tolist() == [1.0, 0.0, 0.5, 0.125, 0.625]  # 1 − x/4, 0, x/4, x/4, 1 − x/4
    assert log.observation is not None
    assert target.probabilities(log.observation).tolist() == by_observation(log.observation).tolist()
    assert target.probabilities(np.zeros((0, 2))).shape == (0, 3)


def test_states_that_are_only_reached_at_last() -> None:
    """The table has a row for every state whose value is read, also if no step starts there."""
    log = make_log(next_state=[1, 3, 900, 0, 3])
    assert as_target(by_state, log=log).probabilities(np.array([3])).tolist() == [PI[3].tolist()]
    as_target(PI, log=log)  # 900 is after a termination
    cut = make_log(next_state=[1, 3, 0, 0, 4])
    text = refusal(as_target, PI, log=cut, error=LogError)
    assert "`next_state` must be below 4, the number of states of the target policy: row 4" in text


def test_rounding_passes() -> None:
    """1e-4 in float32 and 1e-6 in float64, as everywhere; the numbers stay as they are."""
    third = np.full((4, 3), 1 / 3, np.float32)
    assert as_target(third).table is not None
    last = np.array([0.0, 0.0, 1.0])
    off = as_target(PI + 5e-7 * last)
    assert off.table is not None
    assert off.table.tolist() == (PI + 5e-7 * last).tolist()
    assert "must have rows that sum to 1" in refusal(as_target, PI + 5e-6 * last)


WRONG = {
    "sum": (np.array([[0.5, 0.5], [0.5, 0.4]]), r"`target` must have rows that sum to 1; got \[0.5 0.4\] in row 1\."),
    "sums": (np.full((9, 2), 0.4), r"got \[0.4 0.4\] in rows 0, 1, 2, 3, 4 and 4 more\."),
    "negative": (
        np.array([[1.5, -0.5]]),
        r"`target` must not have negative probabilities; got \[ 1.5 -0.5\] in row 0",
    ),
    "NaN": (np.array([[0.5, 0.5], [np.nan, 1.0]]), r"`target` must have finite probabilities; got .* in row 1"),
    "one axis": (np.array([0.5, 0.5]), r"`target` must be a table .*; got float64 of shape \(2,\)\."),
    "no rows": (np.zeros((0, 2)), r"got float64 of shape \(0, 2\)"),
    "strings": ([["a", "b"]], r"`target` must be a table"),
    "ragged": ([[1.0], [0.5, 0.5]], r"got lists of different lengths"),
    "None": (None, r"`target` must be a table .*; got NoneType\."),
    "text": ("policy.txt", r"`target` must be a table .*; got 'policy.txt'\."),
    "no file": ("nothing.npy", r"`target`: nothing.npy cannot be read: No such file"),
    "no module": ("ot_no_such_module:f", r"there is no module 'ot_no_such_module'"),
}


@each(("given", "text"), WRONG)
def test_what_is_no_policy(given: Any, text: str) -> None:
    assert re.search(text, refusal(as_target, given))


def test_functions_that_return_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offtrace.evaluation.target.ROWS_AT_ONCE", 2)
    log = observed()
    for function, text in (
        (lambda x: np.ones(len(x)), "must give probabilities of shape (1, A); got float64 of shape (1,)"),
        (lambda x: PI[:3], "must give probabilities of shape (1, A); got float64 of shape (3, 3)"),
        (lambda x: [["left"] for _ in x], "must give probabilities of shape (1, A); got <U4 of shape (1, 1)"),
        (lambda x: np.full((len(x), 2), 0.4), "must have rows that sum to 1"),
    ):
        assert text in refusal(as_target, function, log=log)
    late = Target("late", 3, function=lambda x: by_observation(x) * (x[:, :1] < 2))
    assert "got [0. 0. 0.] in row 2." in refusal(late.of_actions, log)
    shuffled = dataclasses.replace(log, row=np.array([4, 3, 0, 1, 2]))
    assert "got [0. 0. 0.] in row 0." in refusal(late.of_actions, shuffled)


def test_a_target_that_does_not_fit_the_log() -> None:
    halves = np.full((4, 2), 0.5)
    for given, log, text in (
        (halves, make_log(), "`action` must be below 2, the number of actions of the target policy: row 1"),
        (PI[:3], make_log(), "`state` must be below 3, the number of states of the target policy: row 2"),
        (PI, observed(), "a table (X, A) needs a log of states; this one has observations. Pass a function"),
    ):
        assert text in refusal(as_target, given, log=log, error=LogError)
    backwards = make_log(
        **{
            "episode": [1, 0, 0, 0],
            "step": [0, 2, 1, 0],
            "state": [0, 0, 0, 0],
            "action": [0, 7, 8, 0],
            "reward": [0.0] * 4,
            "terminated": [True, True, False, False],
            "truncated": [False] * 4,
        }
    )
    text = refusal(as_target, PI, log=backwards, error=LogError)
    assert "`action` must be below 3, the number of actions of the target policy: rows 1, 2" in text  # of the source
    vectors = make_log(action=np.zeros((5, 2)))
    assert "to log-densities (N,)" in refusal(as_target, PI, log=vectors)
    assert "`epsilon` must come with a saved agent" in refusal(as_target, PI, epsilon=0.1)


def test_support() -> None:
    """A problem only if no episode could come from π; its first steps with π(a|x) = 0 are named."""
    log = make_log()
    assert not impossible(log, np.array([0.5, 0.0, 0.0, 1.0, 1.0]))
    assert not impossible(log, np.full(5, 1e-300))
    (problem,) = impossible(log, np.array([0.5, 0.0, 0.0, 1.0, 0.0]))
    assert (problem.rows, problem.num_rows) == ((1, 4), 2)
    assert "no episode could come from the target policy" in str(problem)


def test_an_error_of_the_users_function_names_it_and_says_how_it_is_called() -> None:
    def one(x: Any) -> Any:
        return PI[int(x)]

    text = refusal(as_target, one, log=make_log())
    assert "`target` must be a function of states or observations, N rows at once" in text
    assert "for (4,), one raised TypeError: " in text

    class Policy:
        pass

    assert "for (4,), Policy raised TypeError: Policy() takes no arguments" in refusal(
        as_target, Policy, log=make_log()
    )
    vectors = make_log(action=np.zeros((5, 2)))
    density = as_target(lambda x: x, log=vectors)
    assert "function of observations and actions, N rows at once, that returns log-densities (N,)" in refusal(
        density.log_densities, vectors
    )
