"""`offtrace analyze` as somebody runs it: on a name, a model of their own, or a log; and on what is none of these."""

import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import offtrace as ot
from offtrace import cli

HEADER = "state,action,reward,next_state,terminated\n"
FEW = ("--traces", "one_step", "tree_backup", "retrace", "--lambdas", "0.5", "1")
"""Three traces at two λs: all the paths through the command, in no time."""


def offtrace(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from offtrace.cli import main; main()", "analyze", *arguments]
    eighty = {**os.environ, "COLUMNS": "80", "TERM": "dumb"}
    return subprocess.run(command, cwd=cwd, env=eighty, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable:
    """The command in this process, which is quicker: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def call(*arguments: str) -> tuple[int, str, str]:
        code = 0
        try:
            cli.main(["analyze", *arguments])
        except SystemExit as left:
            code = int(left.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def lake() -> tuple[ot.FiniteMDP, np.ndarray]:
    mdp = ot.mdp.from_gymnasium("FrozenLake-v1", gamma=0.99)
    return mdp, ot.operators.q_star(mdp)


def logged(num_steps: int) -> dict[str, np.ndarray]:
    """Steps of the lake under an ε-greedy policy, from its model."""
    mdp, q = lake()
    mu, p, rng = ot.policies.epsilon_greedy(q, 0.3), mdp.dense(), np.random.default_rng(0)
    rows, x = [], 0
    for _ in range(num_steps):
        a = int(rng.choice(4, p=mu[x]))
        y = int(rng.choice(16, p=p[x, a]))
        end = y in (5, 7, 11, 12, 15)
        rows.append((x, a, float(y == 15), y, end))
        x = 0 if end else y
    columns = np.array(rows, dtype=float).T
    whole = {name: columns[place].astype(int) for name, place in (("state", 0), ("action", 1), ("next_state", 3))}
    return {**whole, "reward": columns[2], "terminated": columns[4].astype(bool)}


def write_log(path: Path, log: dict[str, np.ndarray]) -> None:
    if path.suffix == ".npz":
        np.savez(path, **log)
        return
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*log, "note"])  # in another order, and with a column more
        writer.writerows([*row, "x"] for row in zip(*(values.tolist() for values in log.values()), strict=True))


# --- what works ---------------------------------------------------------------------------------------------


def test_the_example_of_the_help_prints_and_writes(tmp_path: Path) -> None:
    done = offtrace("FrozenLake-v1", "--behaviour", "epsilon_greedy:0.3", "--output", "näch ste", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "FrozenLake-v1: 16 states, 4 actions, γ = 0.99" in done.stdout
    assert done.stdout.startswith("π: greedy   μ: epsilon_greedy:0.3")
    folder = tmp_path / "näch ste"
    pictures = {f"{name}.{end}" for name in ("contraction_against_variance", "eta") for end in ("png", "svg", "pdf")}
    assert {path.name for path in folder.iterdir()} == {"analysis.json", "analysis.csv", *pictures}

    mdp, q = lake()
    expected = ot.analyze(mdp, pi=ot.policies.greedy(q), mu=ot.policies.epsilon_greedy(q, 0.3))
    written = json.loads((folder / "analysis.json").read_text(encoding="utf-8"))
    assert written == json.loads(json.dumps(expected.as_dict()))
    assert expected.recommendation in " ".join(done.stdout.split())
    with (folder / "analysis.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["trace"], float(row["lambda_"])) for row in rows] == [(r.trace, r.lambda_) for r in expected.rows]
    assert [float(row["target_variance"]) for row in rows] == [row.target_variance for row in expected.rows]


def test_json_is_alone_on_stdout_and_agrees_with_analyze(run: Callable) -> None:
    code, out, err = run("chain", "--behaviour", "uniform", "--json", "--output", "out", *FEW)
    assert code == 0
    mdp = ot.mdp.chain()
    q = ot.operators.q_star(mdp)
    expected = ot.analyze(
        mdp,
        pi=ot.policies.greedy(q),
        mu=np.full(mdp.shape, 0.5),
        traces=["one_step", "tree_backup", "retrace"],
        lambdas=[0.5, 1.0],
    )
    assert json.loads(out) == json.loads(json.dumps(expected.as_dict()))
    assert "Written to" in err


def test_infinity_is_a_word_in_json(run: Callable) -> None:
    code, out, _ = run(
        "FrozenLake-v1",
        "--behaviour",
        "epsilon_greedy:0.3",
        "--traces",
        "importance_sampling",
        "--lambdas",
        "1",
        "--json",
    )
    (row,) = json.loads(out)["rows"]
    assert code == 0
    assert row["target_variance"] == row["cost"] == "inf"
    assert row["variance_radius"] >= 1


@pytest.mark.parametrize("name", [name for name in ot.mdp.MDPS if name != "icu_sepsis"])
def test_every_name(run: Callable, name: str) -> None:
    code, out, err = run(name, *FEW)
    assert (code, err) == (0, "")
    assert f"{name}: " in out


def test_list_names_every_mdp(run: Callable) -> None:
    code, out, _ = run("--list")
    assert code == 0
    lines = out.splitlines()
    assert [line.split()[0] for line in lines] == list(ot.mdp.MDPS)
    abouts = [line.split(maxsplit=1)[1] for line in lines]
    assert len(set(abouts)) == len(abouts)
    assert not [about for about in abouts if about.startswith("Return") or not about.endswith(".")]


def test_list_says_what_is_not_installed(run: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "icu_sepsis", None)
    _, out, _ = run("--list")
    said = [line.split()[0] for line in out.splitlines() if line.endswith("Not installed: pip install icu-sepsis")]
    assert said == ["icu_sepsis"]


def test_a_model_of_ones_own_brings_gamma_policies_and_a_map(run: Callable) -> None:
    mdp = ot.mdp.bifurcated_grid(gamma=0.8)
    q = ot.operators.q_star(mdp)
    ends = np.zeros(mdp.num_states, bool)
    ends[[14]] = True  # the goal
    pi, mu = ot.policies.softmax(q, 3.0), ot.policies.epsilon_greedy(q, 0.4)
    np.savez("fork.npz", p=mdp.dense(), r=mdp.r, terminates=ends, gamma=0.8, pi=pi, mu=mu, grid=[5, 5])
    code, out, err = run("fork.npz", "--json", "--output", "out", *FEW)
    assert code == 0, err
    found = json.loads(out)
    assert (found["mdp"]["name"], found["mdp"]["gamma"]) == ("fork", 0.8)
    model = ot.FiniteMDP(p=mdp.dense(), r=mdp.r, terminates=ends, gamma=0.8)
    expected = ot.analyze(model, pi=pi, mu=mu, traces=["retrace"], lambdas=[1.0]).row("retrace")
    assert next(r for r in found["rows"] if (r["trace"], r["lambda_"]) == ("retrace", 1.0)) == expected.as_dict()
    assert Path("out/eta.png").exists()
    assert run("fork.npz", *FEW)[1].startswith("π: as in the file   μ: as in the file")
    # what is said on the line goes before what is in the file
    _, out, _ = run("fork.npz", "--target", "greedy", "--behaviour", "uniform", "--gamma", "0.5", *FEW)
    assert out.startswith("π: greedy   μ: uniform")
    assert "γ = 0.5" in out


@pytest.mark.parametrize("name", ["log.csv", "log.npz"])
def test_a_log_brings_its_own_mu_and_says_what_is_unknown(run: Callable, name: str) -> None:
    log = logged(1500)
    write_log(Path(name), log)
    code, out, err = run(name, "--gamma", "0.95", "--json", *FEW)
    assert code == 0, err
    counted = ot.mdp.from_data(
        states=log["state"],
        actions=log["action"],
        rewards=log["reward"],
        next_states=log["next_state"],
        terminated=log["terminated"],
        gamma=0.95,
    )
    pi = ot.policies.greedy(ot.operators.q_star(counted.mdp))
    counted.mdp.name = name
    expected = ot.analyze(counted, pi=pi, traces=["one_step", "tree_backup", "retrace"], lambdas=[0.5, 1.0])
    assert json.loads(out) == json.loads(json.dumps(expected.as_dict()))
    _, out, _ = run(name, *FEW)
    assert out.startswith("π: greedy   μ: as counted")
    assert "Counted from 1,500 transitions" in out
    assert "Never seen:" in out


def test_a_log_of_episodes_is_counted_like_its_transitions(run: Callable) -> None:
    """Where next states are not logged, they are those of the next rows; the step before the cut has none."""
    pyarrow = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    steps = logged(300)
    ends = steps["terminated"]
    starts = np.append(True, ends[:-1])
    place = np.arange(300)
    log = {
        "episode": np.cumsum(starts),
        "step": place - np.maximum.accumulate(np.where(starts, place, 0)),
        "truncated": place == 299,
        **steps,
    }
    assert not ends[-1]  # the last episode is cut off
    write_log(Path("log.npz"), steps)
    write_log(Path("lake.csv"), {name: column for name, column in log.items() if name != "next_state"})
    pq.write_table(pyarrow.table(log), "lake.parquet")
    analyses = []
    for name in ("log.npz", "lake.parquet", "lake.csv"):
        code, out, err = run(name, "--gamma", "0.95", "--json", "--traces", "retrace", "--lambdas", "1")
        assert code == 0, err
        analyses.append({key: value for key, value in json.loads(out).items() if key != "mdp"})
    assert analyses[0] == analyses[1]
    assert "lake.csv: ignored columns: `note`." in err
    assert "lake.csv: 1 truncated step has no next state in the log, and is not counted." in err
    pq.write_table(pyarrow.table({**log, "reward": np.full(300, np.nan)}), "lake.parquet")
    code, _, err = run("lake.parquet")
    assert code == 2
    assert "`mdp`: lake.parquet: the log cannot be used (rows count from 0)" in " ".join(err.split())
    assert "`reward` must be finite: rows 0, 1, 2, 3, 4 and 295 more" in " ".join(err.split())


def test_a_log_may_say_true_and_false_and_start_with_a_mark(run: Callable) -> None:
    """As spreadsheets write it."""
    Path("log.csv").write_text(HEADER + "0,0,1,1,False\n1,1,0,0,TRUE\n\n0,1,2.5,0,0\n", encoding="utf-8-sig")
    code, out, err = run("log.csv", *FEW)
    assert code == 0, err
    assert "Counted from 3 transitions" in out


def test_policies_from_files(run: Callable) -> None:
    _, q = lake()
    np.save("mu.npy", ot.policies.epsilon_greedy(q, 0.5))
    code, out, _ = run("FrozenLake-v1", "--behaviour", "mu.npy", "--target", "softmax:5", "--json", *FEW)
    assert code == 0
    assert json.loads(out)["off_policyness"] == pytest.approx(
        abs(ot.policies.softmax(q, 5.0) - ot.policies.epsilon_greedy(q, 0.5)).sum(1).max()
    )


def test_undiscounted_where_the_policies_end(run: Callable) -> None:
    """Sutton and Barto's random walk: Q* has no value there, but no one asks for it."""
    code, out, err = run("random_walk", "--gamma", "1", "--target", "uniform", "--behaviour", "uniform", *FEW)
    assert code == 0, err
    assert "γ = 1" in out


def test_unsafe_traces_alone_have_no_map_of_eta(run: Callable) -> None:
    code, out, err = run("chain", "--behaviour", "uniform", "--traces", "q_lambda", "--output", "out")
    assert (code, err) == (0, "")
    assert {path.stem for path in Path("out").iterdir()} == {"analysis", "contraction_against_variance"}
    assert "DIVERGES" in out


# --- what is wrong ------------------------------------------------------------------------------------------


def one_line(code: int, out: str, err: str) -> str:
    assert code == 2
    assert out == ""
    assert "Traceback" not in err
    (line,) = err.splitlines()
    assert line.startswith("offtrace: ")
    return line


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "name an MDP"),
        (("model.npz",), "`mdp` must be an existing file; got 'model.npz'"),
        (("log.csv",), "`mdp` must be an existing file; got 'log.csv'"),
        (("NoSuch-v0",), "got 'NoSuch-v0'"),
        (("NoSuch-v0",), "Other options: baird_star"),
        (("CartPole-v1",), "CartPole-v1 has none"),
        (("os:system",), "`env` 'os:system' must make an environment when it is called"),
        (
            ("garnet", "--gamma", "1"),
            "`gamma` must be below 1 where episodes cannot end; got 1. No policy ends an episode from x = 0",
        ),
        (("FrozenLake-v1", "--gamma", "1.5"), "`gamma` must be in [0, 1]; got 1.5."),
        (("chain", "--gamma", "nan"), "`gamma` must be in [0, 1]; got nan."),
        (("chain", "--lambdas", "2"), "must be in [0, 1]; got 2."),
        (("chain", "--lambdas"), "`lambdas` must not be empty."),
        (("chain", "--traces", "retraced"), "Did you mean 'retrace'?"),
        (("chain", "--traces", "foo"), "`trace` must be one of one_step"),
        (("chain", "--accuracy", "1"), "`accuracy` must be in (0, 1)"),
        (("chain", "--behaviour", "epsilon_greedy"), "`behaviour` must be uniform, greedy, epsilon_greedy:0.1"),
        (
            ("chain", "--behaviour", "epsilon_greedy:x"),
            "must have a number after epsilon_greedy:; got 'x'.",
        ),
        (("chain", "--behaviour", "epsilon_greedy:2"), "`epsilon` must be in [0, 1]; got 2."),
        (("chain", "--target", "uniform:3"), "`target` must be uniform"),
        (("chain", "--target", "mine.npy"), "`target`: mine.npy cannot be read"),
    ],
)
def test_wrong_words(run: Callable, arguments: tuple[str, ...], text: str) -> None:
    assert text in one_line(*run(*arguments))


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", "state is missing"),
        ("s,a,r,s2,done\n0,0,0,0,0\n", "must have the columns state, action, reward, next_state, terminated; state"),
        (HEADER, "must not be empty"),
        (HEADER + "0,0,1\n", "must hold numbers; got '0,0,1' in row 1"),
        (HEADER + "0,0,1,0,0\nup,0,1,0,0\n", "must hold numbers; got 'up,0,1,0,0' in row 2"),
        (HEADER + "0,0,nan,1,0\n", "`rewards` must be finite; got nan at t = 0"),
        (HEADER + "nan,0,0,1,0\n", "state in log.csv must be whole numbers; got nan"),
        (HEADER + "0,0.5,0,1,0\n", "action in log.csv must be whole numbers; got 0.5"),
        (HEADER + "1e19,0,0,1,0\n", "state in log.csv must be whole numbers; got 1e+19"),
        (HEADER + "1e12,0,0,1,0\n", "must have at most"),
        (HEADER + "-1,0,0,1,0\n", "`states` must not be negative; got -1"),
        (HEADER + "0,0,0,1,2\n", "terminated in log.csv must be 0 or 1; got 2"),
        (HEADER.encode() + b"\xe9,0,0,1,0\n", "log.csv cannot be read"),
    ],
)
def test_wrong_logs(run: Callable, content: str | bytes, text: str) -> None:
    Path("log.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    assert text in one_line(*run("log.csv"))


HALF = np.full((2, 1, 2), 0.5)


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ({"p": HALF}, "must have p and r, or state, action"),
        ({"p": np.ones((2, 1, 2)), "r": np.zeros((2, 1))}, "`p` must have rows that sum to 1; got 2"),
        ({"p": np.full((2, 1, 2), np.nan), "r": np.zeros((2, 1))}, "got nan at (x, a) = (0, 0)"),
        ({"p": np.ones((2, 2)), "r": np.zeros((2, 1))}, "`p` must have shape (X, A, X)"),
        ({"p": np.array(["a"]), "r": np.zeros((2, 1))}, "'p' in model.npz: it must hold numbers; got dtype <U1"),
        (
            {"p": np.array([{}], dtype=object), "r": np.zeros((2, 1))},
            "'p' in model.npz: it must hold numbers; got dtype |O",
        ),
        ({"p": HALF, "r": np.zeros((2, 3))}, "`r` must have shape (X, A) = (2, 1)"),
        ({"p": HALF, "r": np.zeros((2, 1)), "grid": [3, 3]}, "`grid` must be (rows, columns) with 2 cells"),
        ({"p": HALF, "r": np.zeros((2, 1)), "gamma": [0.9, 0.8]}, "gamma in model.npz must be one number"),
        ({"p": HALF, "r": np.zeros((2, 1)), "gamma": 1.5}, "`gamma` must be in [0, 1]; got 1.5"),
        ({"p": HALF, "r": np.zeros((2, 1)), "pi": np.ones((3, 1))}, "`pi` must have shape (X, A) = (2, 1)"),
        ({"p": HALF, "r": np.zeros((2, 1)), "mu": np.full((2, 1), 0.5)}, "`mu` must have rows that sum to 1"),
        (
            {"state": [0], "action": [0], "reward": [0.0, 1.0], "next_state": [0], "terminated": [0]},
            "the arrays must have one shape (N,)",
        ),
    ],
)
def test_wrong_models(run: Callable, arrays: dict[str, object], text: str) -> None:
    np.savez("model.npz", **{name: np.asarray(values) for name, values in arrays.items()})
    assert text in one_line(*run("model.npz"))


