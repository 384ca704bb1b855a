"""The command line: parse, call, print. One verb per thing a person wants to do.

Exit codes: 0 done, 2 your input is wrong, 3 something broke while running, 130 interrupted. An error is one line;
with OFFTRACE_TRACEBACK=1 it is the whole traceback, as it always is for what nobody foresaw.
"""

import functools
import io
import itertools
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console

import offtrace as ot
from offtrace.verbs.analyze import analyze
from offtrace.verbs.doctor import ADAPTER, doctor
from offtrace.verbs.report import report
from offtrace.verbs.streams import make_readable, print_json
from offtrace.verbs.sweep import check_first_seed, check_jobs, sweep
from offtrace.verbs.train import train, watch


def reproduce(
    scale: Literal["pocket", "minatar", "atari"] = "pocket",
    output: Path = Path("reproduction"),
    first_seed: int = 0,
    jobs: int | None = None,
    json: bool = False,
) -> None:
    """The paper on this machine: theory, its comparison in tables and with networks, its tables, and one page.

    Stop it at any time: the same command goes on. Runs that are done are not run again.
    Example: offtrace reproduce --output reproduction

    Args:
        scale: of the comparison with networks: pocket is the small world, minutes on two cores; minatar is minutes on
            one accelerator; atari is the paper's own (60 games, 200 million frames a run).
        output: folder for the page, figures, tables and results; made if it is not there.
        first_seed: first random seed; another block of seeds, such as 100, repeats the experiment.
        jobs: processes at once; one for each core if not given, and 0 for none but this, as on an accelerator.
        json: print the numbers as JSON, for a program to read.
    """
    check_jobs(jobs)
    check_first_seed(first_seed)
    console = Console(stderr=json)
    _check_needs(scale, console)
    from offtrace import reproduce as room

    numbers = room.run(output, console, scale=scale, first_seed=first_seed, jobs=jobs)
    if json:
        print_json(numbers)
    if numbers["num_diverged"]:
        sys.exit(3)


def bench(
    names: tyro.conf.Positional[tuple[str, ...]] = (),
    quick: bool = False,
    output: Path = Path("bench-results"),
    list: Annotated[bool, tyro.conf.arg(name="list")] = False,
    json: bool = False,
) -> None:
    """This machine's speed, beside the peers that are installed.

    Medians of interleaved repeats; ratios are the result.
    Example: offtrace bench return_operator --quick

    Args:
        names: which benchmarks; all of them if none is named.
        quick: the small sizes only, in seconds.
        output: folder for one JSON file per benchmark.
        list: print the names and stop.
        json: print the results as JSON, for a program to read.
    """
    from offtrace import bench as room

    if list:
        for name in room.names():
            print(f"{name:20} {room.load(name).question}")
        return
    results = room.run(names, quick=quick, output=output, console=Console(stderr=json))
    if json:
        print_json([result.as_dict() for result in results])


AGENT = ("jax", "equinox", "optax", "gymnasium", "safetensors")
"""What only training needs: the extra `agent`."""
PAGE = ("altair", "vl_convert")
"""What only a page needs: the extra `report`."""
EXTRAS = {**dict.fromkeys(AGENT, "agent"), "ale_py": "atari", "pgx": "minatar", **dict.fromkeys(PAGE, "report")}
"""Which extra brings what may be missing."""
NOTES = (ADAPTER,)
"""Of errors, those that are ours: what they show is to be copied, so it keeps its lines."""


def _check_needs(scale: str, console: Console) -> None:
    """What a reproduction needs, before it begins, and not after minutes; without a page it can do."""
    games = [name for name, extra in EXTRAS.items() if extra == scale]
    missing = [name for name in (*AGENT, *games, *PAGE) if find_spec(name) is None]
    extras = ",".join(dict.fromkeys(EXTRAS[name] for name in missing))
    remedy = f"{', '.join(f'`{name}`' for name in missing)}: pip install 'offtrace[{extras}]'"
    if set(missing) - set(PAGE):
        raise ValueError(f"this needs {remedy}")
    if missing:
        console.print(f"There will be tables, but no page, which needs {remedy}", style="yellow", markup=False)


VERBS: dict[str, Callable[..., None]] = {
    "reproduce": reproduce,
    "train": train,
    "sweep": sweep,
    "report": report,
    "watch": watch,
    "analyze": analyze,
    "doctor": doctor,
    "bench": bench,
}


