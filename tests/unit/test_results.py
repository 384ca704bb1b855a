"""From stored runs to studies: scores, seeds, copies, variants, the ladder and exact scales."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import sweep_results

from offtrace.agent.spec import TrainSpec, resolved, to_json
from offtrace.environments.protocols import ATARI_RULES, MINATAR_RULES, WITHOUT_EFFECT
from offtrace.experiments.exact import anchors
from offtrace.experiments.results import Study, scores, studies
from offtrace.experiments.store import Store, read
from offtrace.mdp import MDPS, SMALL_WORLD
from offtrace.report.findings import Materials, difference, findings, materials_of
from offtrace.report.folder import write
from offtrace.report.names import named
from offtrace.report.sections import describe
from offtrace.scores import Key, claims

USUAL = {"target_policy": "exploration", "double": True}
DQN = {"target_policy": "greedy", "double": False}


def spec(trace: str, lambda_: float, seed: int, *, env: str = "made/alpha", **more: Any) -> dict[str, Any]:
    usual = DQN if trace == "dqn" else USUAL
    return {"env": env, "trace": trace, "lambda_": lambda_, "seed": seed, "num_steps": 50_000, **usual, **more}


def stored(path: Path, wanted: list[tuple[dict[str, Any], float]]) -> list[Study]:
    """Runs whose training score and evaluation are both what is given, the latter ten times as large."""
    with Store(path) as store:
        ids = store.register([each for each, _ in wanted], sweep_results.MADE)
        for run_id, (each, value) in zip(ids, wanted, strict=True):
            assert store.claim(run_id, "made up")
            told = [report._replace(episode_return=value) for report in sweep_results.reports(each)]
            store.write(run_id, told)
            store.finish(run_id, [9 * value, 11 * value])
    return studies(read([path]))


def test_a_run_has_two_scores(tmp_path: Path) -> None:
    (study,) = stored(tmp_path / "r.sqlite", [(spec("retrace", 1.0, 0), 3.0)])
    found = scores(study.runs[0])
    assert found["final"] == pytest.approx(3.0)
    assert found["evaluation"] == pytest.approx(30.0)
    assert study.comparison.cell("alpha", "retrace", 1.0, "evaluation").tolist() == pytest.approx([30.0])


def diverging(path: Path, wanted: Sequence[Mapping[str, Any]], which: Sequence[int]) -> Path:
    """Runs whose scores are 10, 11, …; those at these places diverge."""
    with Store(path) as store:
        for i, run_id in enumerate(store.register(wanted, {})):
            store.write(
                run_id, [report._replace(episode_return=10.0 + i) for report in sweep_results.reports(wanted[i])]
            )
            store.finish(run_id, [10.0 + i], diverged="by step 7 Q is not finite" if i in which else None)
    return path


def test_a_diverged_run_counts_as_the_worst_of_its_game(tmp_path: Path) -> None:
    """Whatever it scored itself, by every score; to leave it out would favour what fails."""
    wanted = sweep_results.specs(("made/a",), traces=("retrace", "dqn"), lambdas=(1.0,), seeds=(0, 1, 2))
    [study] = studies(read([diverging(tmp_path / "results.sqlite", wanted, which=[2, 4])]))
    for stretch in ("final", "evaluation", "early", "area"):
        assert study.comparison.cell("a", "retrace", 1.0, stretch) == pytest.approx([10, 11, 10])
        assert study.comparison.cell("a", "dqn", 1.0, stretch) == pytest.approx([13, 10, 15])
    assert dict(study.comparison.diverged) == {Key("a", "retrace", 1.0): 1, Key("a", "dqn", 0.0): 1}
    asked = [
        claim for claim in claims(study.comparison) if claim.text.startswith("Retrace(λ) is above DQN at the end")
    ]
    assert [claim.num_diverged for claim in asked] == [2]
    assert "Retrace(λ) 1 of 3, DQN 1 of 3" in describe(study)[1]


def test_a_game_that_nobody_finished_has_no_scores(tmp_path: Path) -> None:
    wanted = sweep_results.specs(("made/a",), traces=("retrace", "dqn"), lambdas=(1.0,), seeds=(0, 1))
    [study] = studies(read([diverging(tmp_path / "results.sqlite", wanted, which=range(4))]))
    assert study.comparison.games == ()
    assert study.num_by_status == {"diverged": 4}


def test_a_diverged_run_is_no_better_than_random_play(tmp_path: Path) -> None:
    """Where that is known: random play on the fork returns −1.598."""
    wanted = sweep_results.specs(("mdp/fork",), traces=("retrace", "dqn"), lambdas=(1.0,), seeds=(0, 1))
    [study] = studies(read([diverging(tmp_path / "results.sqlite", wanted, which=[0])]))
    assert study.comparison.cell("fork", "retrace", 1.0) == pytest.approx([-1.598, 11], abs=1e-3)


def test_seeds_are_told_and_pair_what_they_share(tmp_path: Path) -> None:
    """Whatever order runs are stored in: a seed that shifts both algorithms drops out of their difference."""
    shifts = {3: 0.0, 4: 10.0, 5: 20.0, 6: 30.0}
    wanted = [(spec("retrace", 1.0, seed), 5.0 + shift) for seed, shift in shifts.items()]
    noise = {3: 0.1, 4: -0.1, 5: 0.1, 6: -0.1}
    wanted += [(spec("dqn", 0.0, seed), 4.0 + noise[seed] + shifts[seed]) for seed in (6, 4, 3, 5)]
    (study,) = stored(tmp_path / "r.sqlite", wanted)
    key = Key("alpha", "dqn", 0.0)
    assert study.comparison.seeds["final"][key] == [6, 4, 3, 5]
    assert study.comparison.cell(*key).tolist() == pytest.approx([4.1, 13.9, 24.1, 33.9])
    found = difference(study.comparison, ("retrace", 1.0), ("dqn", 1.0), "final")
    assert found is not None
    width = study.comparison.blocks("level", "final").value  # both are on one scale
    assert width.shape == (2, 1)
    assert found.high - found.low < 0.5 * abs(found.value)


def test_lambda_zero_is_one_algorithm(tmp_path: Path) -> None:
    """Trained once, under one name, or by an older version three times: it counts once, for all of them."""
    once = [(spec("retrace", 0.0, seed), 1.0 + seed) for seed in range(3)]
    rest = [(spec(t, 1.0, s), 2.0 + s) for t in ("retrace", "tree_backup", "q_lambda") for s in range(3)]
    thrice = [(spec(t, 0.0, s), 1.0 + s) for t in ("tree_backup", "q_lambda") for s in range(3)]
    for name, wanted in (("new", [*once, *rest]), ("old", [*once, *thrice, *rest])):
        (study,) = stored(tmp_path / f"{name}.sqlite", wanted)
        comparison = study.comparison
        assert comparison.copies == {
            Key("alpha", other, 0.0): Key("alpha", "retrace", 0.0) for other in ("tree_backup", "q_lambda")
        }
        assert comparison.averages("level").num_runs == 12
        assert comparison.lambdas == (0.0, 1.0)
        assert set(study.curves(0.0)["alpha"]) == {"retrace", "tree_backup", "q_lambda"}


def test_target_policies_are_algorithms(tmp_path: Path) -> None:
    wanted = [(spec("dqn", 0.0, s), 1.0) for s in range(2)]
    wanted += [(spec("dqn", 0.0, s, target_policy="exploration", step_size=0.1), 2.0) for s in range(2)]
    wanted += [(spec("dqn", 0.0, s, target_policy="exploration", double=True), 3.0) for s in range(2)]
    wanted += [(spec("retrace", x, s), 4.0) for x in (0.0, 0.5, 1.0) for s in range(2)]
    wanted += [(spec("retrace", 0.5, s, target_policy="greedy"), 5.0) for s in range(2)]
    (study,) = stored(tmp_path / "r.sqlite", wanted)
    names = ("retrace", "dqn", "dqn.exploration", "dqn.exploration.double")
    assert study.comparison.algorithms == names  # retrace.greedy was not run at every λ
    assert study.comparison.cell("alpha", "dqn.exploration", 0.5).tolist() == [2.0, 2.0]
    assert study.ladder is not None
    rungs = {name: study.ladder.cell("alpha", name, 1.0).tolist() for name in study.ladder.algorithms}
    assert rungs == {
        "control": [1.0, 1.0],
        "target": [2.0, 2.0],
        "double": [3.0, 3.0],
        "windows": [4.0, 4.0],
        "trace": [4.0, 4.0],
        "greedy_trace": [5.0, 5.0],
    }


def test_one_target_policy_needs_no_name(tmp_path: Path) -> None:
    wanted = [(spec("retrace", 1.0, s, target_policy="greedy"), 1.0) for s in range(2)]
    (study,) = stored(tmp_path / "r.sqlite", wanted)
    assert study.comparison.algorithms == ("retrace",)
    assert study.ladder is None


def test_other_settings_are_other_algorithms(tmp_path: Path) -> None:
    """Never pooled, however small the difference; what was not varied has no name."""
    sizes = {0.0001: 1.0, 0.00010000001: 2.0}
    wanted = [(spec("retrace", 1.0, s, step_size=x), sizes[x]) for s in range(2) for x in sizes]
    wanted += [(spec("dqn", 0.0, s, step_size=0.5), 3.0) for s in range(2)]
    (study,) = stored(tmp_path / "r.sqlite", wanted)
    comparison = study.comparison
    assert comparison.algorithms == ("retrace, step_size 0.0001", "retrace, step_size 0.00010000001", "dqn")
    assert [comparison.cell("alpha", name, 1.0).tolist() for name in comparison.algorithms] == [
        [1.0, 1.0],
        [2.0, 2.0],
        [3.0, 3.0],
    ]
    assert named(comparison.algorithms[0]) == "Retrace(λ), step_size 0.0001"
    assert set(study.curves(1.0)["alpha"]) == set(comparison.algorithms)


def test_defaults_that_follow_need_no_name(tmp_path: Path) -> None:
    """The number of steps decides other fields. Sizes chosen for each game or λ are not compared."""
    specs = [resolved(TrainSpec("pocket/catch", num_steps=n, seed=s)) for n in (4_000, 8_000) for s in range(2)]
    specs += [resolved(TrainSpec("pocket/catch", "dqn", optimiser=o, seed=0)) for o in ("adam", "rmsprop")]
    specs += [resolved(TrainSpec("pocket/catch", "rbis", x, step_size=x + 0.1, seed=0)) for x in (0.5, 1.0)]
    (study,) = stored(tmp_path / "r.sqlite", [(to_json(each), 1.0) for each in specs])
    names = (
        "retrace, num_steps 4000",
        "retrace, num_steps 8000",
        "rbis",
        "dqn, optimiser adam",
        "dqn, optimiser rmsprop",
    )
    assert study.comparison.algorithms == names


def test_a_default_that_the_file_leaves_out_has_its_name(tmp_path: Path) -> None:
    given = {"optimiser": "rmsprop", "exploration": "switching"}
    specs = [resolved(TrainSpec("pocket/catch", runtime=name, **given)) for name in ("synchronous", "asynchronous")]
    (study,) = stored(tmp_path / "r.sqlite", [(to_json(each), 1.0) for each in specs])
    assert set(study.comparison.algorithms) == {"retrace, runtime synchronous", "retrace, runtime asynchronous"}


def test_lambda_zero_of_a_step_size_is_a_copy_of_the_same_step_size(tmp_path: Path) -> None:
    wanted = [(spec("retrace", x, 0, step_size=size), x + size) for x in (0.0, 1.0) for size in (0.1, 0.2)]
    wanted += [(spec("tree_backup", 1.0, 0, step_size=size), 2.0) for size in (0.1, 0.2)]
    (study,) = stored(tmp_path / "r.sqlite", wanted)
    for size in (0.1, 0.2):
        assert study.comparison.cell("alpha", f"tree_backup, step_size {size}", 0.0).tolist() == pytest.approx([size])


def small_world(path: Path, options: dict[str, Any] | None = None) -> Study:
    """Q(λ) falls to random play at λ = 1, Retrace is optimal there, λ = 0 is half way; DQN at a quarter."""
    wanted = []
    rng = np.random.default_rng(0)
    for env in ("mdp/fork", "mdp/field"):
        random, optimal = anchors(env, {})
        heights = {("retrace", 0.0): 0.5, ("retrace", 1.0): 1.0, ("q_lambda", 1.0): 0.0, ("dqn", 0.0): 0.25}
        for (trace, lambda_), height in heights.items():
            for seed in range(6):
                z = height + 0.02 * rng.normal()
                usual = {"epsilon": 0.5, "target_epsilon": None if trace == "dqn" else 0.1, "options": options or {}}
                wanted.append((spec(trace, lambda_, seed, env=env, **usual), random + z * (optimal - random)))
    with Store(path) as store:
        ids = store.register([each for each, _ in wanted], sweep_results.MADE)
        for run_id, (each, value) in zip(ids, wanted, strict=True):
            assert store.claim(run_id, "made up")
            store.write(run_id, [report._replace(episode_return=value) for report in sweep_results.reports(each)])
            store.finish(run_id, [value])
    (study,) = studies(read([path]))
    return study


def test_the_small_world_has_an_exact_scale(tmp_path: Path) -> None:
    study = small_world(tmp_path / "r.sqlite")
    assert study.comparison.name == "The small world"
    assert study.comparison.anchors == {"fork": anchors("mdp/fork", {}), "field": anchors("mdp/field", {})}
    found = study.comparison.averages("level", "evaluation")
    values = {
        (name, x): found.value[i, a] for a, name in enumerate(found.algorithms) for i, x in enumerate((0.0, 1.0))
    }
    assert values["retrace", 1.0] == pytest.approx(1.0, abs=0.03)
    assert values["q_lambda", 1.0] == pytest.approx(0.0, abs=0.03)
    assert values["q_lambda", 0.0] == pytest.approx(0.5, abs=0.03)
    assert values["dqn", 1.0] == pytest.approx(0.25, abs=0.03)


def test_findings_say_what_the_numbers_say(tmp_path: Path) -> None:
    study = small_world(tmp_path / "r.sqlite")
    safety, traces, against = findings(materials_of([study]))
    assert "one step of Q(λ) can multiply an error by" in safety
    assert "while Retrace and TB multiply it by at most 0.93" in safety
    assert "with networks, Q(λ) goes from 0.5" in safety
    assert "−0.9" in safety or "−1.0" in safety
    assert "Retrace(1) gains +0.5" in traces or "Retrace(1) gains +0.4" in traces
    assert "the gain is above 0 in 1 of 1 combinations of Retrace or TB with a λ > 0" in traces
    assert against.startswith("DQN: Retrace(1) minus DQN is +0.7")
    assert findings(Materials()) == []


def test_theory_is_told_of_the_same_mdps_only(tmp_path: Path) -> None:
    study = small_world(tmp_path / "r.sqlite", {"slip": 0.5})
    assert materials_of([study]).theory == ()
    assert "in theory" not in findings(materials_of([study]))[0]


def test_differences_have_their_sign_in_words(tmp_path: Path) -> None:
    wanted = [(spec("retrace", 1.0, s), 1.0 + 0.1 * s) for s in range(4)]
    wanted += [(spec("dqn", 0.0, s), 9.0 + 0.2 * s * s) for s in range(4)]
    (sentence,) = findings(materials_of(stored(tmp_path / "r.sqlite", wanted)))
    assert sentence.startswith("DQN: Retrace(1) minus DQN is −1.00 [")
    first = [wanted[0], wanted[4]]
    (sentence,) = findings(materials_of(stored(tmp_path / "one.sqlite", first)))
    assert sentence == "DQN: Retrace(1) minus DQN is −1.00; there are too few seeds to tell them apart."


def test_two_seeds_have_no_intervals_to_speak_of(tmp_path: Path) -> None:
    wanted = [(spec("retrace", x, s), 1.0 + x + 0.1 * s) for x in (0.0, 1.0) for s in range(2)]
    wanted += [(spec("tree_backup", 1.0, s), 3.0 + 0.1 * s) for s in range(2)]
    found = findings(materials_of(stored(tmp_path / "r.sqlite", wanted)))
    assert any(sentence.endswith("there are too few seeds for intervals.") for sentence in found)


# -- what reviewers found ------------------------------------------------------------------------------------


WRITTEN = ("baird_star", "random_walk", "chain", "fork")
"""Without an exact scale, with one, and of the small world: a page of each kind is written."""


@pytest.mark.parametrize("name", sorted(set(MDPS) - {"icu_sepsis"}))
def test_every_mdp_can_be_reported(tmp_path: Path, name: str) -> None:
    """Those without an exact scale (γ = 1, nothing to gain) are compared on the scale of what was found."""
    wanted = [(spec(t, x, s, env=f"mdp/{name}", options={}), 1.0 + s) for t, x in TWO for s in range(3)]
    (study,) = stored(tmp_path / "r.sqlite", wanted)
    assert study.comparison.name == ("The small world" if name in SMALL_WORLD else "MDPs")
    assert (study.comparison.anchors is None) == (name in ("baird_star", "random_walk"))
    if name in WRITTEN:
        assert write(tmp_path / "page", [study], formats=()).exists()


TWO = (("retrace", 1.0), ("dqn", 0.0))


@pytest.mark.parametrize(
    "options",
    [{"time_limit": 1}, {"gamma": 0.0}, {"gamma": 1.0}, {"height": 3}, {"slip": "x"}, {"time_limit": 10**12}],
)
def test_options_without_an_exact_scale(tmp_path: Path, options: dict[str, Any]) -> None:
    wanted = [(spec(t, x, s, env="mdp/fork", options=options), 1.0 + s) for t, x in TWO for s in range(3)]
    (study,) = stored(tmp_path / "r.sqlite", wanted)
    assert study.comparison.anchors is None


def test_options_make_another_environment(tmp_path: Path) -> None:
    wanted = [(spec("retrace", 1.0, s, env="mdp/fork", options={}), 1.0) for s in range(2)]
    wanted += [(spec("dqn", 0.0, s, env="mdp/fork", options={"slip": 0.3}), 1.0) for s in range(2)]
    assert len(stored(tmp_path / "r.sqlite", wanted)) == 2


# -- protocols -----------------------------------------------------------------------------------------------


def on_atari(game: str, seeds: int = 2, **options: Any) -> list[tuple[dict[str, Any], float]]:
    return [(spec(t, x, s, env=f"atari/{game}", options=options), 1.0 + s) for t, x in TWO for s in range(seeds)]


def test_protocols_are_never_in_one_table(tmp_path: Path) -> None:
    """Neither of one game nor of several games of a suite; each page and table says which protocol it has."""
    wanted = [*on_atari("pong"), *on_atari("breakout", sticky=0.25), *on_atari("pong", sticky=0.25, life_loss=False)]
    found = stored(tmp_path / "r.sqlite", wanted)
    assert {study.comparison.name: study.comparison.games for study in found} == {
        "Atari, sticky 0, life_loss true": ("pong",),
        "Atari, sticky 0.25, life_loss true": ("breakout",),
        "Atari, sticky 0.25, life_loss false": ("pong",),
    }
    for study in found:
        assert {run.protocol["sticky"] for run in study.runs} == {study.protocol["sticky"]}
    told = [line for study in found for line in describe(study) if line.startswith("Protocol: ")]
    assert sum("no sticky actions" in line for line in told) == 1
    assert sum("sticky actions with probability 0.25" in line for line in told) == 2
    page = write(tmp_path / "page", found, formats=())
    assert page.read_text(encoding="utf-8").count("sticky actions with probability 0.25") >= 2
    for name in ("claims", "rankings"):
        data = json.loads((page.parent / "data" / f"{name}.json").read_text(encoding="utf-8"))
        assert [each["protocol"].get("sticky") for each in data][:3] == [s.protocol["sticky"] for s in found]


def test_one_protocol_is_one_study(tmp_path: Path) -> None:
    """Also if some runs name a default, or differ in what changes no game. The same run counts once."""
    wanted = [*on_atari("pong"), *on_atari("breakout", sticky=0, num_threads=2), *on_atari("pong", sticky=0.0)]
    (study,) = stored(tmp_path / "r.sqlite", wanted)
    assert study.comparison.name == "Atari"
    assert study.comparison.games == ("breakout", "pong")
    assert study.comparison.cell("pong", "retrace", 1.0).tolist() == [1.0, 2.0]
    (line,) = [line for line in describe(study) if line.startswith("Protocol: ")]
    for part in (
        "no sticky actions",
        "the actions of the game only",
        "a lost life ends the task",
        "fewer than 30 frames without an action first",
        "at most 108,000 frames",
        "4 frames per step",
    ):
        assert part in line


def test_a_ladder_has_one_protocol(tmp_path: Path) -> None:
    rungs = [("dqn", 0.0, {}), ("dqn", 0.0, {"target_policy": "exploration"}), ("retrace", 0.5, {})]
    wanted = [
        (spec(t, x, s, env="minatar/breakout", options={"sticky": sticky}, **more), value + s)
        for sticky, value in ((0.0, 5.0), (0.1, 1.0))
        for t, x, more in rungs
        for s in range(3)
    ]
    ladders = {study.comparison.name: study.ladder for study in stored(tmp_path / "r.sqlite", wanted)}
    assert list(ladders) == ["MinAtar, sticky 0", "MinAtar, sticky 0.1"]
    for name, value in (("MinAtar, sticky 0", 5.0), ("MinAtar, sticky 0.1", 1.0)):
        ladder = ladders[name]
        assert ladder is not None
        assert ladder.cell("breakout", "trace", 1.0).tolist() == [value, value + 1, value + 2]


def test_the_rules_are_those_of_the_environments() -> None:
    from offtrace.environments import atari, minatar

    fields = {f.name: f.default for f in dataclasses.fields(atari.AtariFactory) if f.name != "game"}
    rules = {name: value for name, value in ATARI_RULES.items() if name != "frame_skip"}
    assert rules == {name: value for name, value in fields.items() if name not in WITHOUT_EFFECT}
    assert ATARI_RULES["frame_skip"] == atari.FRAME_SKIP
    fields = {f.name: f.default for f in dataclasses.fields(minatar.MinAtar) if f.init and f.name != "game"}
    assert dict(MINATAR_RULES) == fields


def test_a_page_without_any_of_the_papers_algorithms(tmp_path: Path) -> None:
    wanted = [(spec(t, x, s), x + s) for t in ("watkins", "rbis") for x in (0.5, 1.0) for s in range(3)]
    assert write(tmp_path / "page", stored(tmp_path / "r.sqlite", wanted), formats=()).exists()


def test_a_ladder_on_one_game_leaves_the_others(tmp_path: Path) -> None:
    """A variant that was not run on all games is in no table but the ladder's, which is of that one game."""
    wanted = [(spec(t, x, s, env=e), 1.0 + s) for t, x in (*TWO, ("retrace", 0.5)) for s in range(3) for e in GAMES]
    for more in ({"target_policy": "exploration"}, {"target_policy": "exploration", "double": True}):
        wanted += [(spec("dqn", 0.0, s, env=GAMES[0], **more), 2.0 + s) for s in range(3)]
    (study,) = stored(tmp_path / "r.sqlite", wanted)
    assert study.comparison.complete_games([0.5, 1.0]) == ("alpha", "beta")
    assert study.comparison.algorithms == ("retrace", "dqn")
    assert study.ladder is not None
    assert study.ladder.games == ("alpha",)


