"""Models and policies for `analyze`, read by name or from files."""

import csv
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from offtrace import policies
from offtrace.files import read_npy, read_npz, regular_file
from offtrace.mdp import MDPS, CountedMDP, FiniteMDP, from_data, from_gymnasium
from offtrace.mdp.finite import checked_gamma
from offtrace.operators import q_star

DEFAULT_GAMMA = 0.99
MAX_LOG = 64 << 20
"""Most bytes of a log as text."""
MAX_PAIRS = 1 << 22
"""Most state-action pairs of a model that is counted from a log."""
MAX_SHOWN = 80
"""Most characters of a wrong row that are shown."""
COLUMNS = ("state", "action", "reward", "next_state", "terminated")

Model = FiniteMDP | CountedMDP
Arrays = dict[str, np.ndarray]


def read_model(name: str, gamma: float | None) -> tuple[Model, Arrays]:
    """Return the MDP of this name or file, and the policies `pi` and `mu` that the file has.

    `name` is a file .npz or .csv, a name in `MDPS`, or a Gymnasium id. `gamma` overrides the discount of a file.
    """
    path = Path(name)
    if path.suffix in (".npz", ".csv"):
        if not path.exists():
            raise ValueError(f"`mdp` must be an existing file; got {name!r}.")
        arrays = _read_csv(path) if path.suffix == ".csv" else _read_npz(path)
        try:
            return _from_arrays(arrays, name, gamma)
        except TypeError as error:  # an array of the wrong kind
            raise ValueError(f"`mdp`: {name}: {error}") from None
    discount = {} if gamma is None else {"gamma": checked_gamma(gamma)}
    if name in MDPS:
        if name == "random_walk" and gamma is None:  # its own discount is 1
            discount = {"gamma": DEFAULT_GAMMA}
        return _make(lambda: MDPS[name](**discount), name), {}
    return _make(lambda: from_gymnasium(name, gamma=discount.get("gamma", DEFAULT_GAMMA)), name), {}


def read_policy(text: str, mdp: FiniteMDP, name: str) -> np.ndarray:
    """Return the policy (X, A) that `text` names: uniform, greedy, epsilon_greedy:0.1, softmax:5, or a .npy file.

    `name` is the argument that errors name.
    """
    if text.endswith(".npy"):
        try:
            return read_npy(text)
        except ValueError as error:
            raise ValueError(f"`{name}`: {error}.") from None
    kind, _, number = text.partition(":")
    makers: dict[str, Callable[[np.ndarray, float], np.ndarray]] = {
        "uniform": lambda q, _: policies.uniform(q),
        "greedy": lambda q, _: policies.greedy(q),
        "epsilon_greedy": policies.epsilon_greedy,
        "softmax": policies.softmax,
    }
    has_number = kind in ("epsilon_greedy", "softmax")
    if kind not in makers or has_number != bool(number):
        raise ValueError(
            f"`{name}` must be uniform, greedy, epsilon_greedy:0.1, softmax:5 or a .npy file; got {text!r}."
        )
    try:
        value = float(number) if number else 0.0
    except ValueError:
        raise ValueError(f"`{name}` must have a number after {kind}:; got {number!r}.") from None
    q = np.zeros(mdp.shape) if kind == "uniform" else q_star(mdp)
    return makers[kind](q, value)


def _make(make: Callable[[], FiniteMDP], name: str) -> FiniteMDP:
    """Return the MDP; raise a ValueError that says why it cannot be made."""
    try:
        return make()
    except (ValueError, ImportError) as error:
        reason = error
    except Exception as error:
        if not type(error).__module__.startswith("gymnasium"):  # gymnasium may be missing: no import of its errors
            raise
        reason = error
    text = " ".join(str(reason).split())
    if not text.endswith((".", "?", "!")):
        text += "."
    others = "" if name in MDPS else f" Other options: {', '.join(MDPS)}, or a .npz or .csv file."
    raise ValueError(f"`mdp`: {text}{others}") from None


# -- files ---------------------------------------------------------------------------------------------------


