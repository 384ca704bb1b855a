"""`offtrace analyze MDP`: the verb."""

import csv
import json as json_module
from array import array
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from offtrace import policies
from offtrace import safety as room
from offtrace.files import read_npy, read_npz, regular_file
from offtrace.mdp import MDPS, CountedMDP, FiniteMDP, from_data, from_gymnasium
from offtrace.mdp.finite import checked_gamma
from offtrace.mdp.gymnasium import PACKAGES
from offtrace.operators import q_star
from offtrace.safety import BY_THEOREM

MAX_LOG = 64 << 20
"""Bytes of a log as text."""
MAX_PAIRS = 1 << 22
"""States × actions of a model that is counted from a log."""
COLUMNS = ("state", "action", "reward", "next_state", "terminated")


def analyze(
    mdp: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MDP")] = "",
    gamma: float | None = None,
    target: str = "",
    behaviour: str = "",
    trace: tuple[str, ...] = (),
    lambda_: Annotated[tuple[float, ...], tyro.conf.arg(name="lambda")] = room.LAMBDAS,
    accuracy: float = 0.01,
    output: Path | None = None,
    list: Annotated[bool, tyro.conf.arg(name="list")] = False,
    json: bool = False,
) -> None:
    """Which traces are safe here, how fast do they contract, how much do their samples vary?

    MDP is a Gymnasium id with a model (FrozenLake-v1, CliffWalking-v1, …), a name from `--list`, a file
    model.npz with arrays p (X, A, X), r and optionally terminates, gamma, pi, mu, or logged data: a file log.csv or
    log.npz with columns state, action, reward, next_state, terminated, from which a model and μ are counted.

    A policy is uniform, or greedy, epsilon_greedy:0.1 or softmax:5 in Q*; or a file policy.npy (X, A).

    Example: offtrace analyze FrozenLake-v1 --behaviour epsilon_greedy:0.3 --output analysis

    Args:
        mdp: what to analyse.
        gamma: the discount; 0.99 unless the file has one.
        target: π, the policy to learn about; as in the file, or greedy.
        behaviour: μ, the policy that acts; as in the file or as counted, or epsilon_greedy:0.1.
        trace: names of traces; all of them if none is named.
        lambda_: the λs.
        accuracy: the share of the first error that is good enough.
        output: folder for pictures, a table (CSV) and numbers (JSON); made if it is not there.
        list: print the MDPs that have a name, and stop.
        json: print the numbers as JSON, for a program to read.
    """
    if list:
        for name, make in MDPS.items():
            summary = (getattr(make, "func", make).__doc__ or "").strip().splitlines()[0]
            is_missing = name in PACKAGES and find_spec(name) is None
            remedy = f" Not installed: pip install {PACKAGES[name]}" if is_missing else ""
            print(f"{name:16} {summary}{remedy}")
        return
    if not mdp:
        raise ValueError("name an MDP: `offtrace analyze FrozenLake-v1`, a file, or a name from `--list`.")
    console = Console(stderr=json)
    model, given = load(mdp, gamma)
    inner = model.mdp if isinstance(model, CountedMDP) else model
    pi = given["pi"] if "pi" in given and not target else policy(target or "greedy", inner, "target")
    if behaviour:
        mu = policy(behaviour, inner, "behaviour")
    elif isinstance(model, CountedMDP):
        mu = None
    else:
        mu = given["mu"] if "mu" in given else policy("epsilon_greedy:0.1", inner, "behaviour")
    if output is not None:
        prepare(output)
    bar = (TextColumn("{task.description}"), BarColumn(), TextColumn("left:"), TimeRemainingColumn())
    shown = Console(stderr=True)
    with Progress(*bar, console=shown, transient=True, disable=not shown.is_terminal) as progress:
        task = progress.add_task(escape(inner.name or mdp), total=None)
        analysis = room.analyze(
            model,
            pi=pi,
            mu=mu,
            traces=trace or None,
            lambdas=lambda_,
            accuracy=accuracy,
            progress=lambda done, total: progress.update(task, completed=done, total=total),
        )
    if json:
        print(json_module.dumps(analysis.as_dict(), indent=2, ensure_ascii=False))
    else:
        shown_pi = target or ("as in the file" if "pi" in given else "greedy")
        shown_mu = behaviour or (
            "as counted" if mu is None else "as in the file" if "mu" in given else "epsilon_greedy:0.1"
        )
        console.print(f"π: {shown_pi}   μ: {shown_mu}", highlight=False, markup=False)
        analysis.print(console)
    if output is not None:
        files = write(analysis, output)
        console.print(f"Written to [bold]{escape(str(output))}/[/bold]: {', '.join(files)}", highlight=False)


