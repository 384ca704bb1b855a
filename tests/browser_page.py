"""The report's page in a real browser: open it, wait for its charts, read what it shows.

The browser itself is a fixture of `browser/conftest.py`.
"""

import importlib.util
import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from offtrace.experiments.results import studies
from offtrace.experiments.store import read

MISSING = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
MISSING += [name for name in ("selenium", "altair") if importlib.util.find_spec(name) is None]
NEEDED = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")

OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def write(folder: Path, results: Path, *, with_theory: bool = True) -> Path:
    """Write a page of stored results, and of the theory unless told otherwise; return its path."""
    from offtrace.report import folder as report_folder
    from offtrace.report.theory import theory_section

    found = studies(read([results]))
    sections = [theory_section()] if with_theory else []
    return report_folder.write(folder, found, extra_sections=sections, command="a test", formats=())


def emulate(browser: Any, *, width: int = 1400, scheme: str = "light") -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def show(browser: Any, page: Path, **seen: Any) -> None:
    """Open the page and wait until every chart is drawn or has failed."""
    emulate(browser, **seen)
    browser.get("about:blank")
    for log in ("browser", "performance"):
        browser.get_log(log)  # drop the messages of earlier pages
    browser.get(page.as_uri())
    wait_for_charts(browser)


def wait_for_charts(browser: Any) -> None:
    undrawn = (
        "return [...document.querySelectorAll('[data-chart]')].filter(p => !/drawn|failed/.test(p.dataset.state))"
    )
    until(lambda: not browser.execute_script(f"{undrawn}.length"))


def until(condition: Any, seconds: float = 15.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.05)


def complaints(browser: Any) -> list[str]:
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] in ("WARNING", "SEVERE")]


def requests(browser: Any) -> set[str]:
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return {m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"}


def cut_off(browser: Any) -> list[str]:
    """Return the texts that reach beyond the edge of their chart."""
    return browser.execute_script(
        """return [...document.querySelectorAll('[data-chart] svg')].flatMap(svg => {
            const box = svg.getBoundingClientRect();
            return [...svg.querySelectorAll('text')].filter(text => text.textContent).filter(text => {
                const own = text.getBoundingClientRect();
                return own.right > box.right + 1 || own.left < box.left - 1 || own.bottom > box.bottom + 1;
            }).map(text => svg.closest('[data-chart]').dataset.chart + ': ' + text.textContent);
        })"""
    )
