"""A report as a folder: the page, and beside it every chart and table as a file.

    index.html              the page: all that is below, in one file
    figures/*.png|svg|pdf   charts
    tables/*.csv|tex        tables
    data/claims.json        verdicts, for a program to read
    data/files.json         what was written here, and its checksums, so that the next report can take it away

Nothing is written or taken away through a symbolic link inside the folder, and no file is taken away that is not, to
the last byte, what a report wrote. The page is put in its place last and at once: a report that is interrupted leaves
the one before, or none.
"""

import hashlib
import json
import platform
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from offtrace.experiments import reasons
from offtrace.experiments.results import Study
from offtrace.experiments.store import StoredRun
from offtrace.report.charts import alt, vl_convert
from offtrace.report.findings import (
    ASKED,
    SHORT_SCORES,
    SIGNS,
    Materials,
    different_runs,
    findings,
    materials_of,
    scores_of,
)
from offtrace.report.names import counted, named
from offtrace.report.opening import opening
from offtrace.report.page import FORMATS, Cell, Document, Grid, Section, chart_spec, charts_of, render
from offtrace.report.sections import KINDS, listed, slug, study_part, unique
from offtrace.scores import Claim, claims
from offtrace.scores.comparison import Stretch, published_comparison
from offtrace.writing import write_whole

NOTES = (
    "A run has two scores. Its training score is the mean return of the training episodes that ended in the last "
    "tenth of its steps, under exploration; an algorithm that learns about the exploring policy optimises just "
    "that. Its evaluation is the mean return at ε ≈ 0 at its end; on an MDP it is the expected return of the "
    "greedy policy, without sampling. Early scores are those of the first tenth, and the area is the mean height "
    "of the learning curve. Returns are raw: neither discounted nor clamped. Where a study means something else, "
    "its captions say so.",
    "The inter-algorithm score of a game puts the worst algorithm's mean at 0 and the best one's at 1, within one "
    "λ. So scores compare algorithms at one λ, but not one λ with another. A level does: there 0 and 1 are the "
    "worst and the best mean of a game over all algorithms and all λ. Games count alike. Where the means of a "
    "game differ by no more than the noise of its seeds explains, its scale is as wide as that noise, and all are "
    "near ½: the game stays in, and weighs little. On an MDP the scale is exact: 0 is random play and 1 the "
    "optimal policy.",
    "DQN, and one-step learning, have no λ: one set of runs stands beside every λ. At λ = 0 Retrace, TB and Q(λ) "
    "are one algorithm, without a trace, which is trained once; where it differs from DQN, that is the work of "
    "windows, of the target policy and of two networks, not of a trace.",
    "Intervals are 95 % t intervals over seeds, with the two ends of each scale as they were found. Algorithms, λ "
    "and games share their seeds, so a difference is taken within each seed first. The published tables have one "
    "number for each game; there, games take the place of seeds. Verdicts are more careful: their intervals are "
    "wider, to allow for skewed scores. A claim holds if the interval is above 0 at every λ that it speaks of. It "
    "does not hold if at some λ the interval, widened for the number of λ, is below 0. Otherwise one cannot tell, "
    "nor with fewer than 3 seeds, or without any spread. Where nothing differs, a claim is decided wrongly in 5 % "
    "of the cases or fewer, by simulation. Beside it stands the verdict if all claims are to be right at once "
    "(Holm's method). No interval says how it would be on other games.",
    "A run diverged if a loss, a gradient or a value was no longer finite. To leave it out would favour the "
    "algorithm that fails, so it is compared, as the worst run of its game: with the lowest score of any run of that "
    "game, or that of random play where it is known and lower. Tables say how many runs of a cell diverged.",
    "IQM is the mean of the middle half of the runs. The optimality gap is how far runs stay below 1 on average. "
    "Both take runs beyond 0 and 1 as 0 and 1, and their intervals are bootstraps over seeds. What beats a "
    "baseline is the share of pairs of runs, one of each, in which it is the better one; ½ is no difference.",
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
    materials: Materials | None = None,
    extra_sections: Sequence[Section] = (),
    command: str = "",
    progress: Callable[[int, int], None] | None = None,
    formats: Sequence[str] = FORMATS,
) -> Path:
    """Writes the folder, or writes it anew, and gives back the page's path.

    The page opens with what was found, from `materials`, or else from the first study. The published tables are the
    last study, always; `extra_sections` come before them. `progress` is told how many of how many pictures are drawn.
    `formats`: those of the pictures.
    """
    if unknown := [each for each in formats if each not in FORMATS]:
        raise ValueError(f"`formats` must be of {', '.join(FORMATS)}; got {unknown[0]!r}.")
    output = Path(output)
    every = [*studies, Study(published_comparison(), ())]
    stems = [*unique(slug(study.comparison.name) for study in studies), "published"]
    if "published" in stems[:-1]:
        stems[stems.index("published")] = "published-2"
    answers = [
        {stretch: claims(study.comparison, stretch) for stretch in scores_of(study.comparison)} for study in every
    ]
    parts = [study_part(*each) for each in zip(every, stems, answers, strict=True)]
    runs = [run for study in studies for run in study.runs]
    if materials is None:
        materials = materials_of(studies)
    sections = [_summary(every, answers), *(part.section for part in parts[:-1])]
    sections += [*extra_sections, parts[-1].section, Section("Notes", NOTES), *_troubles(runs)]
    document = Document(
        _title(studies),
        ASKED,
        _state(runs),
        sections,
        _provenance(runs, command),
        findings(materials),
        opening(materials),
        _lead(studies),
    )
    names = [study.comparison.name for study in every]
    texts = {address: text for part in parts for address, text in part.files.items()}
    texts["data/claims.json"] = json.dumps(_told(names, answers), indent=2, ensure_ascii=False) + "\n"
    page = render(document, formats)  # before anything is written, as it may be refused

    output.mkdir(parents=True, exist_ok=True)
    _refuse_links(output)
    charts = charts_of([*([document.opening] if document.opening else []), *sections])
    written = {address: _put(output, address, text.encode("utf-8", "replace")) for address, text in texts.items()}
    for done, (name, chart) in enumerate(charts.items()):
        if progress:
            progress(done, len(charts))
        for each, data in _pictures(chart, formats):
            written[f"figures/{name}.{each}"] = _put(output, f"figures/{name}.{each}", data)
    if progress:
        progress(len(charts), len(charts))
    _put(output, "index.html", page.encode("utf-8", "replace"))
    _take_away(output, written)
    return output / "index.html"


