"""The command line: one module per command, which parses, calls the library and prints.

Exit codes: 0 done, 2 wrong input, 3 something failed while running, 130 interrupted (`exit_codes`).
"""

import sys
from collections.abc import Callable
from contextlib import suppress

import offtrace as ot
from offtrace.cli import analyze, bench, doctor, evaluate, report, reproduce, sweep, train, watch
from offtrace.cli.errors import report_error
from offtrace.cli.exit_codes import DONE, INTERRUPTED
from offtrace.cli.interrupts import interrupt_on_signals
from offtrace.cli.parsing import parse
from offtrace.cli.streams import discard, flush, make_readable

COMMANDS: dict[str, Callable[..., None]] = {
    "reproduce": reproduce.reproduce,
    "train": train.train,
    "sweep": sweep.sweep,
    "report": report.report,
    "watch": watch.watch,
    "analyze": analyze.analyze,
    "evaluate": evaluate.evaluate,
    "doctor": doctor.doctor,
    "bench": bench.bench,
}


def main(arguments: list[str] | None = None) -> None:
    """Run one command and exit with its code."""
    if arguments is None:
        arguments = sys.argv[1:]
    make_readable()
    interrupt_on_signals()
    try:
        _run(arguments)
    except KeyboardInterrupt:
        with suppress(OSError):  # the terminal may be gone
            print("offtrace: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # the reader of the output has gone
        discard(sys.stdout)
        sys.exit(DONE)
    except Exception as error:
        sys.exit(report_error(error))
    finally:
        _finish()


def _finish() -> None:
    """Write what is buffered; where that fails, such as on a full disk, say so."""
    try:
        flush(sys.stdout)
    except OSError as error:
        discard(sys.stdout)
        ended = error.__context__
        if not (isinstance(ended, SystemExit) and ended.code):  # else one was reported, often this
            sys.exit(report_error(error))


def _run(arguments: list[str]) -> None:
    if arguments in (["--version"], ["-V"]):
        print(f"offtrace {ot.__version__}")
        return
    parse(arguments or ["--help"], COMMANDS)()
