"""A report as a folder: the page, and beside it every chart and table as a file.

    index.html              the page: all that is below, in one file
    figures/*.png|svg|pdf   charts
    tables/*.csv|tex        tables
    data/claims.json        verdicts, for a program to read
    data/files.json         what was written here, so that the next report can take it away

The page is put in its place last and at once: a report that is interrupted leaves the one before, or none.
"""

import json
import os
import platform
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from offtrace.experiments.results import Study
from offtrace.experiments.store import StoredRun
from offtrace.report.charts import alt, vl_convert
from offtrace.report.names import counted, named
from offtrace.report.page import FORMATS, Cell, Document, Grid, Section, charts_of, render
from offtrace.report.sections import listed, slug, study_part, unique
from offtrace.scores import Claim, claims
from offtrace.scores.comparison import published_comparison

NOTES = (
    "A run's final score is the mean return of the training episodes that ended in the last tenth of its steps, its "
    "early score that of the first tenth, and its area the mean height of its learning curve. Returns are raw: "
    "neither discounted nor clamped. Where a study means something else by a score, its captions say so.",
    "The inter-algorithm score of a game puts the worst algorithm's mean at 0 and the best one's at 1, within one λ. "
    "So scores compare algorithms at one λ, but not one λ with another. A level does: there 0 and 1 are the worst "
    "and the best mean of a game over all algorithms and all λ. Games count alike; where all algorithms are equal, "
    "each gets ½.",
    "DQN, and one-step learning, have no λ: one set of runs stands beside every λ. At λ = 0 Retrace, TB and Q(λ) are "
    "one algorithm, without a trace; where it differs from DQN, that is the work of windows, of the target policy "
    "and of two networks, not of a trace.",
    "Intervals are the middle 95 % of what comes out when the seeds of every cell are drawn again, 2,000 times, with "
    "the two ends of each scale as they were found. The published tables have one number for each game; there, games "
    "are drawn instead. A claim holds if its interval is above 0, does not hold if it is below, and otherwise one "
    "cannot tell; one that speaks of several λ has an interval for each, so wide that all are right at once 95 % of "
    "the time, holds if all are above, and does not if one is below. With few seeds such intervals are too narrow: a "
    "mean of 3 is covered about 86 % of the time rather than 95 %. Nor do they say how it would be on other games.",
    "IQM is the mean of the middle half of the runs. The optimality gap is how far runs stay below 1 on average. "
    "What beats a baseline is the share of pairs of runs, one of each, in which it is the better one; ½ is no "
    "difference.",
)
PROVENANCE = {
    "made_at": "when (UTC)",
    "command": "command",
    "version": "offtrace",
    "commit": "commit",
    "python": "Python",
    "jax": "JAX",
    "platform": "platform",
    "machine": "machine",
}


def write(
    output: str | Path,
    studies: Sequence[Study],
    *,
    extra_sections: Sequence[Section] = (),
    command: str = "",
    progress: Callable[[int, int], None] | None = None,
    formats: Sequence[str] = FORMATS,
) -> Path:
    """Writes the folder, or writes it anew, and gives back the page's path.

    The published tables are the last study, always. `extra_sections` come before them. `progress` is told how many
    of how many pictures are drawn. `formats`: those of the pictures.
    """
    if unknown := [each for each in formats if each not in FORMATS]:
        raise ValueError(f"`formats` must be of {', '.join(FORMATS)}; got {unknown[0]!r}.")
    output = Path(output)
    every = [*studies, Study(published_comparison(), ())]
    stems = [*unique(slug(study.comparison.name) for study in studies), "published"]
    if "published" in stems[:-1]:
        stems[stems.index("published")] = "published-2"
    answers = [claims(study.comparison) for study in every]
    parts = [study_part(*each) for each in zip(every, stems, answers, strict=True)]
    runs = [run for study in studies for run in study.runs]
    sections = [part.section for part in parts[:-1]]
    sections += [*extra_sections, parts[-1].section, Section("Notes", NOTES), *_failures(runs)]
    document = Document(_title(studies), _lead(studies), _state(runs), sections, _provenance(runs, command))
    names = [study.comparison.name for study in every]
    texts = {address: text for part in parts for address, text in part.files.items()}
    texts["data/claims.json"] = json.dumps(_told(names, answers), indent=2, ensure_ascii=False) + "\n"
    page = render(document, formats)  # before anything is written, as it may be refused

    output.mkdir(parents=True, exist_ok=True)
    charts = charts_of(sections)
    written = [_put(output, address, text.encode("utf-8", "replace")) for address, text in texts.items()]
    for done, (name, chart) in enumerate(charts.items()):
        if progress:
            progress(done, len(charts))
        written += [_put(output, f"figures/{name}.{each}", data) for each, data in _pictures(chart, formats)]
    if progress:
        progress(len(charts), len(charts))
    index = output / _put(output, "index.html", page.encode("utf-8", "replace"))
    _take_away(output, written)
    return index


