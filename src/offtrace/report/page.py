"""The page of a report: one HTML file that contains everything and loads nothing from a network.

Sections of text, tables and charts are rendered as HTML. All names and texts are escaped here, and
the charts' data are JSON that cannot end its own element. A content security policy in the page's
head allows the two scripts and the style sheet of the page, by their checksums, and nothing else:
no address, no `eval`.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from offtrace.report.charts import FORMATS, alt, vl_convert

__all__ = [
    "FORMATS",
    "Cell",
    "Document",
    "Grid",
    "Section",
    "chart_spec",
    "charts_of",
    "heading",
    "render",
    "script_json",
]

HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb]"
)
"""Invisible characters that change the text around them, such as its direction, or that cannot be written."""
UNDRAWABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
"""Characters that an SVG cannot hold; drawing one with them would crash the renderer."""


@dataclass(frozen=True)
class Cell:
    """A cell of a table."""

    text: str
    number: float | None = None
    """Sort key; the cell is then aligned to the right."""
    below: str = ""
    """A second, smaller line: an interval or a reason."""
    kind: str = ""
    """A class of the style sheet: `best`, `verdict yes`, `verdict no`, `verdict unknown`, `code`."""
    title: str = ""
    """Tooltip."""


@dataclass(frozen=True)
class Grid:
    """A table."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    sortable: bool = False
    stacked: bool = False
    """Whether rows become cards on a narrow screen; otherwise the table scrolls sideways."""
    files: Sequence[str] = ()
    """Files with the same table, relative to the page's folder."""


@dataclass(frozen=True)
class Section:
    """A section of the page: a title, paragraphs, charts, tables, then subsections.

    `charts` maps the names of the charts' files to charts.
    """

    title: str
    paragraphs: Sequence[str] = ()
    charts: Mapping[str, alt.LayerChart] = field(default_factory=dict)
    tables: Sequence[Grid] = ()
    parts: Sequence["Section"] = ()
    small: bool = False
    """Whether its charts are small, several in a row."""


@dataclass(frozen=True)
class Document:
    """A whole page: the question, the findings, the charts that show them, then the sections."""

    title: str
    lead: str
    """The question, or the subject."""
    state: Sequence[str]
    """What a reader must know first: that runs failed, or are still missing."""
    sections: Sequence[Section]
    foot: Section
    found: Sequence[str] = ()
    """The findings, in a few sentences; the text before the colon is the subject."""
    opening: Section | None = None
    """Charts that show the findings, side by side."""
    ran: Sequence[str] = ()
    """What was run, below the charts."""


def render(document: Document, formats: Sequence[str] = FORMATS) -> str:
    """Return the page as HTML. Charts link to their pictures, `figures/name.png` and so on, in these formats."""
    style = _file("page.css")
    behaviour = _in_own_scope(_file("page.js"))
    library = _library()
    specs: dict[str, Any] = {}
    opening = ""
    if document.opening is not None:
        opening = _section(document.opening, "opening", specs, formats)
    sections = [_section(each, f"part-{i}", specs, formats) for i, each in enumerate(document.sections, 1)]
    foot = _section(document.foot, "provenance", specs, formats)
    contents = [(f"part-{i}", each.title) for i, each in enumerate(document.sections, 1)]
    links = [*contents, ("provenance", document.foot.title)]
    states = "".join(f'<p class="state">{_text(line)}</p>' for line in document.state)
    pieces = {
        "policy": _policy([behaviour, library], [style]),
        "title": _text(document.title),
        "style": style,
        "behaviour": behaviour,
        "lead": f'<p class="lead">{_text(document.lead)}</p>{_found(document.found)}{states}',
        "opening": opening + "".join(f'<p class="quiet">{_text(line)}</p>' for line in document.ran),
        "contents": "".join(f'<li><a href="#{anchor}">{_text(title)}</a></li>' for anchor, title in links),
        "body": "\n".join(sections),
        "foot": foot,
        "charts": script_json(specs),
        "library": library,
    }
    # In one pass, so that braces in inserted texts are not replaced.
    return re.sub(r"\{(\w+)\}", lambda found: pieces[found[1]], _file("page.html"))


