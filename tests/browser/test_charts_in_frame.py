"""No mark of any chart leaves its frame and no chart its place, whatever the results are."""

from pathlib import Path
from typing import Any

import browser_page
import pytest
from browser_page import complaints, cut_off, show, write
from builders import extreme_results

pytestmark = browser_page.NEEDED

TALLEST = 620
"""Pixels of a chart on the page."""
TOLERANCE = 6.5
"""Pixels: half of a line, or the radius of a point, that has its middle on the edge."""
MARKS = "path, rect, circle, line"

MEASURE = """
const [marks, tolerance] = arguments;
const outside = (own, box) => Math.max(
  box.left - own.left, own.right - box.right, box.top - own.top, own.bottom - box.bottom);
return [...document.querySelectorAll('[data-chart]')].map((plot) => {
  const svg = plot.querySelector('svg'), box = svg.getBoundingClientRect();
  const frame = svg.querySelector('g.mark-group.role-frame > g > path.background').getBoundingClientRect();
  const found = { name: plot.dataset.chart, state: plot.dataset.state, marks: 0, wrong: [], overlaps: [] };
  for (const mark of svg.querySelectorAll('g.role-mark')) {
    if (mark.closest('.role-axis, .role-legend, .role-title') || mark.matches('.mark-text')) continue;
    for (const one of mark.querySelectorAll(marks)) {
      const own = one.getBoundingClientRect();
      const isKey = one.__data__?.datum && 'line' in one.__data__.datum;
      const excess = isKey ? outside(own, box) : outside(own, frame) - tolerance;
      found.marks += 1;
      if (excess > 0 || !/^[^N]*$/.test(one.getAttribute('d') ?? '')) {
        found.wrong.push(`${mark.getAttribute('class')}, ${excess.toFixed(1)} px`);
      }
    }
  }
  const names = [...svg.querySelectorAll('g.role-mark.mark-text text')]
    .filter((text) => text.__data__?.datum?.algorithm).map((text) => text.getBoundingClientRect());
  names.sort((a, b) => a.top - b.top);
  found.overlaps = names.slice(1).map((own, i) => names[i].bottom - own.top - 0.3 * own.height).filter((x) => x > 0);
  const labels = [...svg.querySelectorAll('.role-axis-label text')].map((text) => text.textContent)
    .filter((label) => /^[−-]?[0-9.]/.test(label)); // numbers, not names
  found.longest = labels.reduce((a, b) => (b.length > a.length ? b : a), '');
  return Object.assign(found, { width: box.width, height: box.height, room: plot.clientWidth, tall: plot.clientHeight,
    scrolls: plot.tabIndex === 0, frame: [frame.width, frame.height] });
});
"""


def measured(browser: Any, page: Path, width: int) -> list[dict[str, Any]]:
    show(browser, page, width=width)
    return browser.execute_script(MEASURE, MARKS, TOLERANCE)


SHOWN = [name for name in extreme_results.CASES if name not in ("alike", "constant", "zero", "tiny")]
"""Those four are games of "all together", and `test_report_charts.py` draws them without a browser."""
NARROW = ("all together", "many algorithms", "huge", "negative", "one run")
"""The cases that are also shown on a phone: those whose labels, legends or layouts need the most room."""


@pytest.mark.parametrize("name", SHOWN)
def test_whatever_the_results_are_charts_stay_in_their_frames(browser: Any, tmp_path: Path, name: str) -> None:
    """The theory does not depend on the results, so one page has it."""
    results = extreme_results.store(tmp_path / "results.sqlite", name)
    page = write(tmp_path / "report", results, with_theory=name == "all together")
    for width in (1400, 390) if name in NARROW else (1400,):
        found = measured(browser, page, width)
        assert len(found) >= 8
        check(browser, found)


@pytest.mark.parametrize("width", [1400, 390])
@pytest.mark.parametrize("small", [False, True])
def test_intervals_and_values_beyond_the_axis_end_at_its_edge(
    browser: Any, tmp_path: Path, width: int, small: bool
) -> None:
    """Bars from −18 to 11 on an axis from 0 to 1 once made a picture of 20,000 pixels."""
    from offtrace.report.page import Document, Section, render

    section = Section("Extreme values", charts=extreme_results.charts(), small=small)
    path = tmp_path / "index.html"
    path.write_text(render(Document("t", "l", (), [section], Section("foot")), ()), encoding="utf-8")
    found = measured(browser, path, width)
    assert {each["name"] for each in found} == set(extreme_results.charts())
    check(browser, found)


@pytest.mark.parametrize("width", [1400, 390])
def test_names_that_are_cut_off_stay_apart(browser: Any, tmp_path: Path, width: int) -> None:
    """Two kinds of DQN differ at the fifteenth letter."""
    from offtrace.report.figures import average_by_lambda_chart
    from offtrace.report.page import Document, Section, render

    names = ["retrace", "dqn.exploration", "dqn.exploration.double"]
    chart = average_by_lambda_chart(
        [[0.2, 0.5, 0.8]] * 2, lambdas=[0.0, 1.0], algorithms=names, title="t", subtitle="s"
    )
    path = tmp_path / "index.html"
    section = Section("Names", charts={"names": chart}, small=True)
    path.write_text(render(Document("t", "l", (), [section], Section("foot")), ()), encoding="utf-8")
    measured(browser, path, width)
    shown = browser.execute_script(
        "return [...document.querySelectorAll('[data-chart] g.mark-text text')].map((text) => text.textContent)"
    )
    kinds = [text for text in shown if text.startswith("DQN (")]
    assert len(set(kinds)) == 2, shown


def check(browser: Any, found: list[dict[str, Any]]) -> None:
    for each in found:
        name = each["name"]
        assert each["state"] == "drawn", name
        assert each["wrong"] == [], name
        assert each["overlaps"] == [], name
        assert each["marks"] > 0, name
        is_list = "_ranking" in name  # a row per algorithm, and no other height
        assert each["height"] <= min(1_000 if is_list else TALLEST, each["tall"] + 1), name
        assert each["width"] <= each["room"] + 1 or each["scrolls"], name
        assert min(each["frame"]) > (20 if is_list else 120), (name, each["frame"])
        assert len(each["longest"]) <= 9, (name, each["longest"])
    assert cut_off(browser) == []
    assert complaints(browser) == []
    assert browser.execute_script("return document.scrollingElement.scrollWidth <= innerWidth")