# -- files ---------------------------------------------------------------------------------------------------


def _pictures(chart: alt.LayerChart, formats: Sequence[str]) -> Iterable[tuple[str, bytes]]:
    """A chart as an SVG, from which the others are made: three times as fast as each by itself."""
    if not formats:
        return []
    schema = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    spec = json.dumps(chart.to_dict(), ensure_ascii=False).encode("utf-8", "replace").decode()
    svg = vl_convert.vegalite_to_svg(spec, vl_version=schema)
    makers = {
        "png": lambda: vl_convert.svg_to_png(svg, scale=2),
        "svg": svg.encode,
        "pdf": lambda: vl_convert.svg_to_pdf(svg),
    }
    return [(each, makers[each]()) for each in formats]


def _put(output: Path, address: str, data: bytes) -> str:
    """A file that is there whole, or as it was before."""
    path = output / address
    path.parent.mkdir(exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        new.write_bytes(data)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
    return address


def _take_away(output: Path, written: Sequence[str]) -> None:
    """What an earlier report wrote here and this one did not; never anything else."""
    record = output / "data" / "files.json"
    try:
        before = json.loads(record.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        before = []
    for address in before if isinstance(before, list) else []:
        place, _, name = str(address).partition("/")
        if place in ("figures", "tables") and name == Path(name).name and address not in written:
            (output / place / name).unlink(missing_ok=True)
    _put(output, "data/files.json", (json.dumps(sorted(written), indent=1) + "\n").encode())


# -- words ---------------------------------------------------------------------------------------------------


def _told(names: Sequence[str], answers: Sequence[Sequence[Claim]]) -> list[dict[str, Any]]:
    return [
        {
            "study": name,
            "claims": [
                {
                    "claim": claim.text,
                    "measure": claim.measure,
                    "verdict": claim.verdict,
                    "difference": claim.difference.value if claim.difference else None,
                    "low": claim.difference.low if claim.difference else None,
                    "high": claim.difference.high if claim.difference else None,
                    "num_games": claim.num_games,
                    "num_runs": claim.difference.num_runs if claim.difference else 0,
                    "reason": claim.reason,
                }
                for claim in found
            ],
        }
        for name, found in zip(names, answers, strict=True)
    ]


def _title(studies: Sequence[Study]) -> str:
    names = list(dict.fromkeys(study.comparison.name.partition(",")[0] for study in studies))
    return f"Off-policy returns on {listed(names, most=3)}" if names else "Off-policy returns, as published"


def _lead(studies: Sequence[Study]) -> str:
    """One sentence; a study whose runs are not stored tells what it compares."""
    if not studies:
        return "What Munos et al. (2016) published, scored again."
    runs, games, algorithms, num_runs = [], [], [], 0
    for study in studies:
        comparison = study.comparison
        runs += study.runs
        games += [str(run.spec["env"]) for run in study.runs] or comparison.games
        algorithms += [str(run.spec["trace"]) for run in study.runs] or comparison.algorithms
        cells = comparison.runs.get("final", {}).values()
        num_runs += sum(run.status == "done" for run in study.runs) if study.runs else sum(map(len, cells))
    games, algorithms = list(dict.fromkeys(games)), [named(name) for name in dict.fromkeys(algorithms)]
    lambdas = sorted({x for study in studies for x in study.comparison.lambdas})
    at = f" at λ = {', '.join(f'{x:g}' for x in lambdas)}" if lambdas else ""
    drawn = f", {seeds(runs)}" if runs and all(study.runs for study in studies) else ""
    return (
        f"{counted(len(games), 'game')} ({listed(games)}), trained with {listed(algorithms)}{at}{drawn}: "
        f"{counted(num_runs, 'run')}, held against what Munos et al. (2016) found on Atari."
    )


def _state(runs: Sequence[StoredRun]) -> list[str]:
    """What a reader must know first; nothing where all is done."""
    by = Counter(run.status for run in runs)
    done, lines = f"{by['done']} of {counted(len(runs), 'run')} {_are(len(runs))} in", []
    if by["running"]:
        begun = f"{by['running']} {_are(by['running'])} begun and not finished"
        lines.append(f"The sweep still runs, or was stopped: {done}, and {begun}.")
    elif by["missing"]:
        lines.append(f"The sweep is not finished: {done}. Run it again to go on.")
    if by["failed"]:
        lines.append(f"{counted(by['failed'], 'run')} failed, and {_are(by['failed'])} listed below.")
    if runs and not by["done"]:
        lines.append("No run is done yet, so there is nothing to compare.")
    return lines


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _failures(runs: Sequence[StoredRun]) -> list[Section]:
    failed = [run for run in runs if run.status == "failed"]
    if not failed:
        return []
    rows = [
        [
            Cell(str(run.spec["env"])),
            Cell(named(str(run.spec["trace"]))),
            Cell(f"{run.spec['lambda_']:g}", number=float(run.spec["lambda_"])),
            Cell(str(run.spec["seed"]), number=float(run.spec["seed"])),
            Cell(((run.failure or "").strip().splitlines() or ["no reason known"])[-1][:400], kind="code"),
        ]
        for run in failed
    ]
    header = ("game", "algorithm", "λ", "seed", "reason")
    caption = "Runs that failed, and the last line of why. They count for nothing above."
    return [Section("Failures", tables=[Grid(caption, header, rows, stacked=True)])]


def _provenance(runs: Sequence[StoredRun], command: str) -> Section:
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    made = (
        f"This page was made on {now} with offtrace {version('offtrace')}, Altair {alt.__version__}, vl-convert "
        f"{version('vl-convert-python')} and Python {platform.python_version()}"
        + (f", by: {command}" if command else "")
    )
    if not runs:
        return Section("Provenance", [f"{made}."])
    groups: dict[tuple[str | None, ...], list[StoredRun]] = {}
    for run in runs:
        groups.setdefault((run.file.name, *(run.provenance.get(name) for name in PROVENANCE)), []).append(run)
    rows = [
        [
            Cell(file or ""),
            Cell(str(len(group)), number=float(len(group))),
            Cell(seeds(group).partition(" ")[2]),
            *(
                Cell(_known(name, value), kind="code" if name == "command" else "")
                for name, value in zip(PROVENANCE, values, strict=True)
            ),
        ]
        for (file, *values), group in groups.items()
    ]
    header = ("file", "runs", "seeds", *PROVENANCE.values())
    return Section(
        "Provenance", [f"{made}."], tables=[Grid("What the runs were made with.", header, rows, stacked=True)]
    )


def _known(name: str, value: str | None) -> str:
    """A time to the second."""
    return re.sub(r"T(\d\d:\d\d:\d\d).*", r" \1", value) if name == "made_at" and value else value or "–"


def seeds(runs: Sequence[StoredRun]) -> str:
    """Which, in few words: "seeds 0–7", "seed 3"."""
    found = sorted({int(run.spec["seed"]) for run in runs})
    if len(found) == 1:
        return f"seed {found[0]}"
    if found == list(range(found[0], found[-1] + 1)):
        return f"seeds {found[0]}–{found[-1]}"
    return f"seeds {listed([str(seed) for seed in found], most=8)}"