def _read_npz(path: Path) -> Arrays:
    try:
        return read_npz(path)
    except ValueError as error:
        raise ValueError(f"`mdp`: {error}.") from None


def _read_csv(path: Path) -> Arrays:
    try:
        log = regular_file(path, MAX_LOG)
    except ValueError as error:
        raise ValueError(f"`mdp`: {error}.") from None
    try:
        with log.open(newline="", encoding="utf-8-sig") as file:
            return _columns(csv.reader(file), path)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"`mdp`: {path} cannot be read: {error}") from None


def _columns(rows: Iterator[list[str]], path: Path) -> Arrays:
    """Return the columns of a log. It is read row by row, and takes no more memory than its numbers."""
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
            if len(shown) > MAX_SHOWN:
                shown = f"{shown[:MAX_SHOWN]}…"
            raise ValueError(f"`mdp`: {path} must hold numbers; got {shown} in row {number}.") from None
    table = np.array(numbers).reshape(-1, len(COLUMNS))
    return dict(zip(COLUMNS, table.T, strict=True))


# -- arrays --------------------------------------------------------------------------------------------------


def _from_arrays(arrays: Arrays, name: str, gamma: float | None) -> tuple[Model, Arrays]:
    discount = _gamma(arrays, name) if gamma is None else gamma
    given = {key: arrays[key] for key in ("pi", "mu") if key in arrays}
    if "p" in arrays and "r" in arrays:
        return _from_model(arrays, name, discount), given
    given.pop("mu", None)  # μ is counted
    return _from_log(arrays, name, discount), given


def _gamma(arrays: Arrays, name: str) -> float:
    if "gamma" not in arrays:
        return DEFAULT_GAMMA
    if arrays["gamma"].size != 1:
        raise ValueError(f"`mdp`: gamma in {name} must be one number; got shape {arrays['gamma'].shape}.")
    return arrays["gamma"].item()


def _from_model(arrays: Arrays, name: str, gamma: float) -> FiniteMDP:
    grid: Any = None
    if "grid" in arrays:
        if arrays["grid"].shape != (2,):
            raise ValueError(f"`mdp`: grid in {name} must be (rows, columns); got shape {arrays['grid'].shape}.")
        grid = tuple(arrays["grid"].tolist())
    terminates = arrays.get("terminates")
    return FiniteMDP(
        p=arrays["p"], r=arrays["r"], gamma=gamma, terminates=terminates, name=Path(name).stem, grid=grid
    )


def _from_log(arrays: Arrays, name: str, gamma: float) -> CountedMDP:
    missing = [column for column in COLUMNS if column not in arrays]
    if missing:
        raise ValueError(f"`mdp`: {name} must have p and r, or {', '.join(COLUMNS)}; {missing[0]} is missing.")
    for column, most in (("state", 2**53), ("action", 2**53), ("next_state", 2**53), ("terminated", 1)):
        values = arrays[column]
        broken = ~((values == np.floor(values)) & (abs(values) <= most))
        if broken.any():
            rule = "0 or 1" if most == 1 else "whole numbers"
            raise ValueError(f"`mdp`: {column} in {name} must be {rule}; got {values[broken][0]:g}.")
    num_states = 1 + max(float(arrays[column].max(initial=0)) for column in ("state", "next_state"))
    num_actions = 1 + float(arrays["action"].max(initial=0))
    if num_states * num_actions > MAX_PAIRS:
        raise ValueError(
            f"`mdp`: {name} must have at most {MAX_PAIRS:,} pairs (x, a); got {num_states:,.0f} states × "
            f"{num_actions:,.0f} actions by its largest numbers. Number them from 0, without gaps."
        )
    counted = from_data(
        states=arrays["state"].astype(np.int64),
        actions=arrays["action"].astype(np.int64),
        rewards=arrays["reward"],
        next_states=arrays["next_state"].astype(np.int64),
        terminated=arrays["terminated"].astype(bool),
        gamma=gamma,
    )
    counted.mdp.name = Path(name).name
    return counted
