"""A report as a folder: the page, and beside it every chart and table as a file.

    index.html              the page, with everything below in one file
    figures/*.png|svg|pdf   charts
    tables/*.csv|tex        tables
    data/claims.json        verdicts on the paper's claims, for a program to read
    data/rankings.json      all algorithms, best first, and the difference of every two
    data/files.json         the files of this report and their checksums, so that the next one can remove them

Nothing is written or removed through a symbolic link inside the folder, and only files that are
exactly as a report wrote them are removed. The page is replaced last, and atomically: a report
that is interrupted leaves the previous one.
"""

import hashlib
import json
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from offtrace.experiments.results import Study
from offtrace.report.appendix import notes_section, provenance_section, trouble_sections
from offtrace.report.charts import FORMATS, alt, vl_convert
from offtrace.report.findings import QUESTION, Materials, materials_of
from offtrace.report.opening import opening
from offtrace.report.overview import (
    claims_json,
    claims_of,
    description_of,
    findings_of,
    is_about_the_paper,
    question_of,
    state_of,
    title_of,
    verdicts_sections,
)
from offtrace.report.page import Document, Section, chart_spec, charts_of, render
from offtrace.report.rankings import rankings_json
from offtrace.report.sections import study_part
from offtrace.report.wording import slug, unique
from offtrace.scores import published_comparison
from offtrace.writing import write_whole

FOLDERS = ("figures", "tables", "data")


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
    """Write the report into a folder, in place of an earlier one, and return the path of the page.

    The page starts with the findings of `materials`, by default the first study. After the studies
    come `extra_sections`, then the published tables, if a study has the paper's algorithms or there
    is no study. `progress(done, total)` is called for every chart. `formats` are those of the
    charts' files.
    """
    if unknown := [each for each in formats if each not in FORMATS]:
        raise ValueError(f"`formats` must be among {', '.join(FORMATS)}; got {unknown[0]!r}.")
    if materials is None:
        materials = materials_of(studies)
    document, texts = _document(studies, materials, extra_sections, command)
    page = render(document, formats)  # before anything is written, as it may raise

    output = Path(output)
    output.mkdir(parents=True, exist_ok=True)
    _check_no_links(output)
    checksums = {address: _put(output, address, text.encode("utf-8", "replace")) for address, text in texts.items()}
    checksums |= _put_charts(output, document, formats, progress)
    _put(output, "index.html", page.encode("utf-8", "replace"))
    _remove_old_files(output, checksums)
    return output / "index.html"


def _document(
    studies: Sequence[Study], materials: Materials, extra_sections: Sequence[Section], command: str
) -> tuple[Document, dict[str, str]]:
    """Return the page, and the texts of the other files by path."""
    with_paper = is_about_the_paper(studies)
    every = list(studies)
    if with_paper:
        every.append(Study(published_comparison(), ()))
    verdicts = [claims_of(study.comparison) for study in every]
    stems = _stems(studies)[: len(every)]
    parts = [study_part(*each) for each in zip(every, stems, verdicts, strict=True)]
    runs = [run for study in studies for run in study.runs]
    sections = [part.section for part in parts]
    sections[len(studies) : len(studies)] = extra_sections
    document = Document(
        title=title_of(studies),
        lead=QUESTION if with_paper else question_of(studies),
        state=state_of(runs),
        sections=[
            *verdicts_sections(every, verdicts),
            *sections,
            notes_section(),
            *trouble_sections(runs),
        ],
        foot=provenance_section(runs, command),
        found=findings_of(studies, materials),
        opening=opening(materials),
        ran=description_of(studies),
    )
    texts = {address: text for part in parts for address, text in part.files.items()}
    for name, data in (("claims", claims_json(every, verdicts)), ("rankings", rankings_json(studies))):
        texts[f"data/{name}.json"] = json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    return document, texts


def _stems(studies: Sequence[Study]) -> list[str]:
    """Return the first part of the names of the files of each study; the last is that of the published tables."""
    stems = unique(slug(study.comparison.name) for study in studies)
    if "published" in stems:
        stems[stems.index("published")] = "published-2"
    return [*stems, "published"]


# -- files ---------------------------------------------------------------------------------------------------


def _put_charts(
    output: Path, document: Document, formats: Sequence[str], progress: Callable[[int, int], None] | None
) -> dict[str, str]:
    """Write all charts, and return their checksums by path."""
    sections = [*document.sections]
    if document.opening is not None:
        sections.insert(0, document.opening)
    charts = charts_of(sections)
    checksums = {}
    for done, (name, chart) in enumerate(charts.items()):
        if progress:
            progress(done, len(charts))
        for each, data in _pictures(chart, formats):
            address = f"figures/{name}.{each}"
            checksums[address] = _put(output, address, data)
    if progress:
        progress(len(charts), len(charts))
    return checksums


def _pictures(chart: alt.LayerChart, formats: Sequence[str]) -> Iterable[tuple[str, bytes]]:
    """Return a chart in each format. All are made from one SVG, which takes a third of the time."""
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


def _check_no_links(output: Path) -> None:
    """Raise an error if a folder of the report is a symbolic link, before anything is written through it."""
    for name in FOLDERS:
        if (output / name).is_symlink():
            raise ValueError(
                f"`output` must have no symbolic links in place of its folders; got {str(output / name)!r}. "
                "Remove it, or choose another folder."
            )


def _put(output: Path, address: str, data: bytes) -> str:
    """Write a file atomically, and return its checksum."""
    path = output / address
    path.parent.mkdir(exist_ok=True)
    write_whole(path, [data])
    return hashlib.sha256(data).hexdigest()


def _remove_old_files(output: Path, checksums: Mapping[str, str]) -> None:
    """Remove the files of an earlier report that are not in this one, and write the list of files."""
    for address, checksum in _old_files(output).items():
        folder, _, name = address.partition("/")
        if folder in ("figures", "tables") and name == Path(name).name and address not in checksums:
            path = output / folder / name
            if _is_as_written(path, checksum):
                path.unlink()
    _put(output, "data/files.json", (json.dumps(dict(sorted(checksums.items())), indent=1) + "\n").encode())


def _old_files(output: Path) -> dict[str, object]:
    """Return the files of an earlier report and their checksums; empty if the list is missing or malformed."""
    try:
        files = json.loads((output / "data" / "files.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return files if isinstance(files, dict) else {}


def _is_as_written(path: Path, checksum: object) -> bool:
    """Return whether a path is a plain file, not a link, with this checksum."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return False
        return hashlib.sha256(path.read_bytes()).hexdigest() == checksum
    except (OSError, ValueError):  # missing, not readable, or a name with a NUL in it
        return False
