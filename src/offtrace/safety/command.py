"""`offtrace analyze MDP`: the verb."""

import csv
import json as json_module
import zipfile
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from offtrace import policies
from offtrace.mdp import MDPS, CountedMDP, FiniteMDP, from_data, from_gymnasium
from offtrace.operators import q_star
from offtrace.safety import LAMBDAS, analyze

COLUMNS = ("state", "action", "reward", "next_state", "terminated")


def analyze_command(
    mdp: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MDP")] = "",
    gamma: float | None = None,
    target: str = "greedy",
    behaviour: str = "",
    trace: tuple[str, ...] = (),
    lambda_: Annotated[tuple[float, ...], tyro.conf.arg(name="lambda")] = LAMBDAS,
    accuracy: float = 0.01,
    output: Path | None = None,
    list: Annotated[bool, tyro.conf.arg(name="list")] = False,
    json: bool = False,
) -> None:
    """Which traces are safe here, how fast do they contract, how much do their samples vary?

    MDP is a Gymnasium id with a model (FrozenLake-v1, CliffWalking-v1, Taxi-v3, …), a name from `--list`, a file
    model.npz with arrays p (X, A, X), r and optionally terminates, gamma, pi, mu, or logged data: a file log.csv or
    log.npz with columns state, action, reward, next_state, terminated, from which a model and μ are counted.

    A policy is uniform, greedy, epsilon_greedy:0.1 or softmax:5, each with respect to Q*; or a file policy.npy (X, A).

    Example: offtrace analyze FrozenLake-v1 --behaviour epsilon_greedy:0.3 --output analysis

    Args:
        mdp: what to analyse.
        gamma: the discount; 0.99 unless the file has one.
        target: π, the policy to learn about.
        behaviour: μ, the policy that acts; epsilon_greedy:0.1 for a model, as counted for data.
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
            print(f"{name:16} {summary}")
        return
    if not mdp:
        raise ValueError("name an MDP: `offtrace analyze FrozenLake-v1`, a file, or a name from `--list`.")
    console = Console(stderr=json)
    model, given = load(mdp, gamma)
    inner = model.mdp if isinstance(model, CountedMDP) else model
    pi = given.get("pi") if target == "greedy" and "pi" in given else policy(target, inner, "target")
    if behaviour:
        mu = policy(behaviour, inner, "behaviour")
    elif isinstance(model, CountedMDP):
        mu = None
    else:
        mu = given["mu"] if "mu" in given else policy("epsilon_greedy:0.1", inner, "behaviour")
    bar = (TextColumn("{task.description}"), BarColumn(), TextColumn("left:"), TimeRemainingColumn())
    with Progress(*bar, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(inner.name or mdp, total=None)
        analysis = analyze(
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
        shown_mu = behaviour or (
            "as counted" if mu is None else "as in the file" if "mu" in given else "ε-greedy 0.1"
        )
        console.print(f"π: {target if 'pi' not in given else 'as in the file'}   μ: {shown_mu}", highlight=False)
        analysis.print(console)
    if output is not None:
        files = write(analysis, output)
        console.print(f"Written to [bold]{output}/[/bold]: {', '.join(files)}", highlight=False)


def write(analysis: Any, output: Path) -> list[str]:
    """Numbers, a table and pictures into a folder; the names of what was written."""
    output.mkdir(parents=True, exist_ok=True)
    numbers = json_module.dumps(analysis.as_dict(), indent=2, ensure_ascii=False)
    (output / "analysis.json").write_text(numbers + "\n", encoding="utf-8")
    rows = [row.as_dict() for row in analysis.rows]
    with (output / "analysis.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=[*rows[0]])
        writer.writeheader()
        writer.writerows(rows)
    files = ["analysis.json", "analysis.csv"]
    from offtrace.report import charts, safety

    pictures = {"contraction_against_variance": safety.contraction_against_variance(analysis)}
    if analysis.mdp.grid is not None:
        pictures["eta"] = safety.eta_map(analysis)
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
        return _from_arrays(arrays, name, gamma)
    discount = {} if gamma is None else {"gamma": gamma}
    if name in MDPS:
        if name == "random_walk" and gamma is None:
            discount = {"gamma": 0.99}
        return MDPS[name](**discount), {}
    try:
        return from_gymnasium(name, gamma=0.99 if gamma is None else gamma), {}
    except ValueError as error:
        raise ValueError(f"{error} Or name one of {', '.join(MDPS)}, or a file .npz or .csv.") from None


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path) as file:  # arrays only: a pickle is refused
            return {key: file[key] for key in file.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"`mdp`: {path} is no file of arrays that can be read: {error}") from None


def _read_csv(path: Path) -> dict[str, np.ndarray]:
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.reader(file)
        header = next(rows, [])
        missing = [column for column in COLUMNS if column not in header]
        if missing:
            raise ValueError(f"`mdp`: {path} must have the columns {', '.join(COLUMNS)}; {missing[0]} is missing.")
        places = [header.index(column) for column in COLUMNS]
        cells = [[row[place] for place in places] for row in rows if row]
    truth = {"true": "1", "false": "0"}
    try:
        table = np.array([[truth.get(cell.strip().lower(), cell) for cell in row] for row in cells], dtype=np.float64)
    except ValueError as error:
        raise ValueError(f"`mdp`: {path} must hold numbers: {error}") from None
    table = table.reshape(-1, len(COLUMNS))
    return dict(zip(COLUMNS, table.T, strict=True))


def _from_arrays(
    arrays: dict[str, np.ndarray], name: str, gamma: float | None
) -> tuple[FiniteMDP | CountedMDP, dict[str, np.ndarray]]:
    discount = gamma if gamma is not None else float(arrays["gamma"]) if "gamma" in arrays else 0.99
    given = {key: arrays[key] for key in ("pi", "mu") if key in arrays}
    if "p" in arrays and "r" in arrays:
        grid = tuple(arrays["grid"].tolist()) if "grid" in arrays else None
        named: dict[str, Any] = {"name": Path(name).stem, "grid": grid}
        return FiniteMDP(
            p=arrays["p"], r=arrays["r"], gamma=discount, terminates=arrays.get("terminates"), **named
        ), given
    missing = [column for column in COLUMNS if column not in arrays]
    if missing:
        raise ValueError(f"`mdp`: {name} must have p and r, or {', '.join(COLUMNS)}; {missing[0]} is missing.")
    whole = {}
    for column in ("state", "action", "next_state"):
        if not (arrays[column] == np.floor(arrays[column])).all():
            raise ValueError(f"`mdp`: {column} in {name} must be whole numbers.")
        whole[column] = arrays[column].astype(np.int64)
    counted = from_data(
        states=whole["state"],
        actions=whole["action"],
        rewards=arrays["reward"],
        next_states=whole["next_state"],
        terminated=arrays["terminated"].astype(bool),
        gamma=discount,
    )
    return counted, {key: value for key, value in given.items() if key == "pi"}


def policy(text: str, mdp: FiniteMDP, name: str) -> np.ndarray:
    """`uniform`, `greedy`, `epsilon_greedy:0.1`, `softmax:5`, or a file."""
    kind, _, number = text.partition(":")
    if kind.endswith(".npy"):
        try:
            return np.load(kind)
        except (ValueError, OSError, EOFError) as error:
            raise ValueError(f"`{name}`: {kind} cannot be read: {error}") from None
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
    return makers[kind](q_star(mdp), value)