# -- files ---------------------------------------------------------------------------------------------------


def _pictures(chart: alt.LayerChart, formats: Sequence[str]) -> Iterable[tuple[str, bytes]]:
    """A chart as an SVG, from which the others are made: three times as fast as each by itself."""
    if not formats:
        return []
    schema = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    spec = json.dumps(chart_spec(chart), ensure_ascii=False)
    svg = vl_convert.vegalite_to_svg(spec, vl_version=schema)
    makers = {
        "png": lambda: vl_convert.svg_to_png(svg, scale=2),
        "svg": svg.encode,
        "pdf": lambda: vl_convert.svg_to_pdf(svg),
    }
    return [(each, makers[each]()) for each in formats]


FOLDERS = ("figures", "tables", "data")


def _refuse_links(output: Path) -> None:
    """Before anything is written: what is behind a link is not the report's."""
    for name in FOLDERS:
        if (output / name).is_symlink():
            raise ValueError(
                f"`output` must be a folder of its own; {str(output / name)!r} is a symbolic link. Remove it, or "
                "choose another folder."
            )


def _put(output: Path, address: str, data: bytes) -> str:
    """A file that is there whole, or as it was before; its checksum."""
    path = output / address
    path.parent.mkdir(exist_ok=True)
    write_whole(path, [data])
    return hashlib.sha256(data).hexdigest()


