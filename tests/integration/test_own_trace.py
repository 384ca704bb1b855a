"""A trace written outside the package works wherever a trace does; a row of `TRACES` brings everything it needs."""

import dataclasses
import importlib
import inspect
import json
import sys
from collections.abc import Generator
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import offtrace as ot
from offtrace import online, operators
from offtrace.agent import learner, settings, ticks
from offtrace.agent.policy import load_policy
from offtrace.agent.spec import Plan, TrainSpec, from_json, resolved, to_json
from offtrace.agent.training import train
from offtrace.cli import main
from offtrace.cli.train import as_arguments
from offtrace.doctor.verdict import THEORY, TITLES
from offtrace.experiments import engine, shipping
from offtrace.experiments.populations import saved_populations, work_folder
from offtrace.experiments.spec import Sweep, runs_of
from offtrace.experiments.store import Store, fingerprint
from offtrace.experiments.trace_names import trace_names
from offtrace.report.names import named
from offtrace.scores import is_baseline

MODULE = '''
"""Traces of somebody's own."""

from dataclasses import dataclass
from typing import Any

import offtrace as ot


@dataclass(frozen=True)
class HalfRetrace(ot.Trace):
    """c = λ/2 min(1, π/μ): Retrace(λ/2)."""

    needs_mu = True
    safe = True

    def factor(self, likelihoods, **_):
        return 0.5 * likelihoods.clipped_ratio()


class HalfAware(ot.TrajectoryAware):
    """The same, as a trajectory-aware trace."""

    safe = True

    def next_beta(self, xp, reach):
        return reach.beta * reach.lambda_ * 0.5 * xp.where(reach.ratio < 1, reach.ratio, 1)


def half(pi_a, mu_a):
    """The same at λ = 0.8, as a function."""
    return 0.4 * ot.Retrace(1.0)(pi_a=pi_a, mu_a=mu_a)


class Half:
    """The same as a callable object."""

    def __call__(self, *, pi_a, mu_a, **_):
        return half(pi_a, mu_a)
'''

SAME = ot.Retrace(0.4)
MARKOV = ["HalfRetrace", "half", "Half"]
ALL = [*MARKOV, "HalfAware"]


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    folder = tmp_path_factory.mktemp("somebody")
    (folder / "somebodys_traces.py").write_text(MODULE, encoding="utf-8")
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module("somebodys_traces")
    finally:
        sys.path.remove(str(folder))


def value(mine: ModuleType, name: str) -> object:
    """A trace at λ = 0.8, however it is written."""
    given = getattr(mine, name)
    if not inspect.isclass(given):
        return given
    return given(0.8) if issubclass(given, ot.Trace) else given()


def window() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    n, batch, num_actions = 5, 3, 4
    pi = rng.dirichlet(np.ones(num_actions), (n + 1, batch))
    return {
        "q": rng.normal(size=(n + 1, batch, num_actions)),
        "a": rng.integers(num_actions, size=(n, batch)),
        "r": rng.normal(size=(n, batch)),
        "discount": np.full((n, batch), 0.9),
        "pi": pi,
        "mu_a": rng.uniform(0.2, 1, (n, batch)),
    }


@pytest.mark.parametrize("make", [np.asarray, jnp.asarray, torch.tensor], ids=["numpy", "jax", "torch"])
@pytest.mark.parametrize("name", ALL)
def test_targets(mine: ModuleType, name: str, make) -> None:
    given = {key: make(array) for key, array in window().items()}
    right = np.asarray(ot.targets(**given, trace=SAME))
    np.testing.assert_allclose(np.asarray(ot.targets(**given, trace=value(mine, name))), right, rtol=1e-5)


def small() -> tuple[ot.FiniteMDP, np.ndarray, np.ndarray]:
    mdp = ot.mdp.chain(num_states=4, gamma=0.9, slip=0.2)
    rng = np.random.default_rng(1)
    pi, mu = rng.dirichlet(np.ones(mdp.num_actions), (2, mdp.num_states))
    return mdp, pi, mu


@pytest.mark.parametrize("name", ALL)
def test_tabular_learning(mine: ModuleType, name: str) -> None:
    mdp, pi, mu = small()
    trace = value(mine, name)
    for learn, options in ((online.evaluate, {"pi": pi, "mu": mu}), (online.control, {})):
        options = {**options, "num_episodes": 20, "max_steps": 20, "seed": 2}
        learned = learn(mdp, trace=trace, **options)
        np.testing.assert_allclose(learned.q, learn(mdp, trace=SAME, **options).q, rtol=1e-9, atol=1e-12)


