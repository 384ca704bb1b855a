"""The view of a run: never wider than its terminal, whatever the numbers; no control characters in a file."""

import io
import math
import re
from collections.abc import Iterable

import pytest
from builders.reports import UNTRAINED, report
from loops import each
from rich.cells import cell_len
from rich.console import Console

from offtrace.agent.actor_records import ActorsRecord
from offtrace.agent.telemetry import TickRecord
from offtrace.cli.display import Display
from offtrace.cli.display_lines import LEVELS, sparkline
from offtrace.cli.numbers import duration

NAN, INF = math.nan, math.inf
LABELS = ("Return", "Traces", "Off-policy", "Learner")


@pytest.fixture(autouse=True)
def _known_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the tests run in says nothing about what they show."""
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


class Clock:
    """Goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def terminal(width: int = 80, **changes: object) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, height=24, **changes)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def visible(text: str) -> list[str]:
    """Lines without colours; a new one where the cursor jumps."""
    jumps = re.sub(r"\x1b\[[0-9;]*m", "", text)
    return [line.rstrip() for line in re.sub(r"(\r|\x1b\[[0-9;?]*[A-Za-z])+", "\n", jumps).split("\n")]


def view(display: Display) -> list[str]:
    with display.console.capture() as capture:
        display.console.print(display)
    return visible(capture.get())[:-1]


def shown(
    width: int, reports: Iterable[TickRecord], total_steps: int = 10_000, clock: Clock | None = None
) -> Display:
    clock = clock or Clock()
    display = Display(terminal(width), "catch", "8 actors", total_steps, clock=clock)
    for given in reports:
        clock.now += 2
        display.show(given)
    return display


# -- the live view -------------------------------------------------------------------------------------------


def test_what_it_says_at_80_columns() -> None:
    display = shown(80, [UNTRAINED, *(report(t, evaluation=1.5 if t == 4 else None) for t in range(1, 6))])
    lines = view(display)
    assert lines[:2] == ["catch", "8 actors"]
    assert lines[2].endswith("50%   5,000 of 10,000 steps")
    assert lines[3] == "500 steps/s    10 s left      12 s passed    1,250 updates"
    assert lines[4:] == [
        "",
        "Return      3.00           best 3.00      last 40 episodes, 40.0 steps each",
        "            ▁▃▅▇█  ▁ 1.00  █ 5.00",
        "Evaluation  1.50           best 1.50      at step 4,000",
        "Traces      mean c 0.62    cut 25%        effective length 5.50",
        "Off-policy  ‖π−μ‖₁ 0.38    newest to oldest 0.00  0.12  0.25  0.50  1.00",
        "Learner     loss 0.0312    Q 8.50         ε 0.100        step size 0.00025",
    ]


def test_actor_learners_have_a_line() -> None:
    actors = ActorsRecord((0.5, 0.104), (0, 2), (3, 4), (64, 1_260), (16, 315), 14.5, 40)
    (line,) = [line for line in view(shown(120, [report(1, actors=actors)])) if line.startswith("Actors")]
    assert line.startswith("Actors      staleness 14.5 ")
    for part in ("ε from 0.104 to 0.500", "updates each 16 to 315", "switches 7", "schedules 1 + 0 + 1"):
        assert part in line
    one_epsilon = actors._replace(schedule=())
    assert "switches" not in "".join(view(shown(120, [report(1, actors=one_epsilon)])))


def test_more_columns_say_more() -> None:
    reports = [report(t, tick_size=100) for t in range(1, 101)]
    narrow, wide = (view(shown(width, reports)) for width in (80, 120))
    assert "gradient" in "\n".join(wide)
    curves = [next(line for line in lines if "▁" in line) for lines in (narrow, wide)]
    assert len(curves[1]) - len(curves[0]) == 40


EXTREMES = {
    "nothing": [],
    "untrained": [UNTRAINED],
    "filled": [UNTRAINED, report(1, num_updates=0, loss=NAN)],
    "no episode": [report(1, num_episodes=0, episode_return=NAN, episode_length=NAN)],
    "long": [report(t, tick_size=10**8, num_episodes=10**7) for t in range(1, 11)],
    "endless": [report(t, tick_size=10**17) for t in range(1, 11)],
    "low": [report(t, episode_return=-1e6 * t, evaluation=-123_456.789) for t in range(1, 11)],
    "diverged": [report(t, loss=1e38, q=-1.2345e38, gradient=INF, c=1e9, effective_length=1e12) for t in (1, 2)],
    "nan": [
        report(1),
        report(2, loss=NAN, q=NAN, c=NAN, cut=NAN, effective_length=NAN, off_policy=NAN, gradient=NAN),
    ],
    "infinite returns": [report(1, episode_return=INF), report(2, episode_return=-INF, evaluation=NAN)],
    "huge returns": [report(1, episode_return=-1e308), report(2, episode_return=1e308)],
    "many parts": [report(1, off_policy_by_age=(0.123,) * 50)],
    "no parts": [report(1, off_policy_by_age=())],
    "sparse": [report(t, num_episodes=t % 7 == 0, episode_return=NAN if t % 7 else 1.0 * t) for t in range(1, 500)],
}


