"""The pages that `make docs` builds: every link leads somewhere, and every test that they name exists."""

import importlib.util
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytest.importorskip("markdown")

BUILD = Path(__file__).parents[2] / "docs" / "build.py"


class Page(HTMLParser):
    """The anchors of a page, and where its links lead."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str | None] = set()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id":
                self.anchors.add(value)
            elif name in ("href", "src") and value:
                self.links.append(value)


def test_every_link_and_anchor_of_the_pages_exists(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("build", BUILD)
    assert spec is not None
    assert spec.loader is not None
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    pages = {path.name: Page(path.read_text(encoding="utf-8")) for path in build.build(tmp_path / "site")}
    lost = []
    for name, page in pages.items():
        for link in page.links:
            file, _, anchor = link.partition("#")
            there = tmp_path / "site" / (file or name)
            known = not anchor or anchor in pages[file or name].anchors
            if ":" not in file and not (there.is_file() and known):
                lost.append(f"{name}: {link}")
    assert lost == []
    assert sum(len(page.links) for page in pages.values()) > 100


def test_every_test_that_the_page_of_reliability_names_exists() -> None:
    """A test is named alone below the line that names the file of its section, or together with its own file."""
    root = BUILD.parents[1]
    section = ""
    missing = []
    num_named = 0
    for line in (root / "docs" / "reliability.md").read_text(encoding="utf-8").splitlines():
        if named := re.search(r"in `(tests/\S+?\.py)` unless", line):
            section = named[1]
        for file, test in re.findall(r"`(?:(tests/\S+?\.py)::)?(test_\w+)`", line):
            num_named += 1
            source = root / (file or section)
            if f"def {test}(" not in source.read_text(encoding="utf-8"):
                missing.append(f"{file or section}::{test}")
    assert missing == []
    assert num_named > 80


def test_headings_of_a_page_are_unique() -> None:
    """Two headings of one name are a sign of a section that is there twice, and have one anchor."""
    root = BUILD.parents[1]
    for path in (root / "README.md", *(root / "docs").glob("*.md")):
        headings = re.findall(r"^#+ .*$", re.sub(r"```.*?```", "", path.read_text(), flags=re.S), re.M)
        assert len(headings) == len(set(headings)), path.name