def test_a_sweep_takes_the_class_and_the_function(mine: ModuleType) -> None:
    mdp, _, _ = small()
    grid = online.sweep(mdp, traces=[mine.HalfRetrace, mine.half], lambdas=[0.4, 0.8], num_episodes=5, keep_q=True)
    assert grid.axes["trace"] == ("half_retrace", "half")
    np.testing.assert_allclose(grid.q[1, 0], grid.q[0, 1])  # λ = 0.8 of the class is the function
    np.testing.assert_array_equal(grid.q[1, 0], grid.q[1, 1])  # a function has no λ


@pytest.mark.parametrize("name", MARKOV)
def test_operators(mine: ModuleType, name: str) -> None:
    mdp, pi, mu = small()
    given = {"pi": pi, "mu": mu}
    trace = value(mine, name)
    for operator in (operators.eta, operators.coefficients, operators.reach, operators.a_matrix):
        np.testing.assert_allclose(operator(mdp, **given, trace=trace), operator(mdp, **given, trace=SAME))
    q = np.zeros(mdp.shape)
    got = operators.general_operator(mdp, q, **given, trace=trace)
    np.testing.assert_allclose(got, operators.general_operator(mdp, q, **given, trace=SAME))


@pytest.mark.parametrize("given", ["retrace", ot.Retrace, ot.Retrace(1.0)], ids=["name", "class", "value"])
def test_operators_take_a_name_a_class_or_a_value(given: object) -> None:
    mdp, pi, mu = small()
    right = operators.eta(mdp, pi=pi, mu=mu, trace=ot.Retrace(1.0))
    np.testing.assert_array_equal(operators.eta(mdp, pi=pi, mu=mu, trace=given), right)


def test_analyze(mine: ModuleType) -> None:
    mdp, pi, mu = small()
    traces = [mine.HalfRetrace, mine.HalfAware(0.8), mine.half, SAME]
    analysis = ot.analyze(mdp, pi=pi, mu=mu, traces=traces, lambdas=[0.5, 0.8], num_trajectories=20)
    labels = [row.label for row in analysis]
    assert labels == ["half_retrace(0.5)", "half_retrace(0.8)", "half_aware(0.8)", "half", "retrace(0.4)"]
    right = analysis.row("retrace").contraction
    for name, lambda_ in (("half_retrace", 0.8), ("half", None)):
        assert analysis.row(name, lambda_).contraction == pytest.approx(right)
        assert analysis.row(name, lambda_).verdict == "by theorem"
    assert "half_aware" in str(analysis)


def test_names(mine: ModuleType) -> None:
    assert (mine.HalfRetrace.name, mine.HalfRetrace.title) == ("half_retrace", "HalfRetrace(λ)")
    assert named("half_retrace") == "half_retrace"  # a stored result knows the name alone
    assert mine.HalfRetrace.safe_for_control
    assert not mine.HalfAware.safe_for_control  # Theorem 2 is about Markov traces


