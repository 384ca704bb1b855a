"""The top of the page, and the verdicts of all studies: for the page and as JSON."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from offtrace.experiments.algorithms import setting_text, settings_of
from offtrace.experiments.results import Study
from offtrace.experiments.store import StoredRun
from offtrace.report.findings import SHORT_SCORES, SIGNS, Materials, different_runs, findings, scores_of
from offtrace.report.names import counted, named
from offtrace.report.page import Cell, Grid, Section
from offtrace.report.rankings import sentence
from offtrace.report.sections import KINDS
from offtrace.report.wording import is_or_are, listed, signed_text
from offtrace.scores import Claim, Comparison, are_the_papers, relevant_claims
from offtrace.scores.comparison import Stretch
from offtrace.scores.keys import plain_name

Claims = Mapping[Stretch, Sequence[Claim]]
"""The verdicts of a study, by score."""


def title_of(studies: Sequence[Study]) -> str:
    """Return the title of the page."""
    names = [study.comparison.name.partition(",")[0] for study in studies]
    names = [name[0].lower() + name[1:] if name.startswith("The ") else name for name in names]
    names = list(dict.fromkeys(names))
    if not names:
        return "Off-policy returns, as published"
    return f"Off-policy returns on {listed(names, most=3)}"


def is_about_the_paper(studies: Sequence[Study]) -> bool:
    """Return whether a study has all of the paper's algorithms, or there is no study at all."""
    return not studies or any(are_the_papers(_algorithms(study)) for study in studies)


def _algorithms(study: Study) -> set[str]:
    """Return the algorithms of a study, also of runs that are not done."""
    planned = {study.algorithms.get(run.fingerprint, str(run.spec["trace"])) for run in study.runs}
    return planned | set(study.comparison.algorithms)


def question_of(studies: Sequence[Study]) -> str:
    """Return the question of a report that is not about the paper."""
    envs = list(dict.fromkeys(str(run.spec["env"]) for study in studies for run in study.runs))
    return f"Which algorithm is best on {listed(envs)}?"


def findings_of(studies: Sequence[Study], materials: Materials) -> list[str]:
    """Return what was found, in a few sentences. Unless it is about the paper, the best algorithms come first."""
    if is_about_the_paper(studies):
        return findings(materials)
    return [*filter(None, map(sentence, studies)), *findings(materials)]


def claims_of(comparison: Comparison) -> Claims:
    """Return the verdicts on the paper's claims that a comparison can say something about, by score."""
    found = {stretch: relevant_claims(comparison, stretch) for stretch in scores_of(comparison)}
    return {stretch: of_score for stretch, of_score in found.items() if of_score}


def description_of(studies: Sequence[Study]) -> list[str]:
    """Return what was run, one sentence per study; without stored runs, what it compares."""
    if not studies:
        return ["The published results of Munos et al. (2016), scored again."]
    lines = []
    for study in studies:
        comparison = study.comparison
        algorithms = [plain_name(study.algorithms[run.fingerprint]) for run in study.runs]
        if not algorithms:
            algorithms = list(comparison.algorithms)
        names = listed([named(name) for name in dict.fromkeys(algorithms)])
        games = [str(run.spec["env"]) for run in study.runs] or list(comparison.games)
        games = list(dict.fromkeys(games))
        settings = _settings_text(study)
        line = (
            f"{comparison.name}: {counted(different_runs(study), 'run')} on {counted(len(games), 'game')} "
            f"({listed(games)}), with {names}"
        )
        if comparison.lambdas:
            line += f" at λ = {', '.join(f'{x:g}' for x in comparison.lambdas)}"
        if settings:
            line += f", {settings}"
        if study.runs:
            line += f", {seeds_text(study.runs)}"
        lines.append(f"{line}.")
    return lines


def _settings_text(study: Study) -> str:
    """Return the settings that vary within a study, with their values: "step_size 0.0001, 0.001"."""
    values: dict[str, dict[str, None]] = {}
    for settings in settings_of(study.runs).values():
        for name, value in settings.items():
            values.setdefault(name, {})[setting_text(value)] = None
    return "; ".join(f"{name} {', '.join(texts)}" for name, texts in values.items())