@pytest.mark.parametrize("reports", EXTREMES.values(), ids=EXTREMES)
@each("width", [20, 40, 80, 120, 200])
@each("total_steps", [0, 1, 10_000, 10**9, 10**18])
def test_never_wider_than_the_terminal(reports: list[TickRecord], width: int, total_steps: int) -> None:
    display = shown(width, reports, total_steps)
    display.title, display.subtitle = "a long title " * 30, "漢字" * 100
    lines = view(display)
    assert max(map(cell_len, lines)) <= width
    assert len(lines) <= 12
    assert lines[0].endswith("…")
    if width >= 80 and reports and reports[-1].num_updates:
        for label in LABELS:
            assert sum(line.startswith(label) for line in lines) == 1
        for name in ("mean c", "cut", "effective length", "‖π−μ‖₁", "loss", "Q", "ε", "step size"):
            assert any(f"{name} " in line for line in lines)


def test_live_in_a_terminal() -> None:
    """The whole way: drawn, drawn again, with lines above it and lines below it."""
    console = terminal()
    with Display(console, "catch", "8 actors", 10_000) as display:
        assert "compiling" in written(console)
        display.show(UNTRAINED)
        display.say("a note")
        for tick in range(1, 11):
            display.show(report(tick, events=("Q reached 1234",) if tick == 5 else ()))
        display.finish(["The end.", "x" * 100])
    lines = visible(written(console))
    assert "\x1b[" in written(console)
    assert max(cell_len(line) for line in lines if "x" * 100 not in line) <= 80
    assert lines.index("a note") < lines.index("At step 5,000: Q reached 1234")
    last = max(place for place, line in enumerate(lines) if line.startswith("Learner"))
    assert [line for line in lines[last + 1 :] if line] == ["The end.", "x" * 100]
    assert any("100%   10,000 of 10,000 steps" in line for line in lines[last - 8 : last])
    assert any("done in 0 s" in line for line in lines[last - 8 : last])


def test_says_that_it_is_compiling_until_it_has_learned() -> None:
    clock = Clock()
    display = shown(80, [], clock=clock)
    clock.now += 3
    assert view(display)[3] == "compiling …    3 s"
    display.show(UNTRAINED)
    display.show(report(1, num_updates=0, loss=NAN))
    assert view(display)[3] == "compiling …    3 s"
    display.show(report(2))
    assert "compiling" not in "\n".join(view(display))


def test_an_interrupted_run_says_so() -> None:
    console, clock = terminal(), Clock()
    display = Display(console, "catch", "", 10_000, clock=clock)

    def interrupted() -> None:
        with display:
            display.show(report(1))
            clock.now += 75
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert "stopped after 1 min 15 s" in view(display)[2]
    assert "stopped after 1 min 15 s" in written(console)
    assert written(console).endswith("\x1b[?25h")  # the cursor is visible again


HOSTILE = "[red]x[/red] [/] :boom: a\nb\rc \x1b[2J\x1b]0;title\x07 \x9b31m \u202egnp.exe \ud800"
SHOWN = r"[red]x[/red] [/] :boom: a\nb\rc \x1b[2J\x1b]0;title\x07 \x9b31m \u202egnp.exe \ud800"


@pytest.mark.parametrize("live", [True, False])
def test_names_are_harmless(live: bool) -> None:
    console = terminal(200) if live else Console(file=io.StringIO(), width=200)
    with Display(console, HOSTILE, HOSTILE, 10_000) as display:
        display.say(HOSTILE)
        display.show(report(1, events=(HOSTILE,)))
        display.finish([HOSTILE])
    lines = visible(written(console))
    assert lines.count(SHOWN) >= 4
    assert f"At step 1,000: {SHOWN}" in lines
    assert not set(written(console)) & {"\x07", "\x9b", "\u202e", "\ud800"}
    assert "\x1b[2J" not in written(console)
    assert "\x1b]" not in written(console)


@pytest.mark.parametrize("live", [True, False])
def test_an_old_encoding_is_no_error(live: bool) -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    with Display(Console(file=file, force_terminal=live, width=80), "λ", "漢字", 10_000) as display:
        display.say("‖π−μ‖₁")
        for tick in range(1, 11):
            display.show(report(tick, episode_return=NAN if tick == 10 else 1.0 * tick))
        display.finish(["→"])


# -- lines for a file ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_ticks", [10, 100, 1000, 1007])
def test_a_line_for_every_tenth(num_ticks: int) -> None:
    console, clock = Console(file=io.StringIO(), width=40), Clock()
    total = 1000 * num_ticks
    with Display(console, "catch", "8 actors", total, clock=clock) as display:
        display.show(UNTRAINED)
        for tick in range(1, num_ticks + 1):
            clock.now += 60
            display.show(report(tick, evaluation=0.5))
        display.finish(["The end."])
    text = written(console)
    assert "\x1b" not in text
    assert "\r" not in text
    lines = text.splitlines()
    assert lines[:2] == ["catch", "8 actors"]
    assert "ompiling" in lines[2]
    told = lines[3:-1]
    # where the speed is first known, after two ticks, and at every tenth
    first = {10: [], 100: ["2%"], 1000: ["0%"], 1007: ["0%"]}[num_ticks]
    assert [line.split()[0] for line in told] == first + [f"{10 * tenth}%" for tenth in range(1, 11)]
    assert "return" in told[0]
    assert "16.7 steps/s" in told[1]
    assert told[1].endswith("left")
    assert told[-1].endswith(f"done in {duration(60 * num_ticks)}")
    assert lines[-1] == "The end."