def charts_of(sections: Sequence[Section]) -> dict[str, alt.LayerChart]:
    """Return all charts of sections and their subsections, by name."""
    found: dict[str, alt.LayerChart] = {}
    for section in sections:
        found |= section.charts
        found |= charts_of(section.parts)
    return found


def chart_spec(chart: alt.LayerChart) -> dict[str, Any]:
    """Return the specification of a chart, with characters that an SVG cannot hold escaped."""
    return _drawable(chart.to_dict())


def _drawable(value: Any) -> Any:
    r"""Return a value with characters that an SVG cannot hold escaped in all its texts.

    >>> print(_drawable({"name": ["a\x1b[31m"]})["name"][0])
    a\x1b[31m
    """
    if isinstance(value, dict):
        return {_drawable(name): _drawable(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_drawable(each) for each in value]
    if isinstance(value, str):
        return UNDRAWABLE.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), value)
    return value


def script_json(value: Any) -> str:
    r"""Return JSON for a script element: it cannot end the element, nor start a comment or another script in it.

    >>> script_json({"name": "</script><!--"})
    '{"name":"\\u003c/script\\u003e\\u003c!--"}'
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    signs = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
    return re.sub("[<>&\u2028\u2029]", lambda found: signs[found[0]], HIDDEN.sub("\ufffd", text))


# -- pieces --------------------------------------------------------------------------------------------------


def _found(sentences: Sequence[str]) -> str:
    """Return the findings as a list, with the subject of each sentence in bold."""
    if not sentences:
        return ""
    items = []
    for sentence in sentences:
        subject, colon, rest = sentence.partition(":")
        items.append(f"<li><strong>{_text(subject)}{colon}</strong> {_text(rest)}</li>")
    return f'<ol class="found">{"".join(items)}</ol>'


def _section(section: Section, anchor: str, specs: dict[str, Any], formats: Sequence[str], level: int = 2) -> str:
    """Return a section as HTML. One with a single chart and nothing else has no title but that of the chart."""
    others = section.tables or section.parts or section.paragraphs or section.small
    is_single_chart = level > 2 and len(section.charts) == 1 and not others
    inner = level if is_single_chart else level + 1
    figures = [_figure(name, chart, inner, specs, formats) for name, chart in section.charts.items()]
    grids = [_grid(each) for each in section.tables]
    parts = [_section(each, f"{anchor}-{i}", specs, formats, level + 1) for i, each in enumerate(section.parts, 1)]
    if len(figures) == len(grids) == 1:
        body = ['<div class="pair">', *grids, *figures, "</div>"]
    else:
        body = grids
        if figures:
            kind = "charts small" if section.small else "charts"
            body = [f'<div class="{kind}">', *figures, "</div>", *grids]
    title = [] if is_single_chart else [f"<h{level}>{_text(section.title)}</h{level}>"]
    paragraphs = [f"<p>{_prose(each)}</p>" for each in section.paragraphs]
    return "\n".join([f'<section id="{anchor}">', *title, *paragraphs, *body, *parts, "</section>"])


def _figure(name: str, chart: alt.LayerChart, level: int, specs: dict[str, Any], formats: Sequence[str]) -> str:
    """Return a chart as a figure. Its title becomes a heading, as text in the drawing cannot wrap."""
    if name in specs or not re.fullmatch(r"[\w.-]+", name):
        raise ValueError(f"`charts` must have unique names of letters, digits, - and _; got {name!r}.")
    spec = chart_spec(chart)
    title, lines = heading(spec)
    specs[name] = {key: value for key, value in spec.items() if key not in ("title", "$schema", "background")}
    subtitle = " ".join(lines)
    address = html.escape(name, quote=True)
    links = "".join(f'<a href="figures/{address}.{each}">{each.upper()}</a>' for each in formats)
    return (
        f"<figure><figcaption><h{level}>{_text(title)}</h{level}><p>{_text(subtitle)}</p></figcaption>"
        f'<div class="plot" role="img" aria-label="{_text(f"{title}. {subtitle}")}" data-chart="{address}"></div>'
        f'<p class="links">{links}</p></figure>'
    )


def heading(spec: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return the title of a chart and the lines of its subtitle."""
    title = spec.get("title") or {}
    if isinstance(title, str):
        return title, []
    text, lines = (title.get(key) or [] for key in ("text", "subtitle"))
    if not isinstance(text, str):
        text = " ".join(text)
    if isinstance(lines, str):
        lines = [lines]
    return text, list(lines)