def _take_away(output: Path, written: Mapping[str, str]) -> None:
    """What an earlier report wrote here and this one did not; never anything else."""
    try:
        before = json.loads((output / "data" / "files.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        before = {}
    for address, checksum in before.items() if isinstance(before, dict) else ():
        place, _, name = address.partition("/")
        if place in ("figures", "tables") and name == Path(name).name and address not in written:
            path = output / place / name
            if _is_as_written(path, checksum):
                path.unlink()
    _put(output, "data/files.json", (json.dumps(dict(sorted(written.items())), indent=1) + "\n").encode())


def _is_as_written(path: Path, checksum: object) -> bool:
    """Whether it is a plain file, not a link, and nobody has changed it since."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return False
        return hashlib.sha256(path.read_bytes()).hexdigest() == checksum
    except (OSError, ValueError):  # gone, not to be read, or a name with a NUL in it
        return False


# -- words ---------------------------------------------------------------------------------------------------


def _summary(studies: Sequence[Study], answers: Sequence[Mapping[Stretch, Sequence[Claim]]]) -> Section:
    """Every claim, by every study and score."""
    texts = list(dict.fromkeys(_plain(claim) for found in answers for claim in found["final"]))
    columns = []
    for study, found in zip(studies, answers, strict=True):
        for stretch, given in found.items():
            name = study.comparison.name
            if len(found) > 1:
                name += f": {SHORT_SCORES[stretch]}"
            columns.append((name, {_plain(claim): claim for claim in given}))
    rows = [[Cell(text), *(_brief(given.get(text)) for _, given in columns)] for text in texts]
    caption = (
        "✓ holds, ✗ does not hold, ? cannot tell: a difference that is positive if the claim is true. In tables "
        "one-step learning takes the place of DQN. Details are below, study by study."
    )
    grid = Grid(caption, ("claim of the paper", *(name for name, _ in columns)), rows, stacked=True)
    return Section("Verdicts", tables=[grid])


def _plain(claim: Claim) -> str:
    """Its text, whatever takes the place of DQN."""
    return claim.text.replace("one-step learning", "DQN")


def _brief(claim: Claim | None) -> Cell:
    if claim is None:
        return Cell("")  # not asked of this score
    if claim.difference is None:
        return Cell("?", kind="verdict unknown", title=claim.reason or "")
    found = claim.difference
    below = ""
    if found.low is not None and found.high is not None:
        below = f"{found.low:+z.2f} to {found.high:+z.2f}"
    text = f"{SIGNS[claim.verdict]} {found.value:+z.2f}"
    return Cell(text, below=below, kind=KINDS[claim.verdict], title=claim.reason or claim.verdict)


def _told(names: Sequence[str], answers: Sequence[Mapping[Stretch, Sequence[Claim]]]) -> list[dict[str, Any]]:
    return [
        {
            "study": name,
            "claims": [
                {
                    "claim": claim.text,
                    "score": stretch,
                    "measure": claim.measure,
                    "verdict": claim.verdict,
                    "p_value": claim.p_value,
                    "all_claims_together": claim.holm,
                    "difference": claim.difference.value if claim.difference else None,
                    "low": claim.difference.low if claim.difference else None,
                    "high": claim.difference.high if claim.difference else None,
                    "num_games": claim.num_games,
                    "num_runs": claim.difference.num_runs if claim.difference else 0,
                    "num_diverged": claim.num_diverged,
                    "reason": claim.reason,
                }
                for stretch, given in found.items()
                for claim in given
            ],
        }
        for name, found in zip(names, answers, strict=True)
    ]


def _title(studies: Sequence[Study]) -> str:
    names = [study.comparison.name.partition(",")[0] for study in studies]
    names = [name[0].lower() + name[1:] if name.startswith("The ") else name for name in names]
    names = list(dict.fromkeys(names))
    return f"Off-policy returns on {listed(names, most=3)}" if names else "Off-policy returns, as published"


def _lead(studies: Sequence[Study]) -> list[str]:
    """What was run, a sentence for each study; one whose runs are not stored tells what it compares."""
    if not studies:
        return ["What Munos et al. (2016) published, scored again."]
    lines = []
    for study in studies:
        comparison = study.comparison
        algorithms = [str(run.spec["trace"]) for run in study.runs] or list(comparison.algorithms)
        names = listed([named(name) for name in dict.fromkeys(algorithms)])
        games = [str(run.spec["env"]) for run in study.runs] or list(comparison.games)
        games = list(dict.fromkeys(games))
        at = f" at λ = {', '.join(f'{x:g}' for x in comparison.lambdas)}" if comparison.lambdas else ""
        drawn = f", {seeds(study.runs)}" if study.runs else ""
        lines.append(
            f"{comparison.name}: {counted(different_runs(study), 'run')} on {counted(len(games), 'game')} "
            f"({listed(games)}), with {names}{at}{drawn}."
        )
    return lines


def _state(runs: Sequence[StoredRun]) -> list[str]:
    """What a reader must know first; nothing where all is done."""
    by = Counter(run.status for run in runs)
    done, lines = f"{by['done'] + by['diverged']} of {counted(len(runs), 'run')} {_are(len(runs))} in", []
    if by["running"]:
        begun = f"{by['running']} {_are(by['running'])} begun and not finished"
        lines.append(f"The sweep still runs, or was stopped: {done}, and {begun}.")
    elif by["missing"]:
        lines.append(f"The sweep is not finished: {done}. Run it again to go on.")
    if by["diverged"]:
        lines.append(f"{counted(by['diverged'], 'run')} diverged: {_by_algorithm(runs)}. Why is listed below.")
    if by["failed"]:
        lines.append(f"{counted(by['failed'], 'run')} failed, and {_are(by['failed'])} listed below.")
    if runs and not by["done"]:
        lines.append("No run is done yet, so there is nothing to compare.")
    return lines


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _by_algorithm(runs: Sequence[StoredRun]) -> str:
    """Of those that diverged."""
    counts = Counter(str(run.spec["trace"]) for run in runs if run.status == "diverged")
    return ", ".join(f"{named(name)} {number:,}" for name, number in counts.most_common())


def _troubles(runs: Sequence[StoredRun]) -> list[Section]:
    """What went wrong, and what runs noted, a row for each reason."""
    told = {
        "Divergences": (reasons.divergences(runs), "Runs that diverged. They count as the worst run of their game."),
        "Failures": (
            reasons.failures(runs),
            "Runs that failed, and the last line of why. They count for nothing above.",
        ),
        "Events": (reasons.events(runs), "What runs noted as they went, in the words of the first of them."),
    }
    return [Section(title, tables=[_by_reason(*found)]) for title, found in told.items() if found[0]]


def _by_reason(groups: Sequence[reasons.Group], caption: str) -> Grid:
    rows = []
    for group in groups[: reasons.MOST]:
        names = Counter(named(str(run.spec["trace"])) for run in group.runs)
        rows.append(
            [
                Cell(group.reason, kind="code"),
                Cell(f"{len(group.runs):,}", number=float(len(group.runs))),
                Cell(", ".join(f"{name} {number:,}" for name, number in names.most_common())),
                Cell(reasons.first_runs(group.runs)),
            ]
        )
    if len(groups) > reasons.MOST:
        rest = sum(len(group.runs) for group in groups[reasons.MOST :])
        rows.append([Cell(f"{len(groups) - reasons.MOST:,} other reasons"), Cell(f"{rest:,}"), Cell(""), Cell("")])
    return Grid(caption, ("reason", "runs", "by algorithm", "which"), rows, stacked=True)


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
    if found[-1] - found[0] + 1 == len(found):
        return f"seeds {found[0]}–{found[-1]}"
    return f"seeds {listed([str(seed) for seed in found], most=8)}"
