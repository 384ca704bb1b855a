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
EPISODES = ("episode", "step", "truncated")
"""Columns that a log of episodes has beside those of transitions."""
PARQUET = (".parquet", ".pq")
SUFFIXES = (".npz", ".csv", *PARQUET)
"""Names of files that are read; other names are those of models."""

Model = FiniteMDP | CountedMDP
Arrays = dict[str, np.ndarray]


def _silent(_: str) -> None:
    """Say nothing."""


def read_model(name: str, gamma: float | None, tell: Callable[[str], None] = _silent) -> tuple[Model, Arrays]:
    """Return the MDP of this name or file, and the policies `pi` and `mu` that the file has.

    `name` is a file .npz, .csv or .parquet, a folder of Parquet files, a name in `MDPS`, or a Gymnasium id.
    `gamma` overrides the discount of a file. `tell` is called with a line about what a file has in excess.
    """
    path = Path(name)
    if path.suffix in SUFFIXES or _has_parquet(path):
        if not path.exists():
            raise ValueError(f"`mdp` must be an existing file; got {name!r}.")
        arrays = _read_file(path, tell)
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


def _has_parquet(path: Path) -> bool:
    return path.is_dir() and any(file.suffix in PARQUET for file in path.iterdir())


def _read_file(path: Path, tell: Callable[[str], None]) -> Arrays:
    if path.suffix == ".npz":
        return _read_npz(path, tell)
    if path.suffix == ".csv":
        return _read_csv(path, tell)
    return _read_log(path, tell)


def _read_log(path: Path, tell: Callable[[str], None]) -> Arrays:
    """Return the transitions of a log of episodes, as `evaluation.read` reads it."""
    from offtrace.evaluation.reading import read

    try:
        log = read(path, tell=tell)
        arrays = log.transitions()
    except (ValueError, ImportError) as error:
        raise ValueError(f"`mdp`: {path}: {error}") from None
    num_left_out = log.num_steps - len(arrays["state"])
    if num_left_out == 1:
        tell(f"{path}: 1 truncated step has no next state in the log, and is not counted.")
    elif num_left_out:
        tell(f"{path}: {num_left_out:,} truncated steps have no next state in the log, and are not counted.")
    return arrays


def _read_npz(path: Path, tell: Callable[[str], None]) -> Arrays:
    try:
        arrays = read_npz(path)
    except ValueError as error:
        raise ValueError(f"`mdp`: {error}.") from None
    is_model = "p" in arrays and "r" in arrays
    after = arrays.get("next_state")
    is_whole = after is not None and after.dtype.kind in "iufb" and not (after < 0).any()
    if set(EPISODES) <= arrays.keys() and not is_whole and not is_model:
        return _read_log(path, tell)
    return arrays


def _read_csv(path: Path, tell: Callable[[str], None]) -> Arrays:
    """Return the columns of a CSV file: of transitions, or else of episodes, where a next state may be missing."""
    from offtrace.evaluation.text import header_of

    try:
        header = header_of(path)
    except (ValueError, OSError, csv.Error):
        header = []  # the reader below says why
    has_episodes = set(EPISODES) <= set(header)
    if has_episodes and "next_state" not in header:
        return _read_log(path, tell)
    try:
        return _read_transitions(path)
    except ValueError:
        if not has_episodes:
            raise
        return _read_log(path, tell)


def _read_transitions(path: Path) -> Arrays:
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
