"""A run as a person watches it: a live view in a terminal, a line for about every tenth of it in a file or a pipe."""

import itertools
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Self

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from offtrace.agent.telemetry import TickRecord
from offtrace.verbs.numbers import UNKNOWN, count, duration, fixed, harmless, number, percent, rate

RECENT = 10
"""Ticks whose episodes make up the return that is shown."""
TIMED = 30
"""Ticks over which the speed is measured."""
LABEL, SLOT, GAP = 12, 12, 3
"""Columns of a name at the left, of a number with its name (or more), and between those."""
WIDEST = 120
LEVELS = "▁▂▃▄▅▆▇█"

Part = tuple[str, str]
"""A name, shown dim, and what it has come to."""


class Display:
    """Around one run: `with Display(…) as display:` and `display.show(report)` for every tick.

    The speed is that of the wall clock between reports, without the first tick that learns: most of that is
    compiling. Titles, lines and events may hold anything; markup is not read, and control characters are shown.
    With `quiet` there are warnings and notes, and nothing else.
    """

    def __init__(
        self,
        console: Console,
        title: str,
        subtitle: str,
        total_steps: int,
        quiet: bool = False,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.console = console
        self.title, self.subtitle = title, subtitle
        self.total_steps, self.quiet = total_steps, quiet
        self._clock = clock
        self._began = clock()
        self._ended: float | None = None
        self._live: Live | None = None
        self._reports: list[TickRecord] = []
        self._points: deque[tuple[float, int]] = deque(maxlen=TIMED + 1)
        self._recent: tuple[float, int] = (math.nan, 0)
        self._best = math.nan
        self._evaluation = self._best_evaluation = math.nan
        self._evaluated_at = 0
        self._evaluation_told = False
        self._told = 0
        self._speed_told = False

    # -- what the training loop calls --

    def __enter__(self) -> Self:
        self._began = self._clock()
        if self.quiet:
            return self
        if self.console.is_interactive:
            # What others print goes above the view; what they write to a file or a pipe goes there.
            self._live = Live(
                self,
                console=self.console,
                refresh_per_second=4,
                redirect_stdout=_is_terminal(sys.stdout),
                redirect_stderr=_is_terminal(sys.stderr),
            )
            self._live.start(refresh=True)
        else:
            for line in (self.title, self.subtitle, "Compiling; the first numbers follow."):
                if line:
                    self._print(line)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def recall(self, reports: Iterable[TickRecord]) -> None:
        """Reports from before a run was resumed: they are in the curve, and say nothing of the speed."""
        for report in reports:
            self._take(report)
        self._told = self._tenth

    def show(self, report: TickRecord) -> None:
        """One more tick."""
        now = self._clock()
        learned = report.num_updates > (self._reports[-1].num_updates if self._reports else 0)
        self._take(report)
        if learned:
            self._points.append((now, report.num_steps))
        for event in report.events:
            self._print(f"At step {count(report.num_steps)}: {event}", style="yellow")
        if self._live is None and not self.quiet:
            self._tell()

    def say(self, line: str) -> None:
        """A warning or a note, above the live view."""
        self._print(line)

    def finish(self, lines: Iterable[str]) -> None:
        """The run is over: the view stays as it is, with these lines under it."""
        was_live = self._live is not None
        self._stop()
        if self.quiet:
            return
        if was_live:
            self.console.print()
        for line in lines:
            self._print(line, soft_wrap=True)  # so that a command or a path can be copied whole

    @property
    def steps_per_second(self) -> float | None:
        """Environment steps of all actors, over the last ticks; None until it is known."""
        if len(self._points) < 2:
            return None
        (start, before), (end, after) = self._points[0], self._points[-1]
        return (after - before) / (end - start) if end > start and after > before else None

    # -- what has been seen --

    def _take(self, report: TickRecord) -> None:
        self._reports.append(report)
        self._recent = weighted_mean(self._reports[-RECENT:])
        self._best = best(self._best, self._recent[0])
        if report.evaluation is not None:
            self._evaluation, self._evaluated_at = report.evaluation, report.num_steps
            self._evaluation_told = False
            self._best_evaluation = best(self._best_evaluation, report.evaluation)

    @property
    def _num_steps(self) -> int:
        return self._reports[-1].num_steps if self._reports else 0

    @property
    def _share(self) -> float:
        return min(1.0, self._num_steps / self.total_steps) if self.total_steps > 0 else 1.0

    @property
    def _tenth(self) -> int:
        return 10 * self._num_steps // self.total_steps if self._share < 1 else 10

    @property
    def _complete(self) -> bool:
        return bool(self._reports) and self._share >= 1

    def _seconds_left(self, now: float) -> float:
        """Counted down between ticks."""
        speed = self.steps_per_second
        if speed is None:
            return math.nan
        return math.ceil(max(0.0, (self.total_steps - self._num_steps) / speed - (now - self._points[-1][0])))

    def _stop(self) -> None:
        if self._ended is None:
            self._ended = self._clock()
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()

    # -- lines --

    def _print(self, line: str, style: str = "", soft_wrap: bool = False) -> None:
        text = self._encodable(Text(harmless(line), style=style))
        self.console.print(text, soft_wrap=soft_wrap or not self.console.is_interactive)

    def _tell(self) -> None:
        """A line where the run has come a tenth further, and where its speed is first known.

        An evaluation is in the first line after it was made, with its step if that is an earlier one.
        """
        speed, now = self.steps_per_second, self._clock()
        if self._tenth <= self._told and (self._speed_told or speed is None):
            return
        self._told, self._speed_told = self._tenth, self._speed_told or speed is not None
        parts = [
            f"{percent(self._share):>4}",
            f"{count(self._num_steps):>{len(count(self.total_steps))}} of {count(self.total_steps)} steps",
            f"return {number(self._recent[0])}",
        ]
        if not (math.isnan(self._evaluation) or self._evaluation_told):
            before = "" if self._evaluated_at == self._num_steps else f" at step {count(self._evaluated_at)}"
            parts.append(f"evaluation {number(self._evaluation)}{before}")
            self._evaluation_told = True
        if speed is not None:
            parts.append(rate(speed))
        if self._complete:
            parts.append(f"done in {duration(now - self._began)}")
        elif speed is not None:
            parts.append(f"{duration(self._seconds_left(now))} left")
        self._print("   ".join(parts))

    # -- the live view --

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(options.max_width, WIDEST)
        lines = [Text(harmless(self.title), style="bold"), Text(harmless(self.subtitle), style="dim")]
        head = [self._cropped(line, width) for line in lines if line]
        body: list[Text] = [self._pace(width)]
        if self._num_steps:
            body += [Text(), *self._return_lines(width, curve=not options.ascii_only)]
        if self._reports and self._reports[-1].num_updates:
            body += self._learning_lines(width)
        yield Group(*head, self._bar(width), *(self._cropped(line, width) for line in body))

    def _bar(self, width: int) -> Table:
        done = f"{percent(self._share)}   {count(self._num_steps)} of {count(self.total_steps)} steps"
        grid = Table.grid(padding=(0, 0, 0, 2))
        grid.add_column(width=max(10, width - len(done) - 2))
        grid.add_column(no_wrap=True)
        bar = ProgressBar(
            total=1.0,
            completed=self._share,
            pulse=not (self._points or self._num_steps) and self._ended is None,
            complete_style="cyan",
            finished_style="green",
            pulse_style="cyan",
            animation_time=self._clock(),
        )
        grid.add_row(bar, done)
        return grid

    def _pace(self, width: int) -> Text:
        now = self._ended if self._ended is not None else self._clock()
        passed, speed = duration(now - self._began), self.steps_per_second
        pace: list[Part] = [] if speed is None else [("", rate(speed))]
        if self._complete:
            return row("", width, [*pace, ("", f"done in {passed}")])
        if self._ended is not None:
            return row("", width, [*pace, ("", f"stopped after {passed}")])
        if speed is None:
            what = "learning; the speed is not known yet" if self._points else "compiling …"
            return row("", width, [("", what), ("", passed)])
        left, updates = duration(self._seconds_left(now)), count(self._reports[-1].num_updates)
        return row("", width, [*pace, ("", f"{left} left"), ("", f"{passed} passed"), ("", f"{updates} updates")])

    def _return_lines(self, width: int, *, curve: bool) -> list[Text]:
        value, episodes = self._recent
        if not episodes:
            return [row("Return", width, [("", "no episode has ended yet")]), *self._evaluation_lines(width)]
        length = number(weighted_mean(self._reports[-RECENT:], "episode_length")[0])
        of = "1 episode" if episodes == 1 else f"{count(episodes)} episodes"
        shown: list[Part] = [("", number(value)), ("best", number(self._best))]
        lines = [row("Return", width, [*shown, ("last", f"{of}, {length} steps each")], [*shown, ("last", of)])]
        if curve:
            line, low, high = sparkline(self._reports, width - LABEL - 22)
            if low < high:
                text = Text(" " * LABEL).append(line, style="cyan")
                lines.append(text.append(f"  ▁ {number(low)}  █ {number(high)}", style="dim"))
        return lines + self._evaluation_lines(width)

    def _evaluation_lines(self, width: int) -> list[Text]:
        if math.isnan(self._evaluation):
            return []
        shown: list[Part] = [("", number(self._evaluation)), ("best", number(self._best_evaluation))]
        return [row("Evaluation", width, [*shown, ("at step", count(self._evaluated_at))])]

    def _learning_lines(self, width: int) -> list[Text]:
        """What an update measures; nan has a meaning here, and is shown."""
        now = self._reports[-1]
        traces: list[Part] = [
            ("mean c", fixed(now.c, 2)),
            ("cut", percent(now.cut)),
            ("effective length", number(now.effective_length, "nan")),
        ]
        distance: list[Part] = [("‖π−μ‖₁", fixed(now.off_policy, 2))]
        ages = [UNKNOWN if math.isnan(value) else fixed(value, 2) for value in now.off_policy_by_age]
        by_age: list[Part] = [("newest to oldest", "  ".join(ages))]
        ends: list[Part] = [("newest", ages[0]), ("oldest", ages[-1])] if ages else []
        learner: list[Part] = [
            ("loss", number(now.loss, "nan")),
            ("Q", number(now.q, "nan")),
            ("ε", fixed(now.epsilon, 3)),
            ("step size", number(now.step_size)),
            ("gradient", number(now.gradient, "nan")),
        ]
        return [
            row("Traces", width, traces),
            row("Off-policy", width, [*distance, *(by_age if ages else [])], [*distance, *ends]),
            row("Learner", width, learner),
        ]

    def _cropped(self, line: Text, width: int) -> Text:
        line.no_wrap = True
        line.truncate(width, overflow="ellipsis")
        return self._encodable(line)

    def _encodable(self, line: Text) -> Text:
        """With ? for what the console's encoding has no letter for."""
        encoding = self.console.encoding
        line.plain = line.plain.encode(encoding, "replace").decode(encoding)
        return line


# -- lines and curves ----------------------------------------------------------------------------------------


def row(label: str, width: int, *candidates: Sequence[Part]) -> Text:
    """The first of the candidates that fits, or as much of the last one as does."""
    for parts in candidates:
        line = _joined(label, parts)
        if line.cell_len <= width:
            return line
    kept = [*candidates[-1]]
    while len(kept) > 1 and _joined(label, kept).cell_len > width:
        kept.pop()
    return _joined(label, kept)


def _joined(label: str, parts: Sequence[Part]) -> Text:
    """In columns, so that what stands to the right of a number does not move when it gets a digit more."""
    line = Text(f"{label:{LABEL}}" if label else "")
    line.stylize("bold", 0, len(label))
    for place, (name, value) in enumerate(parts):
        start = len(line)
        if name:
            line.append(f"{name} ", style="dim")
        line.append(value)
        if place < len(parts) - 1:
            line.append(" " * (max(0, SLOT - (len(line) - start)) + GAP))
    return line


def weighted_mean(reports: Iterable[TickRecord], field: str = "episode_return") -> tuple[float, int]:
    """Over all episodes that ended in these ticks, and how many those are."""
    total, episodes = 0.0, 0
    for report in reports:
        value: float = getattr(report, field)
        if report.num_episodes and math.isfinite(value):
            total += report.num_episodes * value
            episodes += report.num_episodes
    return (total / episodes if episodes else math.nan), episodes


def best(before: float, value: float) -> float:
    """The greater; nan is nothing."""
    return value if math.isnan(before) else before if math.isnan(value) else max(before, value)


def sparkline(reports: Sequence[TickRecord], width: int) -> tuple[str, float, float]:
    """The returns of the run so far as one line, with its lowest and highest value.

    A column is one tick; once there are more ticks than columns, a column is the mean of several. A column in which
    no episode ended is blank.
    """
    reports = [report for report in reports if report.num_steps]
    width = max(1, min(width, len(reports)))
    edges = [place * len(reports) // width for place in range(width + 1)]
    values = [weighted_mean(reports[a:b])[0] for a, b in itertools.pairwise(edges)]
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return " " * width, math.nan, math.nan
    low, high = min(known), max(known)
    span = high - low
    if not 0 < span < math.inf:
        return "".join(" " if math.isnan(v) else LEVELS[3] for v in values), low, high
    levels = [value if math.isnan(value) else min(7, int(8 * ((value - low) / span))) for value in values]
    return "".join(" " if math.isnan(level) else LEVELS[int(level)] for level in levels), low, high


def _is_terminal(stream: Any) -> bool:
    return stream is not None and stream.isatty()