def state_of(runs: Sequence[StoredRun]) -> list[str]:
    """Return what a reader must know first: runs that are missing, diverged or failed."""
    by = Counter(run.status for run in runs)
    over = f"{by['done'] + by['diverged']} of {counted(len(runs), 'run')} {is_or_are(len(runs))} complete"
    lines = []
    if by["running"]:
        started = f"{by['running']} {is_or_are(by['running'])} started but not finished"
        lines.append(f"The sweep is still running or was stopped: {over}, and {started}.")
    elif by["missing"]:
        lines.append(f"The sweep is not finished: {over}. Run the same command again to continue.")
    if by["diverged"]:
        lines.append(f"{counted(by['diverged'], 'run')} diverged: {_diverged_by_algorithm(runs)}. See Divergences.")
    if by["failed"]:
        lines.append(f"{counted(by['failed'], 'run')} failed. See Failures.")
    if runs and not by["done"]:
        lines.append("No run is done yet, so there is nothing to compare.")
    return lines


def _diverged_by_algorithm(runs: Sequence[StoredRun]) -> str:
    counts = Counter(str(run.spec["trace"]) for run in runs if run.status == "diverged")
    return ", ".join(f"{named(name)} {number:,}" for name, number in counts.most_common())


def seeds_text(runs: Sequence[StoredRun]) -> str:
    """Return the seeds of runs in few words: "seeds 0–7", "seed 3"."""
    found = sorted({int(run.spec["seed"]) for run in runs})
    if len(found) == 1:
        return f"seed {found[0]}"
    if found[-1] - found[0] + 1 == len(found):
        return f"seeds {found[0]}–{found[-1]}"
    return f"seeds {listed([str(seed) for seed in found], most=8)}"


# -- verdicts ------------------------------------------------------------------------------------------------


def verdicts_sections(studies: Sequence[Study], claims: Sequence[Claims]) -> list[Section]:
    """Return a section with the table of every claim, by study and score; none without claims."""
    found = [claim for by_score in claims for of_score in by_score.values() for claim in of_score]
    texts = list(dict.fromkeys(map(_text, found)))
    if not texts:
        return []
    columns = []
    for study, by_score in zip(studies, claims, strict=True):
        for stretch, of_score in by_score.items():
            name = study.comparison.name
            if len(by_score) > 1:
                name += f": {SHORT_SCORES[stretch]}"
            columns.append((name, {_text(claim): claim for claim in of_score}))
    rows = [[Cell(text), *(_verdict_cell(by_text.get(text)) for _, by_text in columns)] for text in texts]
    caption = (
        "✓ holds, ✗ does not hold, ? cannot tell. The number is a difference that is positive if the claim is true. "
        "Tabular studies have one-step learning in place of DQN. Each verdict is by itself; the section of a study "
        "also considers all of its claims together."
    )
    grid = Grid(caption, ("claim of the paper", *(name for name, _ in columns)), rows, stacked=True)
    return [Section("Verdicts", tables=[grid])]


def _text(claim: Claim) -> str:
    """Return the text of a claim with DQN as the baseline, so that it is the same for all studies."""
    return claim.text.replace("one-step learning", "DQN")


def _verdict_cell(claim: Claim | None) -> Cell:
    if claim is None:
        return Cell("")  # the claim is not about this score
    found = claim.difference
    if found is None:
        return Cell("?", kind="verdict unknown", title=claim.reason or "")
    below = ""
    if found.low is not None and found.high is not None:
        below = f"{signed_text(found.low)} to {signed_text(found.high)}"
    text = f"{SIGNS[claim.verdict]} {signed_text(found.value)}"
    return Cell(text, below=below, kind=KINDS[claim.verdict], title=claim.reason or claim.verdict)


def claims_json(studies: Sequence[Study], claims: Sequence[Claims]) -> list[dict[str, Any]]:
    """Return the verdicts of all studies for a program to read."""
    told = []
    for study, by_score in zip(studies, claims, strict=True):
        entries = [_claim_json(claim, stretch) for stretch, of_score in by_score.items() for claim in of_score]
        told.append({"study": study.comparison.name, "protocol": study.protocol, "claims": entries})
    return told


def _claim_json(claim: Claim, stretch: Stretch) -> dict[str, Any]:
    found = claim.difference
    return {
        "claim": claim.text,
        "score": stretch,
        "measure": claim.measure,
        "verdict": claim.verdict,
        "p_value": claim.p_value,
        "all_claims_together": claim.holm,
        "difference": found.value if found else None,
        "low": found.low if found else None,
        "high": found.high if found else None,
        "num_games": claim.num_games,
        "num_runs": found.num_runs if found else 0,
        "num_diverged": claim.num_diverged,
        "reason": claim.reason,
    }
