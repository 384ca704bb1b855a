"""The page of a report: one HTML file with everything in it, which asks no network for anything.

Sections of text, tables and charts go in, and HTML comes out. Names and texts of others are data: all of them are
escaped here, and what charts need is JSON that cannot end its own element. A policy in the page's head allows the two
scripts and the one style that are in it, by their checksums, and nothing else: no address, no `eval`.
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

from offtrace.report.charts import alt, vl_convert

FORMATS = ("png", "svg", "pdf")
HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb]"
)
"""What cannot be seen but changes what is, such as the direction of writing, or cannot be written at all."""
UNDRAWABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
"""What an SVG cannot hold; who draws one with it ends the program."""


@dataclass(frozen=True)
class Cell:
    """Of a table: text, and what else a reader sees of it."""

    text: str
    number: float | None = None
    """By which it sorts; it then stands on the right."""
    below: str = ""
    """A second line, smaller: an interval, a reason."""
    kind: str = ""
    """A class of the style: `best`, `verdict yes`, `verdict no`, `verdict unknown`, `code`."""
    title: str = ""
    """What a pointer that rests on it is told."""


@dataclass(frozen=True)
class Grid:
    """A table."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    sortable: bool = False
    stacked: bool = False
    """Whether its rows become cards on a phone, rather than move sideways."""
    files: Sequence[str] = ()
    """The same as files, from the page's folder."""


@dataclass(frozen=True)
class Section:
    """A part of the page: a title, paragraphs, tables, charts, then smaller parts.

    `charts` has a name for each, which is that of its files.
    """

    title: str
    paragraphs: Sequence[str] = ()
    charts: Mapping[str, alt.LayerChart] = field(default_factory=dict)
    tables: Sequence[Grid] = ()
    parts: Sequence["Section"] = ()
    small: bool = False
    """Whether its charts are many and small."""


@dataclass(frozen=True)
class Document:
    """A whole page: what was asked, what was found, the pictures that show it, then the rest."""

    title: str
    lead: str
    """What was asked, or what this is about."""
    state: Sequence[str]
    """What a reader must know before anything else: that runs failed, or are still to come."""
    sections: Sequence[Section]
    foot: Section
    found: Sequence[str] = ()
    """What was found, in a few sentences; what stands before a colon is their subject."""
    opening: Section | None = None
    """Pictures that show it, side by side."""
    ran: Sequence[str] = ()
    """What was run, after the pictures."""


def render(document: Document, formats: Sequence[str] = FORMATS) -> str:
    """The page. Charts link to their pictures, `figures/name.png` and so on, in these formats."""
    style, behaviour, library = _file("page.css"), _closed(_file("page.js")), _library()
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
    # one pass, so that nothing that was put in is looked at again
    return re.sub(r"\{(\w+)\}", lambda found: pieces[found[1]], _file("page.html"))


def charts_of(sections: Sequence[Section]) -> dict[str, alt.LayerChart]:
    """All of them, by name."""
    found: dict[str, alt.LayerChart] = {}
    for section in sections:
        found |= section.charts
        found |= charts_of(section.parts)
    return found


def chart_spec(chart: alt.LayerChart) -> dict[str, Any]:
    """What is drawn, with names that can be: what an SVG cannot hold is spelt out."""
    return _drawable(chart.to_dict())


def _drawable(value: Any) -> Any:
    r"""
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
    r"""JSON for a script element: it cannot end the element, nor begin a comment or another script in it.

    >>> script_json({"name": "</script><!--"})
    '{"name":"\\u003c/script\\u003e\\u003c!--"}'
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    signs = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
    return re.sub("[<>&\u2028\u2029]", lambda found: signs[found[0]], HIDDEN.sub("\ufffd", text))


# -- pieces --------------------------------------------------------------------------------------------------


def _found(sentences: Sequence[str]) -> str:
    """A list, with the subject of each sentence in bold."""
    if not sentences:
        return ""
    items = []
    for sentence in sentences:
        subject, colon, rest = sentence.partition(":")
        items.append(f"<li><strong>{_text(subject)}{colon}</strong> {_text(rest)}</li>")
    return f'<ol class="found">{"".join(items)}</ol>'


