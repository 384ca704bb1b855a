"""The progress bar, and the lines of a sweep where there is no terminal (`test_sweep.py` has their times)."""

import io
from functools import partial

import pytest

from offtrace.cli import progress
from offtrace.cli.progress import ProgressBar
from offtrace.cli.streams import Console


def shown_by(bar: ProgressBar) -> str:
    console = bar._progress.console
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_nothing_is_shown_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar("drawing") as bar:
        bar.update(1, 2)
    assert not bar.is_shown
    assert capsys.readouterr() == ("", "")


def test_a_terminal_shows_what_is_done_and_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = partial(Console, file=io.StringIO(), force_terminal=True, width=80)
    monkeypatch.setattr(progress, "Console", lambda stderr: terminal())
    with ProgressBar("looking") as bar:
        assert bar.is_shown
        bar.update(1, 2, "drawing [bold]", "left, at most:")
        bar._progress.refresh()
    text = shown_by(bar)
    assert "looking" in text
    assert "drawing [bold]" in text, "names are no markup"
    assert "left, at most:" in text
    assert text.rstrip().endswith(("\x1b[2K", "\x1b[?25h")), "it disappears"
