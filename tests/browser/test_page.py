"""The page in a real browser: it draws, sorts, changes colours, fits a phone, and makes no request."""

import base64
from pathlib import Path
from typing import Any

import browser_page
import pytest
from browser_page import complaints, cut_off, emulate, requests, show, until, wait_for_charts, write
from builders import sweep_results

pytestmark = browser_page.NEEDED

HOSTILE = (
    "<script>window.owned = 1</script>",
    '"><img src=x onerror="window.owned = 2">',
    "</script><script>window.owned = 3</script>",
    "'; window.owned = 4; //",
    "\u202eevil \u05d0\u05d1\u05d2 👩‍🚀 \u2028 &lt;b&gt; <!--",
)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    games = ("made/alpha", "made/beta", "made/gamma_long_name")
    return write(folder / "report", sweep_results.store(folder / "results.sqlite", sweep_results.specs(games)))


@pytest.fixture(scope="module")
def hostile_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    wanted = sweep_results.specs(
        [f"made/{name}" for name in HOSTILE], traces=("retrace", *HOSTILE), lambdas=(1.0,), seeds=(0, 1)
    )
    wanted.append({"env": f"{HOSTILE[0]}/alone", "trace": "dqn", "lambda_": 0.0, "seed": 0})
    failing = {len(wanted) - 1: f"Traceback\nValueError: {HOSTILE[2]}"}
    made = dict.fromkeys(sweep_results.MADE, HOSTILE[1])
    return write(
        folder / "report", sweep_results.store(folder / "results.sqlite", wanted, failing=failing, made=made)
    )


@pytest.mark.parametrize("width", [360, 1400])
def test_it_draws_fits_and_requests_nothing(browser: Any, page: Path, width: int) -> None:
    show(browser, page, width=width)
    marks = browser.execute_script(
        "return [...document.querySelectorAll('[data-chart]')].map(plot => [plot.dataset.chart, plot.dataset.state, "
        "plot.querySelectorAll('svg [class*=mark-] path, svg [class*=mark-] text').length, "
        "plot.querySelector('svg')?.getBoundingClientRect().width ?? 0, plot.clientWidth])"
    )
    names = {name for name, *_ in marks}
    assert {"made_distribution-early", "made_distribution-final", "made_by-lambda", "made_sensitivity"} <= names
    assert {"made_profile", "made_telemetry-c", "made_curve-alpha", "contraction-against-variance"} <= names
    assert {"published_distribution-final", "published_by-lambda"} <= names
    for name, state, count, drawn, room in marks:
        assert state == "drawn", name
        assert count > 5, name
        assert drawn <= room + 1 or name == "contraction-against-variance", name  # which moves in its own box
    assert cut_off(browser) == []
    assert browser.execute_script("return document.scrollingElement.scrollWidth <= innerWidth")
    assert complaints(browser) == []
    assert {url for url in requests(browser) if not url.startswith(("data:", "blob:"))} == {page.as_uri()}


def test_a_phone_can_turn_and_the_charts_follow(browser: Any, page: Path) -> None:
    show(browser, page, width=360)
    widths = "return [...document.querySelectorAll('main .small svg')].map(svg => Math.round(svg.clientWidth))"
    before = browser.execute_script(widths)
    emulate(browser, width=800)
    until(lambda: len(set(browser.execute_script(widths))) == 1 and browser.execute_script(widths) != before)
    wait_for_charts(browser)
    assert browser.execute_script("return document.scrollingElement.scrollWidth <= innerWidth")
    assert complaints(browser) == []


def column(browser: Any, number: int) -> list[str]:
    rows = "[...document.querySelector('table.sortable').tBodies[0].rows]"
    texts = browser.execute_script(f"return {rows}.map(row => row.cells[arguments[0]].innerText)", number)
    return [text.replace(",", "").strip() for text in texts]


def test_the_table_sorts(browser: Any, page: Path) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    show(browser, page)
    headers = browser.find_elements(By.CSS_SELECTOR, "table.sortable:first-of-type thead th")[:6]
    first, second = (header.find_element(By.TAG_NAME, "button") for header in headers[:2])
    assert column(browser, 0) == ["alpha", "beta", "gamma_long_name"]
    browser.execute_script("arguments[0].scrollIntoView({behavior: 'instant', block: 'center'})", second)
    second.click()
    falling = [float(text) for text in column(browser, 1)]
    assert falling == sorted(falling, reverse=True)
    assert [f"{x:.0f}" for x in falling] != sorted((f"{x:.0f}" for x in falling), reverse=True), "words sort so too"
    assert headers[1].get_attribute("aria-sort") == "descending"
    second.send_keys(Keys.ENTER)
    assert [float(text) for text in column(browser, 1)] == falling[::-1]
    assert headers[1].get_attribute("aria-sort") == "ascending"
    first.send_keys(Keys.SPACE)
    assert column(browser, 0) == ["alpha", "beta", "gamma_long_name"]
    assert [header.get_attribute("aria-sort") for header in headers[:2]] == ["ascending", "none"]
    best = browser.find_elements(By.CSS_SELECTOR, "table.sortable td.best")
    assert best
    assert all(cell.get_attribute("title").startswith("best on this game") for cell in best)