def _section(section: Section, anchor: str, specs: dict[str, Any], formats: Sequence[str], level: int = 2) -> str:
    """A chart that is alone has its own title as the section's, below that of a study."""
    others = section.tables or section.parts or section.paragraphs or section.small
    alone = level > 2 and len(section.charts) == 1 and not others
    inner = level if alone else level + 1
    figures = [_figure(name, chart, inner, specs, formats) for name, chart in section.charts.items()]
    grids = [_grid(each) for each in section.tables]
    parts = [_section(each, f"{anchor}-{i}", specs, formats, level + 1) for i, each in enumerate(section.parts, 1)]
    if len(figures) == len(grids) == 1:
        body = ['<div class="pair">', *grids, *figures, "</div>"]
    else:
        kind = "charts small" if section.small else "charts"
        body = [*([f'<div class="{kind}">', *figures, "</div>"] if figures else []), *grids]
    return "\n".join(
        [
            f'<section id="{anchor}">',
            *([] if alone else [f"<h{level}>{_text(section.title)}</h{level}>"]),
            *(f"<p>{_prose(each)}</p>" for each in section.paragraphs),
            *body,
            *parts,
            "</section>",
        ]
    )


def _figure(name: str, chart: alt.LayerChart, level: int, specs: dict[str, Any], formats: Sequence[str]) -> str:
    """Its title is taken out of the drawing, where it could not wrap."""
    if name in specs or not re.fullmatch(r"[\w.-]+", name):
        raise ValueError(f"`charts` must have names of letters, digits, - and _, a different one each; got {name!r}.")
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
    """The title of a chart, and the lines under it."""
    title = spec.get("title") or {}
    if isinstance(title, str):
        return title, []
    text, lines = (title.get(key) or [] for key in ("text", "subtitle"))
    return text if isinstance(text, str) else " ".join(text), [lines] if isinstance(lines, str) else list(lines)


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
    return (
        f'<div class="grid"><p class="caption" aria-hidden="true">{_text(grid.caption)}</p>'
        f'<div class="scroll" role="region" aria-label="{_text(grid.caption)}" tabindex="0">'
        f'<table{kinds} aria-label="{_text(grid.caption)}">'
        f"<thead><tr>{header}</tr></thead>\n<tbody>{rows}</tbody></table></div>"
        + (f'<p class="links">{links}</p>' if links else "")
        + "</div>"
    )


def _cell(cell: Cell, column: str, is_number: bool, is_first: bool) -> str:
    sort = f' data-sort="{cell.number!r}"' if cell.number is not None else ""
    title = f' title="{_text(cell.title)}"' if cell.title else ""
    tag, place = ("th", ' scope="row"') if is_first else ("td", f' data-label="{_text(column)}"')
    text, kind = _text(cell.text), cell.kind
    if kind.startswith("verdict"):
        text, kind = f'<span class="{kind}">{text}</span>', ""
    elif kind == "code":
        text, kind = f"<code>{text}</code>", ""
    below = f'<span class="{"range" if is_number else "why"}">{_text(cell.below)}</span>' if cell.below else ""
    inner = f"<span>{text}{below}</span>" if text else ""
    return f"<{tag}{place}{_kind('number' if is_number else '', kind)}{sort}{title}>{inner}</{tag}>"


def _kind(*names: str) -> str:
    shown = " ".join(name for name in names if name)
    return f' class="{shown}"' if shown else ""


def _prose(text: str) -> str:
    """Escaped, and what is in backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", _text(text))


def _text(text: str) -> str:
    """Escaped, on one line, with nothing hidden in it."""
    return html.escape(HIDDEN.sub("\ufffd", " ".join(text.split())), quote=True)


# -- scripts -------------------------------------------------------------------------------------------------


def _policy(scripts: Sequence[str], styles: Sequence[str]) -> str:
    allowed = {"script-src": scripts, "style-src": styles}
    rules = [f"{what} {' '.join(_checksum(each) for each in texts)}" for what, texts in allowed.items()]
    return "; ".join(["default-src 'none'", *rules, "img-src data:", "base-uri 'none'", "form-action 'none'"])


def _checksum(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def _library() -> str:
    """Vega, Vega-Lite and Vega-Embed, as vl-convert has them: about a megabyte, and nothing to download."""
    version = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    return _closed(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=version))


def _closed(script: str) -> str:
    """With names of its own, whatever other scripts there are."""
    if "</script" in script.lower() or "<!--" in script:
        raise ValueError("a script must not have what would end its element.")
    return f"(() => {{\n{script}\n}})();"


@cache
def _file(name: str) -> str:
    return (resources.files("offtrace.report") / name).read_text(encoding="utf-8")