def test_a_dumb_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    console = terminal()
    with Display(console, "catch", "", 10_000) as display:
        display.show(report(1, events=("Q reached 1234",)))
        display.show(report(10))
    assert "\x1b" not in written(console)
    assert [line.split()[0] for line in written(console).splitlines()] == ["catch", "Compiling", "At", "10%", "100%"]


@pytest.mark.parametrize("live", [True, False])
def test_quiet_has_warnings_only(live: bool) -> None:
    console = Console(file=io.StringIO(), force_terminal=live, width=80)
    with Display(console, "catch", "8 actors", 10_000, quiet=True) as display:
        display.show(report(1))
        display.say("a note")
        display.show(report(10, events=("Q reached 1234",)))
        display.finish(["The end."])
    assert visible(written(console)) == ["a note", "At step 10,000: Q reached 1234", ""]


# -- speed ---------------------------------------------------------------------------------------------------


def test_speed_leaves_compiling_out() -> None:
    clock = Clock()
    display = shown(80, [], 10_000, clock)
    display.show(UNTRAINED)
    clock.now += 500  # compiling, and the first tick that learns
    display.show(report(1))
    assert display.steps_per_second is None
    for tick in (2, 3, 4):
        clock.now += 10
        display.show(report(tick))
    assert display.steps_per_second == pytest.approx(100.0)
    assert "1 min left" in view(display)[3]
    clock.now += 4  # between two ticks
    assert "56 s left" in view(display)[3]
    clock.now += 400  # a tick that takes far longer than it should
    assert "0 s left" in view(display)[3]


def test_speed_is_that_of_the_last_ticks() -> None:
    clock = Clock()
    display = shown(80, [], 10**6, clock)
    for tick in range(1, 200):
        clock.now += 1 if tick < 100 else 5
        display.show(report(tick))
    assert display.steps_per_second == pytest.approx(200.0)


def test_no_time_has_passed() -> None:
    display = shown(80, [], clock=Clock())
    for tick in range(1, 11):
        display.show(report(tick))
        assert display.steps_per_second is None
        view(display)


def test_an_evaluation_is_told_once_with_its_step() -> None:
    console, clock = Console(file=io.StringIO(), width=40), Clock()
    display = Display(console, "catch", "8 actors", 5_000, clock=clock)
    for tick in range(6):
        clock.now += 60
        display.show(report(tick, evaluation={0: -0.5, 3: 0.75}.get(tick)))
    told = [line.partition("evaluation ")[2].partition("   ")[0] for line in written(console).splitlines()]
    assert told == ["-0.500 at step 0", "", "0.750", "", ""]


def test_a_resumed_run_remembers_its_curve() -> None:
    """And its speed is that of the new process."""
    clock = Clock()
    display = shown(80, [], 10_000, clock)
    display.recall(
        [UNTRAINED, *(report(t, evaluation=7.5 if t == 2 else None, events=("old",)) for t in range(1, 5))]
    )
    assert written(display.console) == ""
    lines = view(display)
    assert "40%" in lines[2]
    assert "compiling" in lines[3]
    assert any("▁▃▆█" in line for line in lines)
    assert any(line.startswith("Evaluation  7.50") for line in lines)
    for tick in (5, 6):
        clock.now += 50
        display.show(report(tick))
    assert display.steps_per_second == pytest.approx(20.0)


# -- curves --------------------------------------------------------------------------------------------------


def test_sparkline() -> None:
    reports = [report(t, episode_return=value) for t, value in enumerate((0.0, 7.0, 8.0, 4.0), start=1)]
    assert sparkline(reports, 10) == (f"{LEVELS[0]}{LEVELS[7]}{LEVELS[7]}{LEVELS[4]}", 0.0, 8.0)
    assert sparkline(reports, 2) == (f"{LEVELS[0]}{LEVELS[7]}", 3.5, 6.0)
    gap = [reports[0], report(2, num_episodes=0, episode_return=NAN), reports[2]]
    assert sparkline(gap, 10) == (f"{LEVELS[0]} {LEVELS[7]}", 0.0, 8.0)
    assert sparkline([reports[0]] * 3, 10)[0] == LEVELS[3] * 3
    assert sparkline([UNTRAINED], 10)[0].strip() == ""


def test_a_mean_counts_episodes() -> None:
    """One tick with 30 episodes of 1 and one with 10 of 5: 2."""
    reports = [report(1, num_episodes=30, episode_return=1.0), report(2, num_episodes=10, episode_return=5.0)]
    assert sparkline(reports, 1)[1] == 2.0
    assert any(line.startswith("Return      2.00 ") for line in view(shown(80, reports)))