def luminance(colour: str) -> float:
    """Return the luminance of a colour such as "rgb(1, 2, 3)", as WCAG defines it."""
    parts = [float(x) / 255 for x in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrasts(browser: Any) -> dict[str, float]:
    """Return the lowest contrast of each text colour against the page, charts included."""
    ground = luminance(browser.execute_script("return getComputedStyle(document.body).backgroundColor"))
    colours = browser.execute_script(
        """const seen = {};
        for (const text of document.querySelectorAll('.plot svg text, main p, td, th, a, h2, .verdict')) {
            if (!text.textContent || getComputedStyle(text).stroke.startsWith('rgb')) continue;
            const style = getComputedStyle(text);
            seen[text instanceof SVGElement ? style.fill : style.color] = text.textContent;
        }
        return seen"""
    )
    found = {}
    for colour, text in colours.items():
        light, dark = sorted((luminance(colour), ground), reverse=True)
        found[f"{colour} {text[:30]}"] = (light + 0.05) / (dark + 0.05)
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_as_the_system_says(browser: Any, page: Path, scheme: str) -> None:
    show(browser, page, scheme=scheme)
    ground = luminance(browser.execute_script("return getComputedStyle(document.body).backgroundColor"))
    assert ground > 0.9 if scheme == "light" else ground < 0.02
    found = contrasts(browser)
    assert len(found) > 6
    assert {what: ratio for what, ratio in found.items() if ratio < 3.0} == {}
    assert complaints(browser) == []


def test_the_button_changes_colours_and_is_remembered(browser: Any, page: Path) -> None:
    from selenium.webdriver.common.by import By

    show(browser, page, scheme="light")
    dark = "return getComputedStyle(document.body).backgroundColor !== 'rgb(255, 255, 255)'"
    assert not browser.execute_script(dark)
    button = browser.find_element(By.ID, "theme")
    assert button.text == "Dark theme"
    button.click()
    try:
        assert browser.execute_script(dark)
        assert button.text == "Light theme"
        assert min(contrasts(browser).values()) >= 3.0
        show(browser, page, scheme="light")
        assert browser.execute_script(dark)
    finally:
        browser.execute_script("localStorage.clear()")


def test_it_prints(browser: Any, page: Path) -> None:
    show(browser, page, scheme="dark")
    data = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"])
    assert data.startswith(b"%PDF-")
    assert len(data) > 100_000, "charts and tables are that long"
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": dark})
    assert browser.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_hostile_names_do_not_become_html(browser: Any, hostile_page: Path) -> None:
    """On a phone; the next test has the wide page."""
    from selenium.webdriver.common.by import By

    show(browser, hostile_page, width=360)
    assert browser.execute_script("return window.owned") is None
    assert (
        browser.find_elements(By.CSS_SELECTOR, "img, iframe, object, [onerror], base, form:not(.vega-bindings)") == []
    )
    scripts = browser.execute_script("return [...document.scripts].map(s => s.type || 'script')")
    assert sorted(scripts) == ["application/json", "script", "script"]
    text = browser.execute_script("return document.body.innerText")
    for name in HOSTILE[:4]:
        assert text.count(name) >= 3, name
    assert "ValueError: </script><script>window.owned = 3</script>" in text
    assert "\u202e" not in text
    assert "👩‍🚀" in text
    assert "&lt;b&gt;" in text
    drawn = browser.execute_script("return [...document.querySelectorAll('[data-chart]')].map(p => p.dataset.state)")
    assert set(drawn) == {"drawn"}
    assert cut_off(browser) == []
    assert browser.execute_script("return document.scrollingElement.scrollWidth <= innerWidth")
    assert complaints(browser) == []
    assert {url for url in requests(browser) if not url.startswith(("data:", "blob:"))} == {hostile_page.as_uri()}


def test_tips_are_text(browser: Any, hostile_page: Path) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By

    show(browser, hostile_page)
    assert cut_off(browser) == []
    assert browser.execute_script("return document.scrollingElement.scrollWidth <= innerWidth")
    label = browser.find_element(
        By.XPATH, "//*[@data-chart='made_curve-evil-lt-b-gt']//*[name()='text'][contains(., 'img')]"
    )
    browser.execute_script("arguments[0].scrollIntoView({behavior: 'instant', block: 'center'})", label)
    ActionChains(browser).move_to_element(label).perform()
    tip = browser.find_element(By.ID, "tip")
    until(tip.is_displayed)
    assert HOSTILE[1] in tip.text
    assert tip.find_elements(By.CSS_SELECTOR, "img, script") == []
    assert browser.execute_script("return window.owned") is None