def _grid(grid: Grid) -> str:
    numeric = [any(row[i].number is not None for row in grid.rows) for i in range(len(grid.header))]
    header = "".join(
        f'<th scope="col"{_kind("number" if is_number else "")}>{_text(name)}</th>'
        for name, is_number in zip(grid.header, numeric, strict=True)
    )
    rows = "\n".join(
        "<tr>" + "".join(_cell(cell, grid.header[i], numeric[i], i == 0) for i, cell in enumerate(row)) + "</tr>"
        for row in grid.rows
    )
    kinds = _kind("sortable" if grid.sortable else "", "stacked" if grid.stacked else "")
    links = "".join(
        f'<a href="{html.escape(file, quote=True)}">{_text(file.rpartition(".")[2].upper())}</a>'
        for file in grid.files
    )
    if links:
        links = f'<p class="links">{links}</p>'
    return (
        f'<div class="grid"><p class="caption" aria-hidden="true">{_text(grid.caption)}</p>'
        f'<div class="scroll" role="region" aria-label="{_text(grid.caption)}" tabindex="0">'
        f'<table{kinds} aria-label="{_text(grid.caption)}">'
        f"<thead><tr>{header}</tr></thead>\n<tbody>{rows}</tbody></table></div>{links}</div>"
    )


def _cell(cell: Cell, column: str, is_number: bool, is_first: bool) -> str:
    sort = f' data-sort="{cell.number!r}"' if cell.number is not None else ""
    title = f' title="{_text(cell.title)}"' if cell.title else ""
    tag, place = "td", f' data-label="{_text(column)}"'
    if is_first:
        tag, place = "th", ' scope="row"'
    text = _text(cell.text)
    kind = cell.kind
    if kind.startswith("verdict"):
        text = f'<span class="{kind}">{text}</span>'
        kind = ""
    elif kind == "code":
        text = f"<code>{text}</code>"
        kind = ""
    below = ""
    if cell.below:
        below = f'<span class="{"range" if is_number else "why"}">{_text(cell.below)}</span>'
    inner = f"<span>{text}{below}</span>" if text else ""
    return f"<{tag}{place}{_kind('number' if is_number else '', kind)}{sort}{title}>{inner}</{tag}>"


def _kind(*names: str) -> str:
    """Return the class attribute of an element; empty without names."""
    shown = " ".join(name for name in names if name)
    return f' class="{shown}"' if shown else ""


def _prose(text: str) -> str:
    """Return a text escaped, with parts in backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", _text(text))


def _text(text: str) -> str:
    """Return a text escaped, on one line, without invisible characters."""
    return html.escape(HIDDEN.sub("\ufffd", " ".join(text.split())), quote=True)


# -- scripts -------------------------------------------------------------------------------------------------


def _policy(scripts: Sequence[str], styles: Sequence[str]) -> str:
    """Return the content security policy of the page."""
    allowed = {"script-src": scripts, "style-src": styles}
    rules = [f"{what} {' '.join(_checksum(each) for each in texts)}" for what, texts in allowed.items()]
    return "; ".join(["default-src 'none'", *rules, "img-src data:", "base-uri 'none'", "form-action 'none'"])


def _checksum(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def _library() -> str:
    """Return Vega, Vega-Lite and Vega-Embed from vl-convert: about a megabyte, without a download."""
    version = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    return _in_own_scope(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=version))


def _in_own_scope(script: str) -> str:
    """Return a script whose names do not clash with those of other scripts."""
    if "</script" in script.lower() or "<!--" in script:
        raise ValueError("a script must not contain text that ends its element.")
    return f"(() => {{\n{script}\n}})();"


@cache
def _file(name: str) -> str:
    return (resources.files("offtrace.report") / name).read_text(encoding="utf-8")
