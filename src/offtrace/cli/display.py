"""The display of a training run: a live view in a terminal, and about ten lines in a file or a pipe."""

import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from offtrace.agent.telemetry import TickRecord
from offtrace.cli.display_lines import LABEL, Part, best, row, schedule_counts, sparkline, weighted_mean
from offtrace.cli.numbers import UNKNOWN, count, duration, fixed, number, percent, printable, rate

RECENT = 10
"""Number of last ticks whose episodes are averaged for the return that is shown."""
TIMED = 30
"""Number of last ticks over which the speed is measured."""
MAX_WIDTH = 120


class Display:
    """The display of one run: `with Display(…) as display:` and `display.show(report)` for every tick.

    The speed is measured by the wall clock between reports, without the first tick that learns, which is mostly
    compilation. Titles, lines and events may hold anything: markup is not interpreted, and control characters are
    escaped. With `quiet` only warnings and notes are printed.

        pocket/catch  Retrace(λ = 1)  seed 0                        title
        16 actors, windows of 16, …                                 subtitle
        ━━━━━━━━━━━━━━━━━━━━━━━      42%   84,000 of 200,000 steps  _bar
        41,600 steps/s   3 s left   2 s passed                      _pace
        Return      0.52   best 0.55   last 310 episodes            _return_lines
                    ▁▂▃▅▆█
        Traces      mean c 0.91   cut 4%                            _learning_lines
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
        self.title = title
        self.subtitle = subtitle
        self.total_steps = total_steps
        self.quiet = quiet
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
        self._is_evaluation_printed = False
        self._tenths_printed = 0
        self._is_speed_printed = False

    # -- called by the training loop --

    def __enter__(self) -> Self:
        self._began = self._clock()
        if self.quiet:
            return self
        if self.console.is_interactive:
            # Output of others appears above the view, unless it goes to a file or a pipe.
            self._live = Live(
                self,
                console=self.console,
                refresh_per_second=4,
                redirect_stdout=_is_terminal(sys.stdout),
                redirect_stderr=_is_terminal(sys.stderr),
            )
            self._live.start(refresh=True)
        else:
            for line in (self.title, self.subtitle, "Compiling …"):
                if line:
                    self._print(line)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def recall(self, reports: Iterable[TickRecord]) -> None:
        """Add the reports from before a run was resumed: they are in the curve and do not count for the speed."""
        for report in reports:
            self._add(report)
        self._tenths_printed = self._tenth

    def show(self, report: TickRecord) -> None:
        """Add the report of one more tick."""
        now = self._clock()
        updates_before = self._reports[-1].num_updates if self._reports else 0
        learned = report.num_updates > updates_before
        self._add(report)
        if learned:
            self._points.append((now, report.num_steps))
        for event in report.events:
            self._print(f"At step {count(report.num_steps)}: {event}", style="yellow")
        if self._live is None and not self.quiet:
            self._print_tick()

    def say(self, line: str) -> None:
        """Print a warning or a note, above the live view."""
        self._print(line)

    def finish(self, lines: Iterable[str]) -> None:
        """End the display: the view stays as it is, with these lines below it."""
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
        """Environment steps of all actors per second, over the last ticks; None until it is known."""
        if len(self._points) < 2:
            return None
        (start, before), (end, after) = self._points[0], self._points[-1]
        if end <= start or after <= before:
            return None
        return (after - before) / (end - start)

    # -- the state of the run --

    def _add(self, report: TickRecord) -> None:
        self._reports.append(report)
        self._recent = weighted_mean(self._reports[-RECENT:])
        self._best = best(self._best, self._recent[0])
        if report.evaluation is not None:
            self._evaluation, self._evaluated_at = report.evaluation, report.num_steps
            self._is_evaluation_printed = False
            self._best_evaluation = best(self._best_evaluation, report.evaluation)

    @property
    def _num_steps(self) -> int:
        return self._reports[-1].num_steps if self._reports else 0

    @property
    def _share(self) -> float:
        if self.total_steps <= 0:
            return 1.0
        return min(1.0, self._num_steps / self.total_steps)

    @property
    def _tenth(self) -> int:
        if self._share >= 1:
            return 10
        return 10 * self._num_steps // self.total_steps

    @property
    def _complete(self) -> bool:
        return bool(self._reports) and self._share >= 1

    def _seconds_left(self, now: float) -> float:
        """Return the estimated seconds left; it counts down between ticks."""
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
        text = self._encodable(Text(printable(line), style=style))
        self.console.print(text, soft_wrap=soft_wrap or not self.console.is_interactive)

    def _print_tick(self) -> None:
        """Print a line at every tenth of the run, and when its speed is first known.

        An evaluation is in the first line after it, with its step if that was an earlier one.
        """
        speed = self.steps_per_second
        now = self._clock()
        if self._tenth <= self._tenths_printed and (self._is_speed_printed or speed is None):
            return
        self._tenths_printed = self._tenth
        self._is_speed_printed = self._is_speed_printed or speed is not None
        parts = [
            f"{percent(self._share):>4}",
            f"{count(self._num_steps):>{len(count(self.total_steps))}} of {count(self.total_steps)} steps",
            f"return {number(self._recent[0])}",
        ]
        if not (math.isnan(self._evaluation) or self._is_evaluation_printed):
            part = f"evaluation {number(self._evaluation)}"
            if self._evaluated_at != self._num_steps:
                part += f" at step {count(self._evaluated_at)}"
            parts.append(part)
            self._is_evaluation_printed = True
        actors = self._reports[-1].actors
        if actors is not None and not math.isnan(actors.staleness):
            parts.append(f"staleness {number(actors.staleness)}")
        if speed is not None:
            parts.append(rate(speed))
        if self._complete:
            parts.append(f"done in {duration(now - self._began)}")
        elif speed is not None:
            parts.append(f"{duration(self._seconds_left(now))} left")
        self._print("   ".join(parts))

    # -- the live view --

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(options.max_width, MAX_WIDTH)
        lines = [Text(printable(self.title), style="bold"), Text(printable(self.subtitle), style="dim")]
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
        passed = duration(now - self._began)
        speed = self.steps_per_second
        pace: list[Part] = [] if speed is None else [("", rate(speed))]
        if self._complete:
            return row("", width, [*pace, ("", f"done in {passed}")])
        if self._ended is not None:
            return row("", width, [*pace, ("", f"stopped after {passed}")])
        if speed is None:
            state = "learning; speed not known yet" if self._points else "compiling …"
            return row("", width, [("", state), ("", passed)])
        left = duration(self._seconds_left(now))
        updates = count(self._reports[-1].num_updates)
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
        """Return the metrics of the last update; nan is a result here, and is shown."""
        now = self._reports[-1]
        traces: list[Part] = [
            ("mean c", fixed(now.c, 2)),
            ("cut", percent(now.cut)),
            ("effective length", number(now.effective_length, "nan")),
        ]
        distance: list[Part] = [("‖π−μ‖₁", fixed(now.off_policy, 2))]
        ages = [UNKNOWN if math.isnan(value) else fixed(value, 2) for value in now.off_policy_by_age]
        by_age: list[Part] = []
        ends: list[Part] = []
        if ages:
            by_age = [("newest to oldest", "  ".join(ages))]
            ends = [("newest", ages[0]), ("oldest", ages[-1])]
        learner: list[Part] = [
            ("loss", number(now.loss, "nan")),
            ("Q", number(now.q, "nan")),
            ("ε", fixed(now.epsilon, 3)),
            ("step size", number(now.step_size)),
            ("gradient", number(now.gradient, "nan")),
        ]
        return [
            row("Traces", width, traces),
            row("Off-policy", width, [*distance, *by_age], [*distance, *ends]),
            row("Learner", width, learner),
            *self._actor_lines(width),
        ]

    def _actor_lines(self, width: int) -> list[Text]:
        """Return the actor-learners of the asynchronous runtime in one line; other runs have none."""
        actors = self._reports[-1].actors
        if actors is None:
            return []
        lowest = fixed(min(actors.epsilon), 3)
        highest = fixed(max(actors.epsilon), 3)
        parts: list[Part] = [
            ("staleness", number(actors.staleness, "nan")),
            ("ε from", f"{lowest} to {highest}"),
            ("updates each", f"{count(min(actors.num_updates))} to {count(max(actors.num_updates))}"),
        ]
        if actors.schedule:
            parts.append(("switches", count(sum(actors.num_switches))))
            parts.append(("schedules", schedule_counts(actors.schedule)))
        return [row("Actors", width, parts)]

    def _cropped(self, line: Text, width: int) -> Text:
        line.no_wrap = True
        line.truncate(width, overflow="ellipsis")
        return self._encodable(line)

    def _encodable(self, line: Text) -> Text:
        """Replace characters that the console's encoding lacks by ?."""
        encoding = self.console.encoding
        line.plain = line.plain.encode(encoding, "replace").decode(encoding)
        return line


def _is_terminal(stream: Any) -> bool:
    return stream is not None and stream.isatty()