def prepare(output: Path) -> None:
    """Makes the folder, and sees that pictures can be drawn, before anything is computed."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        import offtrace.report.charts  # noqa: F401
    except OSError as error:
        raise ValueError(f"`output`: the folder {str(output)!r} cannot be made: {error.strerror}.") from None
    except ImportError as error:
        raise ValueError(f"`output`: {error}") from None


def write(analysis: Any, output: Path) -> list[str]:
    """Numbers, a table and pictures into a folder; the names of what was written."""
    numbers = json_module.dumps(analysis.as_dict(), indent=2, ensure_ascii=False)
    (output / "analysis.json").write_text(numbers + "\n", encoding="utf-8")
    rows = [row.as_dict() for row in analysis.rows]
    with (output / "analysis.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=[*rows[0]])
        writer.writeheader()
        writer.writerows(rows)
    files = ["analysis.json", "analysis.csv"]
    from offtrace.report import charts, eta, safety

    pictures = {"contraction_against_variance": safety.contraction_against_variance(analysis)}
    if analysis.mdp.grid is not None and any(row.verdict == BY_THEOREM for row in analysis.rows):
        pictures["eta"] = eta.eta_map(analysis)
    for stem, chart in pictures.items():
        charts.save(chart, output / stem)
        files.append(f"{stem}.png/.svg/.pdf")
    return files


def load(name: str, gamma: float | None) -> tuple[FiniteMDP | CountedMDP, dict[str, np.ndarray]]:
    """The MDP, and the policies that its file has."""
    path = Path(name)
    if path.suffix in (".npz", ".csv"):
        if not path.exists():
            raise ValueError(f"`mdp`: there is no file {name!r}.")
        arrays = _read_csv(path) if path.suffix == ".csv" else _read_npz(path)
        try:
            return _from_arrays(arrays, name, gamma)
        except TypeError as error:  # an array of another kind than it should be
            raise ValueError(f"`mdp`: {name}: {error}") from None
    discount = {} if gamma is None else {"gamma": checked_gamma(gamma)}
    if name in MDPS:
        if name == "random_walk" and gamma is None:
            discount = {"gamma": 0.99}
        return _made(lambda: MDPS[name](**discount), name), {}
    return _made(lambda: from_gymnasium(name, gamma=discount.get("gamma", 0.99)), name), {}


def _made(make: Callable[[], FiniteMDP], name: str) -> FiniteMDP:
    """The MDP, or a line that says why there is none."""
    try:
        return make()
    except (ValueError, ImportError) as error:
        reason = error
    except Exception as error:
        if not type(error).__module__.startswith("gymnasium"):  # which may not be there to import its errors from
            raise
        reason = error
    text = " ".join(str(reason).split())
    text += "" if text.endswith((".", "?", "!")) else "."
    known = "" if name in MDPS else f" Or name one of {', '.join(MDPS)}, or a file .npz or .csv."
    raise ValueError(f"`mdp`: {text}{known}") from None


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    try:
        return read_npz(path)
    except ValueError as error:
        raise ValueError(f"`mdp`: {error}.") from None


def _read_csv(path: Path) -> dict[str, np.ndarray]:
    try:
        log = regular_file(path, MAX_LOG)
    except ValueError as error:
        raise ValueError(f"`mdp`: {error}.") from None
    try:
        with log.open(newline="", encoding="utf-8-sig") as file:
            return _columns(csv.reader(file), path)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"`mdp`: {path} cannot be read: {error}") from None


def _columns(rows: Iterator[list[str]], path: Path) -> dict[str, np.ndarray]:
    """Row by row, so that a log takes no more memory than its numbers."""
    rows = (row for row in rows if row)
    header = [cell.strip() for cell in next(rows, [])]
    missing = [column for column in COLUMNS if column not in header]
    if missing:
        raise ValueError(f"`mdp`: {path} must have the columns {', '.join(COLUMNS)}; {missing[0]} is missing.")
    places = [header.index(column) for column in COLUMNS]
    truth = {"true": "1", "false": "0"}
    numbers = array("d")
    for number, row in enumerate(rows, start=1):
        try:
            numbers.extend([float(truth.get(row[place].strip().lower(), row[place])) for place in places])
        except (ValueError, IndexError):
            shown = repr(",".join(row))
            shown = shown if len(shown) <= 80 else f"{shown[:80]}…"
            raise ValueError(f"`mdp`: {path} must hold numbers; row {number} is {shown}.") from None
    table = np.array(numbers).reshape(-1, len(COLUMNS))
    return dict(zip(COLUMNS, table.T, strict=True))


def _from_arrays(
    arrays: dict[str, np.ndarray], name: str, gamma: float | None
) -> tuple[FiniteMDP | CountedMDP, dict[str, np.ndarray]]:
    if gamma is None and "gamma" in arrays and arrays["gamma"].size != 1:
        raise ValueError(f"`mdp`: gamma in {name} must be one number; got shape {arrays['gamma'].shape}.")
    discount = gamma if gamma is not None else arrays["gamma"].item() if "gamma" in arrays else 0.99
    given = {key: arrays[key] for key in ("pi", "mu") if key in arrays}
    if "p" in arrays and "r" in arrays:
        if "grid" in arrays and arrays["grid"].shape != (2,):
            raise ValueError(f"`mdp`: grid in {name} must be (rows, columns); got shape {arrays['grid'].shape}.")
        grid = tuple(arrays["grid"].tolist()) if "grid" in arrays else None
        named: dict[str, Any] = {"name": Path(name).stem, "grid": grid}
        return FiniteMDP(
            p=arrays["p"], r=arrays["r"], gamma=discount, terminates=arrays.get("terminates"), **named
        ), given
    missing = [column for column in COLUMNS if column not in arrays]
    if missing:
        raise ValueError(f"`mdp`: {name} must have p and r, or {', '.join(COLUMNS)}; {missing[0]} is missing.")
    for column, most in (("state", 2**53), ("action", 2**53), ("next_state", 2**53), ("terminated", 1)):
        values = arrays[column]
        broken = ~((values == np.floor(values)) & (abs(values) <= most))
        if broken.any():
            rule = "0 or 1" if most == 1 else "whole numbers"
            raise ValueError(f"`mdp`: {column} in {name} must be {rule}; got {values[broken][0]:g}.")
    num_states, num_actions = (
        1 + max(float(arrays[column].max(initial=0)) for column in columns)
        for columns in (("state", "next_state"), ("action",))
    )
    if num_states * num_actions > MAX_PAIRS:
        raise ValueError(
            f"`mdp`: {name} must have at most {MAX_PAIRS:,} pairs (x, a); got {num_states:,.0f} states × "
            f"{num_actions:,.0f} actions by its largest numbers. Number them from 0 on, without gaps."
        )
    counted = from_data(
        states=arrays["state"].astype(np.int64),
        actions=arrays["action"].astype(np.int64),
        rewards=arrays["reward"],
        next_states=arrays["next_state"].astype(np.int64),
        terminated=arrays["terminated"].astype(bool),
        gamma=discount,
    )
    counted.mdp.name = Path(name).name
    return counted, {key: value for key, value in given.items() if key == "pi"}


def policy(text: str, mdp: FiniteMDP, name: str) -> np.ndarray:
    """`uniform`, `greedy`, `epsilon_greedy:0.1`, `softmax:5`, or a file."""
    kind, _, number = text.partition(":")
    if text.endswith(".npy"):
        try:
            return read_npy(text)
        except ValueError as error:
            raise ValueError(f"`{name}`: {error}.") from None
    makers = {
        "uniform": lambda q, _: policies.uniform(q),
        "greedy": lambda q, _: policies.greedy(q),
        "epsilon_greedy": policies.epsilon_greedy,
        "softmax": policies.softmax,
    }
    if kind not in makers or (kind in ("epsilon_greedy", "softmax")) != bool(number):
        raise ValueError(f"`{name}` must be uniform, greedy, epsilon_greedy:0.1, softmax:5 or a .npy; got {text!r}.")
    try:
        value = float(number) if number else 0.0
    except ValueError:
        raise ValueError(f"`{name}`: {number!r} is no number.") from None
    return makers[kind](np.zeros(mdp.shape) if kind == "uniform" else q_star(mdp), value)