def test_files_that_are_something_else(run: Callable) -> None:
    Path("model.npz").write_bytes(b"no archive")
    assert "it is not an .npz file" in one_line(*run("model.npz"))
    for name in ("folder.npz", "folder.csv"):
        Path(name).mkdir()
        assert name in one_line(*run(name))


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        (np.ones((3, 2)) / 2, "`mu` must have shape (X, A) = (10, 2); got (3, 2)"),
        (np.ones((10, 2)), "`mu` must have rows that sum to 1; got 2 at x = 0"),
        (np.full((10, 2), np.nan), "got nan at (x, a) = (0, 0)"),
        (np.array([{}], dtype=object), "mu.npy: it must hold numbers; got dtype |O"),
        (np.array(["a"]), "mu.npy: it must hold numbers; got dtype <U1"),
    ],
)
def test_wrong_policies(run: Callable, policy: np.ndarray, text: str) -> None:
    np.save("mu.npy", policy)
    assert text in one_line(*run("chain", "--behaviour", "mu.npy"))


def test_a_folder_that_cannot_be_made_is_noticed_before_anything_is_computed(run: Callable) -> None:
    Path("taken").write_text("")
    assert "`output` must be a folder that can be made; got 'taken' (File exists)." in one_line(
        *run("chain", "--output", "taken")
    )
    assert "Not a directory" in one_line(*run("chain", "--output", "taken/inside"))


def test_gymnasium_is_an_extra_and_says_so(run: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    line = one_line(*run("FrozenLake-v1"))
    assert "this needs `gymnasium`: pip install 'offtrace[agent]' (" in line
    assert "). Other options: baird_star, " in line


def test_pictures_need_an_extra_and_say_so(run: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "altair", None)
    monkeypatch.delitem(sys.modules, "offtrace.report.charts", raising=False)
    assert "pip install 'offtrace[report]'" in one_line(*run("chain", "--output", "out"))


def test_the_exit_code_reaches_the_shell(tmp_path: Path) -> None:
    done = offtrace("nowhere.npz", cwd=tmp_path)
    assert "must be an existing file" in one_line(done.returncode, done.stdout, done.stderr)


def test_help_shows_an_example(run: Callable) -> None:
    code, out, _ = run("--help")
    assert code == 0
    assert "Example: offtrace analyze FrozenLake-v1" in " ".join(out.split())