def test_the_example_in_the_documentation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Path(__file__).parents[2] / "docs" / "returns.md"
    section = page.read_text(encoding="utf-8").partition("## Your own trace\n")[2]
    code = section.partition("```python\n")[2].partition("```")[0]
    (tmp_path / "my_module.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("my_module")
    for make in (np.array, jnp.array, torch.tensor):
        given = {"pi_a": make([0.9, 0.1]), "mu_a": make([0.3, 0.2])}  # π/μ = 3 and 1/2
        np.testing.assert_allclose(module.PowerRetrace(0.9)(**given), [0.9, 0.9 / 4], rtol=1e-6)
        np.testing.assert_allclose(module.capped(**given), [0.9, 0.5], rtol=1e-6)
    with pytest.raises(ValueError, match="`power` of PowerRetrace must be at least 1; got 0"):
        module.PowerRetrace(0.9, power=0.0)
    forget("my_module")


# -- the agent -----------------------------------------------------------------------------------------------

TINY: dict[str, Any] = {
    "network": "mlp",
    "hidden_sizes": (8,),
    "num_actors": 4,
    "num_steps": 160,
    "fill": 40,
    "replay_size": 160,
    "tick_steps": 80,
    "window": 4,
    "evaluation_ticks": 0,
    "evaluation_episodes": 2,
    "evaluation_steps": 20,
}
OWN = TrainSpec("pocket/catch", trace="users_traces:HalfRetrace", lambda_=0.8, **TINY)
HOSTILE = "from pathlib import Path\nPath({marker!r}).touch()\nraise RuntimeError('imported')\n"


def forget(name: str) -> None:
    """Let the next import read the file again, as a new process would."""
    sys.modules.pop(name, None)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    """A current folder with a user's module; Python finds it there and nowhere else."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    (tmp_path / "users_traces.py").write_text(MODULE, encoding="utf-8")
    yield tmp_path
    forget("users_traces")


@pytest.mark.parametrize("name", ALL)
def test_the_learner_computes_the_same_targets(mine: ModuleType, name: str) -> None:
    """An update with the trace is one with Retrace(0.4)."""
    given = {key: jnp.asarray(array) for key, array in window().items()}
    ones = jnp.ones_like(given["r"])
    batch = learner.Batch(
        obs=given["q"],
        a=given["a"],
        r=given["r"],
        continues=ones,
        reset=ones < 0,
        mask=ones > 0,
        mu_a=given["mu_a"],
        epsilon=jnp.full(3, 0.3),
    )
    found = []
    for trace in (value(mine, name), SAME):
        spec = resolved(TrainSpec("pocket/catch", trace=trace))
        hyper = settings.settings([spec, dataclasses.replace(spec, seed=1)]).hyper
        first = jax.tree.map(lambda leaf: leaf[0], hyper)
        found.append(learner.batch_targets(given["q"], given["q"], batch, learner.LearnerSpec(), first)[0])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5)


def test_train_in_python(mine: ModuleType, tmp_path: Path) -> None:
    """A function that cannot be saved trains where nothing is saved."""
    free = TrainSpec("pocket/catch", trace=lambda pi_a, mu_a: mine.half(pi_a, mu_a), **TINY)
    assert 0 < train(free).history[-1].c < 0.4 + 1e-6
    with pytest.raises(ValueError, match=r"`trace`: .*<lambda> has no name that can be imported"):
        train(free, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match="has no name that can be imported"):
        runs_of(Sweep(["pocket/catch"], (free.trace,)))


def test_train_and_resume_on_the_command_line(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["train", *as_arguments(OWN), "--quiet"]
    assert command[:6] == ["train", "pocket/catch", "--trace", "users_traces:HalfRetrace", "--lambda", "0.8"]
    main(command)
    printed = capsys.readouterr()
    assert printed.err.startswith(f"Imported users_traces from {here / 'users_traces.py'}.")
    run = Path("runs/pocket-catch-HalfRetrace-0")
    (stored,) = json.loads((run / "spec.json").read_text())["specs"]
    assert (stored["trace"], stored["trace_title"]) == ("users_traces:HalfRetrace", "HalfRetrace(λ)")
    assert len(stored["trace_source"]) == 16
    forget("users_traces")
    (here / "users_traces.py").write_text(MODULE.replace("0.5 *", "0.6 *"), encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        main([*command, "--resume"])
    assert ended.value.code == 2
    assert "the source of users_traces:HalfRetrace has changed (its hash was" in capsys.readouterr().err
    main([*command, "--resume", "--allow-changes"])
    # A policy needs the network alone.
    forget("users_traces")
    marker = here / "marker"
    (here / "users_traces.py").write_text(HOSTILE.format(marker=str(marker)))
    policy = load_policy(run)
    assert policy.spec.title == "pocket/catch  HalfRetrace(λ = 0.8)  seed 0"
    main(["watch", str(run), "--output", "play.gif", "--max-steps", "3"])
    capsys.readouterr()
    # Another run of the user is not resumed from it, and its trace is not imported.
    with pytest.raises(SystemExit) as ended:
        main(["train", *as_arguments(dataclasses.replace(OWN, trace="retrace")), "--resume", "--output", str(run)])
    assert ended.value.code == 2
    assert "trace was 'users_traces:HalfRetrace' and is 'retrace'" in capsys.readouterr().err
    assert not marker.exists()


def test_what_cannot_be_trained_is_refused(here: Path) -> None:
    (here / "users_traces.py").write_text(
        MODULE + "value = HalfRetrace(0.5)\n"
        "def branches(pi_a):\n    return pi_a if pi_a.max() > 0.5 else 0 * pi_a\n"
        "def first(pi_a):\n    return pi_a[0]\n",
        encoding="utf-8",
    )
    wrong = {
        "users_traces:branches": r"branches raised TracerBoolConversionError: .* The agent compiles it: use op",
        "users_traces:first": r"`trace` must return c for JAX arrays; first raised ValueError: `c` must have the sh",
        "users_traces:nothing": "`trace` 'users_traces:nothing': module 'users_traces' has no 'nothing'",
        "users_traces:value": r"must name a class or a function; 'users_traces:value' is the value HalfRetrace",
        "users_traces:Half": "must name a subclass of `ot.Trace`, or a function",
    }
    for trace, text in wrong.items():
        with pytest.raises(ValueError, match=text):
            train(TrainSpec("pocket/catch", trace=trace, **TINY))
    for trace, options, text in (
        ("users_traces:half", {"x": 1}, "`trace_options` must be parameters of half; got 'x'. It has none."),
        ("q_sigma", {"tau": 1}, "`trace_options` must be parameters of QSigma; got 'tau'. It has sigma."),
        ("q_sigma", {"sigma": 2}, r"`sigma` of QSigma must be in \[0, 1\]; got 2"),
    ):
        with pytest.raises(ValueError, match=text):
            train(TrainSpec("pocket/catch", trace=trace, trace_options=options, **TINY))
    with pytest.raises(
        ValueError, match=r"`lambda_` must be left out for 'users_traces:half', which has no λ; got 0\.5"
    ):
        train(TrainSpec("pocket/catch", trace="users_traces:half", lambda_=0.5, **TINY))


# -- sweeps and reports --------------------------------------------------------------------------------------


def of_sweep(*traces: Any, lambdas: tuple[float, ...] = (0.8,)) -> list[Plan]:
    return runs_of(Sweep(["pocket/catch"], traces, lambdas, num_seeds=1, settings=TINY))


def store_as(path: Path, specs: list[Plan]) -> None:
    """Store the results of the only run in a file for other specs as well."""
    with Store(path) as store:
        (done,) = store.runs()
        for run_id in store.register(map(to_json, specs), {}):
            assert store.claim(run_id, "a test")
            store.write(run_id, done.reports)
            store.finish(run_id, done.returns)


def test_a_sweep_runs_it_and_a_report_names_it(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    specs = of_sweep("retrace", "users_traces:HalfRetrace", "users_traces:half", lambdas=(0.0, 0.8))
    found = [(spec.trace.rpartition(":")[2], spec.lambda_, spec.trace_title) for spec in specs]
    assert found == [
        ("retrace", 0.0, ""),
        ("retrace", 0.8, ""),
        ("HalfRetrace", 0.0, "HalfRetrace(λ)"),
        ("HalfRetrace", 0.8, "HalfRetrace(λ)"),
        ("half", 0.0, "half()"),
    ]
    path = here / "results.sqlite"
    assert engine.run([specs[3]], path, jobs=0).num_done == 1
    # A changed source is another trace, of which nothing is stored yet.
    forget("users_traces")
    (here / "users_traces.py").write_text(MODULE + "\n# changed\n", encoding="utf-8")
    (changed,) = of_sweep("users_traces:HalfRetrace")
    assert fingerprint(to_json(changed)) != fingerprint(to_json(specs[3]))
    with pytest.raises(ValueError, match="must be the one that the run was planned with, whose source has the hash"):
        settings.check_trace(specs[3])
    store_as(path, [specs[1], specs[4], changed])
    # The report imports nothing.
    forget("users_traces")
    marker = here / "marker"
    (here / "users_traces.py").write_text(HOSTILE.format(marker=str(marker)))
    main(["report", "results.sqlite", "--formats", "svg"])
    assert not marker.exists()
    assert "users_traces" not in sys.modules
    page = Path("report/index.html").read_text(encoding="utf-8")
    for spec in (specs[3], changed):
        assert f"HalfRetrace(λ) ({spec.trace_source[:4]})" in page
    assert "half()" in page
    capsys.readouterr()


def test_names_of_traces() -> None:
    """Different traces have different names, however they are called."""
    mine = {"trace": "mine:Half", "trace_title": "Half(λ)", "trace_source": "abcd1"}
    specs = [
        {"trace": "retrace"},
        mine,
        {**mine, "trace_options": {"share": 0.5}},
        {**mine, "trace_options": {"share": 0.25}},
        {"trace": "mine:f", "trace_title": "f()", "trace_source": "a1b2c"},
        {"trace": "mine:f", "trace_title": "f()", "trace_source": "b1b2c"},
        {"trace": "mine:g", "trace_title": "g()", "trace_source": "a1b2c"},
        {"trace": "mine:other.g", "trace_title": "g()", "trace_source": "a1b2c"},
        {"trace": "q_sigma", "trace_options": {"sigma": 0.5}},
        {"trace": "mine:bad", "trace_title": "retrace"},  # as no sweep writes it
        {"trace": "mine:old"},
    ]
    names = ["retrace", "Half(λ)", "Half(λ) (share=0.5)", "Half(λ) (share=0.25)", "f() (a1b2)", "f() (b1b2)"]
    names += ["g() (mine:g)", "g() (mine:other.g)", "q_sigma (sigma=0.5)", "retrace()", "mine:old()"]
    assert list(trace_names(specs).values()) == names
    assert [is_baseline(name) for name in names] == ["()" in name for name in names]
    assert named("Half(λ) (share=0.5).greedy") == "Half(λ) (share=0.5) (greedy)"


def test_a_file_does_not_decide_what_is_imported(here: Path) -> None:
    """A saved population with a trace that the user did not name is not resumed."""
    path = here / "results.sqlite"
    wanted, other = of_sweep("retrace", "tree_backup")
    evil = to_json(other) | {"trace": "evil:Trace", "trace_source": "0" * 16, "trace_title": "Trace(λ)"}
    assert from_json(evil).trace == "evil:Trace"  # reading it imports nothing
    record = ticks._untrained(wanted)._replace(tick=1, num_steps=150)
    for member, is_resumed in ((to_json(other), True), (evil, False)):
        with Store(path) as store:
            run_id, over = store.register([to_json(wanted), member], {})
            assert store.claim(run_id, "a test")
            store.write(run_id, [record])
            store.release(run_id)
            assert store.claim(over, "a test")
            store.finish(over, [1.0])
        folder = work_folder(path) / "0123"
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"specs": [to_json(wanted), member], "made_with": {}})
        (folder / "spec.json").write_text(text, encoding="utf-8")
        resumed, rest = saved_populations(path, [wanted])
        assert (bool(resumed), bool(rest)) == (is_resumed, not is_resumed)


def test_the_files_that_go_to_other_machines(here: Path) -> None:
    (here / "beside.py").write_text("x = 1\n")
    (here / "unused.py").write_text("x = 1\n")
    package = here / "users_package"
    package.mkdir()
    (package / "__init__.py").write_text("import beside\n")
    (package / "inner.py").write_text("y = 2\n")
    plan = dataclasses.replace(resolved(TrainSpec("pocket/catch")), env="gymnasium/users_package.inner:my/Env-v0")
    names = shipping.modules_of([plan, dataclasses.replace(plan, trace="users_traces:half")])
    assert names == {"users_package.inner", "users_traces"}
    files = shipping.collect([*names, "numpy", "not_here"])
    assert set(files) == {"users_traces.py", "beside.py", "users_package/__init__.py", "users_package/inner.py"}
    for name in ("users_package", "users_package.inner", "beside"):
        forget(name)
        (here / "beside.py").write_text("x = 3\n")
    with shipping.unpacked(files):
        assert importlib.import_module("beside").x == 1  # the file that was sent
    for name in ("users_package", "users_package.inner", "beside"):
        forget(name)


# -- a row of TRACES -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", ot.TRACES.values(), ids=ot.TRACES)
def test_one_class_and_one_row_are_all_that_a_trace_needs(cls: type[ot.Trace]) -> None:
    """Names, facts and theory come from the class, in every part of the package that shows them."""
    assert ot.as_trace(cls.name, 0.5) == ot.as_trace(cls, 0.5)
    assert named(cls.name) == cls.title
    assert TITLES[cls.name].startswith(cls.full_name)
    assert THEORY[cls.name][:2] == (cls.safe, cls.theory)
    assert is_baseline(cls.name) == (not cls.has_lambda)
    shown = TrainSpec(env="pocket/catch", trace=cls.name, lambda_=0.5).title
    assert cls.title.replace("λ", "λ = 0.5") in shown
    assert dataclasses.is_dataclass(cls)


@pytest.mark.parametrize("cls", ot.TRACES.values(), ids=ot.TRACES)
def test_a_row_works_wherever_a_trace_does(cls: type[ot.Trace]) -> None:
    given = window()
    np.testing.assert_array_equal(ot.targets(**given, trace=cls.name), ot.targets(**given, trace=ot.as_trace(cls)))
    mdp, pi, mu = small()
    assert np.isfinite(online.evaluate(mdp, pi=pi, mu=mu, trace=cls.name, num_episodes=2, max_steps=5).q).all()
    if cls.markov:
        q = np.zeros(mdp.shape)
        assert operators.eta(mdp, pi=pi, mu=mu, trace=cls.name, q=q).shape == mdp.shape