GAMES = ("made/alpha", "made/beta")


def test_a_ladder_beside_another_sweep(tmp_path: Path) -> None:
    """Its rungs are those with the settings of the rung that only ladders have, though others fit as well."""
    rungs = [("dqn", 0.0, {}), ("dqn", 0.0, {"target_policy": "exploration"}), ("retrace", 0.5, {})]
    wanted = [
        (spec(t, x, s, tick_steps=10, step_size=0.1, **more), 1.0 + s) for t, x, more in rungs for s in range(3)
    ]
    wanted += [(spec(t, x, s, tick_steps=5, step_size=0.2), 7.0) for t, x, _ in rungs[::2] for s in range(3)]
    found = stored(tmp_path / "r.sqlite", wanted)
    ladders = [study.ladder for study in found if study.ladder is not None]
    assert len(ladders) == 1
    assert ladders[0].cell("alpha", "trace", 1.0).tolist() == [1.0, 2.0, 3.0]


def test_lambda_zero_is_a_copy_of_what_is_like_it(tmp_path: Path) -> None:
    """Not of another target policy or step size; of two that are alike, of the one with more seeds."""
    other = [(spec("retrace", x, s, target_policy="greedy"), 1.0) for x in (0.0, 1.0) for s in range(2)]
    other += [(spec("tree_backup", 1.0, s), 2.0) for s in range(2)]
    (study,) = stored(tmp_path / "a.sqlite", other)
    assert study.comparison.copies == {}
    sizes = [(spec("retrace", 0.0, s, step_size=0.1), 1.0) for s in range(2)]
    sizes += [(spec("tree_backup", 0.0, s, step_size=0.2), 2.0) for s in range(2)]
    (study,) = stored(tmp_path / "b.sqlite", sizes)
    assert study.comparison.copies == {}
    seeds = [(spec("retrace", 0.0, 0), 1.0), *((spec("tree_backup", 0.0, s), 2.0) for s in range(3))]
    (study,) = stored(tmp_path / "c.sqlite", seeds)
    assert study.comparison.copies == {Key("alpha", "retrace", 0.0): Key("alpha", "tree_backup", 0.0)}


def test_a_value_above_the_optimum_is_in_its_interval(tmp_path: Path) -> None:
    random, optimal = anchors("mdp/fork", {})
    high = [random + (1.15 + 0.01 * s) * (optimal - random) for s in range(4)]
    wanted = [(spec(t, x, s, env="mdp/fork", options={}), high[s] / 10) for t, x in TWO for s in range(4)]
    (study,) = stored(tmp_path / "r.sqlite", wanted)
    found = study.comparison.averages("level", "evaluation")
    assert (found.value > 1).all()
    assert (found.low <= found.value).all()
    assert (found.value <= found.high).all()