def main(arguments: list[str] | None = None) -> None:
    """Runs one verb and leaves with its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    make_readable()
    _heed_sigterm()
    if arguments in (["--version"], ["-V"]):
        print(f"offtrace {ot.__version__}")
        return
    try:
        _refuse_empty(arguments)
        _parsed(arguments or ["--help"])()
    except KeyboardInterrupt:
        print("offtrace: interrupted", file=sys.stderr)
        sys.exit(130)
    except (ValueError, FileExistsError, NotADirectoryError, PermissionError) as error:
        _complain(error)
        sys.exit(2)
    except BrokenPipeError:
        sys.exit(0)
    except ImportError as error:
        missing = _missing(error)
        if missing not in EXTRAS:
            _complain(error, in_full=True)
            sys.exit(3)
        print(f"offtrace: this needs `{missing}`: pip install 'offtrace[{EXTRAS[missing]}]'", file=sys.stderr)
        sys.exit(2)
    except Exception as error:
        foreseen = isinstance(error, FloatingPointError | MemoryError | OSError) or type(error) is RuntimeError
        _complain(error, in_full=not foreseen)
        sys.exit(3)


def _heed_sigterm() -> None:
    """SIGTERM is an interruption like Ctrl-C, so that processes are ended and unfinished files removed."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.default_int_handler)


def _parsed(arguments: list[str]) -> Callable[[], None]:
    """The verb with its arguments; what cannot be parsed is refused on one line."""
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            return tyro.extras.subcommand_cli_from_dict(
                {name: _later(verb) for name, verb in VERBS.items()},
                prog="offtrace",
                description="Multi-step off-policy reinforcement learning, after Munos et al. (2016). "
                "`offtrace --version` prints the version.",
                args=arguments,
            )
    except SystemExit as end:
        if end.code != 2:
            raise
        raise ValueError(_refusal(said.getvalue(), arguments)) from None


def _later(verb: Callable[..., None]) -> Callable[..., Callable[[], None]]:
    """It is called when all is parsed."""

    @functools.wraps(verb)
    def deferred(*args: Any, **kwargs: Any) -> Callable[[], None]:
        return functools.partial(verb, *args, **kwargs)

    return deferred


KINDS = {"INT": "a whole number", "FLOAT": "a number"}


def _refusal(box: str, arguments: list[str]) -> str:
    """From what the parser says in a box of many lines, the one that matters."""
    lines = [line.strip("│╭╮╰╯ ") for line in box.splitlines()[1:]]  # without its title
    parts = [[]]
    for line in lines:
        if line and not line.strip("─-"):  # from here on it explains
            parts.append([])
        else:
            parts[-1].append(line)
    first, *others = [" ".join(part) for part in parts if any(part)] or [""]
    whole = " ".join([first, *others])
    see = next((f" See `offtrace {name} --help`." for name in arguments[:1] if name in VERBS), "")
    wrong = re.search(r"Error parsing (--[\w-]+)", first)
    if wrong:
        option = wrong[1]
        kind = re.search(rf"{option} \S*?(INT|FLOAT)", whole)
        at = next((i for i, word in enumerate(arguments) if word.partition("=")[0] == option), len(arguments))
        given = itertools.takewhile(lambda word: not word.startswith("--"), arguments[at + 1 :])
        words = " ".join(given) or arguments[at].partition("=")[2] if at < len(arguments) else ""
        if kind:
            shown = words if len(words) <= 60 else f"{words[:57]}..."
            return f"`{option}` must be {KINDS[kind[1]]}; got {shown!r}.{see}"
    meant = list(dict.fromkeys(re.findall(r"(--[\w-]+) ", whole.partition("Perhaps you meant:")[2])))
    close = f" Did you mean {' or '.join(name for name in meant if name != '--help')}?" if meant else ""
    verbs = f" There are {', '.join(VERBS)}." if "Available subcommands" in whole else ""
    return f"{first[:400].strip().rstrip('.')}.{close}{verbs}{see or ' See `offtrace --help`.'}"


def _refuse_empty(arguments: list[str]) -> None:
    """An empty path would be the current folder. Only environments have options that may be empty."""
    option = ""
    for word in arguments:
        name, is_pair, value = word.partition("=")
        if (not word and option != "--options") or (name.startswith("--") and is_pair and not value):
            what = f"`{name or option}`" if name or option else "an argument"
            raise ValueError(f"{what} must not be empty; got ''. Name a file or folder, or leave it out.")
        option = word if word.startswith("--") else option


def _missing(error: ImportError) -> str:
    """The package that is not there; "" if that is not what is wrong."""
    first = error.__cause__ if isinstance(error.__cause__, ModuleNotFoundError) else error
    return (first.name or "").partition(".")[0] if isinstance(first, ModuleNotFoundError) else ""


def _complain(error: Exception, *, in_full: bool = False) -> None:
    """On one line, whatever its text holds: environments and files of others have written parts of it."""
    if in_full or os.environ.get("OFFTRACE_TRACEBACK"):
        traceback.print_exception(error)
        return
    text = " ".join(str(error).split()) or type(error).__name__
    shown = "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)
    print(f"offtrace: {shown}", file=sys.stderr)
    for note in getattr(error, "__notes__", ()):
        if note in NOTES:
            print(note, file=sys.stderr)


if __name__ == "__main__":
    main()
