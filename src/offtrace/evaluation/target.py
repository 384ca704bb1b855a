"""The target policy π of an evaluation: a table, a file, a saved agent, or a function of the user's."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from offtrace.evaluation.log import Log
from offtrace.evaluation.problems import MOST_SHOWN, LogError, Problem, at, where, whole
from offtrace.files import read_npy, read_npz
from offtrace.imports import MODULE, import_object
from offtrace.likelihoods import tolerance

MOST_STATES = 10_000_000
"""The largest table that is made from a function."""
ROWS_AT_ONCE = 1 << 16
"""Rows that a function is called with at once."""
KINDS = (
    "a table (X, A), a file .npy or .npz (array `pi`), the folder of a run, a policy from `ot.load_policy`, "
    "a function that returns probabilities (N, A), or `module:function`"
)

Function = Callable[[np.ndarray], Any]


def _silent(_: str) -> None:
    """Say nothing."""


@dataclass(frozen=True, eq=False)
class Target:
    """A target policy. `as_target` makes one.

    >>> target = as_target([[0.5, 0.5], [0.0, 1.0]])
    >>> target
    Target(table of 2 states, 2 actions)
    >>> target.probabilities(np.array([1, 0, 1]))
    array([[0. , 1. ],
           [0.5, 0.5],
           [0. , 1. ]])
    """

    title: str
    """What it is, in a few words."""
    num_actions: int | None
    """A; None for a function that was made a target without a log."""
    table: np.ndarray | None = None
    """(X, A) probabilities; None for a policy on observations."""
    function: Function | None = None
    """Returns probabilities (N, A) for states (N,) or observations (N, d)."""
    log_density: Callable[[np.ndarray, np.ndarray], Any] | None = None
    """Returns log π(a|x) (N,) for observations (N, d) and actions (N, k), where actions are vectors."""

    def probabilities(self, x: np.ndarray) -> np.ndarray:
        """Return π(·|x) for states (N,) or observations (N, d): (N, A)."""
        if self.table is not None:
            return self.table[x]
        pieces = [piece for _, piece in self._pieces(x, None)]
        if not pieces:
            return np.zeros((0, self.num_actions or 0))
        return np.concatenate(pieces)

    def of_actions(self, log: Log) -> np.ndarray:
        """Return π(a_t|x_t) of every row of a log, (N,), without a table of all rows."""
        if self.log_density is not None:
            return np.exp(self.log_densities(log))
        if self.table is not None:
            return self.table[log.state, log.action]
        x = log.observation if log.state is None else log.state
        assert x is not None
        found = np.empty(log.num_steps)
        for rows, piece in self._pieces(x, log.row):
            found[rows] = np.take_along_axis(piece, log.action[rows, None], axis=1)[:, 0]
        return found

    def _pieces(self, x: np.ndarray, source_rows: np.ndarray | None) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield π(·|x) for a few rows at a time. Errors name rows of `x`, or their `source_rows`."""
        assert self.function is not None
        for start in range(0, len(x), ROWS_AT_ONCE):
            rows = slice(start, min(start + ROWS_AT_ONCE, len(x)))
            numbers = np.arange(rows.start, rows.stop) if source_rows is None else source_rows[rows]
            yield rows, _checked(self.function(x[rows]), self.num_actions, numbers)

    def log_densities(self, log: Log) -> np.ndarray:
        """Return log π(a_t|x_t) of every row of a log whose actions are vectors, (N,)."""
        assert self.log_density is not None
        x = log.observation if log.state is None else log.state
        assert x is not None
        found = np.empty(log.num_steps)
        for start in range(0, log.num_steps, ROWS_AT_ONCE):
            rows = slice(start, start + ROWS_AT_ONCE)
            given = np.asarray(self.log_density(x[rows], log.action[rows]))
            wanted = found[rows].shape
            if given.shape != wanted or given.dtype.kind not in "fiu" or np.isnan(given).any():
                raise ValueError(
                    f"`target` must give log-densities of shape {wanted} without NaN, as the actions of the log are "
                    f"vectors; got {given.dtype} of {given.shape}."
                )
            found[rows] = given
        return found

    def __repr__(self) -> str:
        actions = "" if self.num_actions is None else f", {self.num_actions} actions"
        return f"Target({self.title}{actions})"


def as_target(
    given: Any,
    *,
    log: Log | None = None,
    epsilon: float = 0.0,
    allow_import: Collection[str] = (),
    tell: Callable[[str], None] = _silent,
) -> Target:
    """Return a target policy from whatever describes one; raise if it cannot be one, or does not fit the log.

    Args:
        given: A table (X, A); a file .npy, or .npz with an array `pi`; the folder of a run; a policy from
            `ot.load_policy`; a function from states (N,) or observations (N, d) to probabilities
            (N, A), or from observations (N, d) and actions (N, k) to log-densities (N,) where the log's
            actions are vectors; such a function as text, `module:function`; or a `Target`.
        log: The log that it is evaluated on. A function of states becomes a table of the log's states.
        epsilon: Probability of a random action, for saved agents; 0 is the greedy policy.
        allow_import: Modules that may be imported for the environment of a saved agent.
        tell: Is called with a line about every module that is imported.
    """
    target = _made(given, epsilon, allow_import, tell)
    return target if log is None else _fitted(target, log)


def impossible(log: Log, pi_a: np.ndarray) -> list[Problem]:
    """Return the problem that no episode of the log could come from π: each has a step with π(a_t|x_t) = 0."""
    never = np.flatnonzero(pi_a == 0)
    episode = np.searchsorted(log.first, never, side="right") - 1
    hit, first = np.unique(episode, return_index=True)
    if len(hit) < log.num_episodes:
        return []
    rule = "no episode could come from the target policy: each has an action that it never takes; the first of each"
    return at(rule, log.source_rows(never[first]))


# -- what was given ------------------------------------------------------------------------------


def _made(given: Any, epsilon: float, allow_import: Collection[str], tell: Callable[[str], None]) -> Target:
    if isinstance(given, Target):
        return given
    if isinstance(given, str | Path):
        return _from_text(str(given), epsilon, allow_import, tell)
    if hasattr(given, "probabilities") and hasattr(given, "spaces"):
        return _of_agent(given, epsilon, "saved agent")
    if epsilon:
        raise ValueError(f"`epsilon` must come with a saved agent; got {epsilon!r} with another target.")
    if callable(given):
        name = getattr(given, "__name__", type(given).__name__)
        return Target(f"function {name}", None, function=partial(_of_function, given, name))
    return _of_table(given, "table")


def _of_function(function: Callable[..., Any], name: str, *rows: np.ndarray) -> Any:
    """Call a user's function with many rows at once; if it raises, say how it is called."""
    try:
        return function(*rows)
    except Exception as error:
        shapes = " and ".join(str(array.shape) for array in rows)
        given, wanted = ("states or observations", "probabilities (N, A)")
        if len(rows) > 1:
            given, wanted = ("observations and actions", "log-densities (N,)")
        raise ValueError(
            f"`target` must be a function of {given}, N rows at once, that returns {wanted}; "
            f"for {shapes}, {name} raised {type(error).__name__}: {error}"
        ) from error


def _from_text(text: str, epsilon: float, allow_import: Collection[str], tell: Callable[[str], None]) -> Target:
    path = Path(text)
    module, colon, name = text.partition(":")
    if path.is_dir():
        try:
            from offtrace.agent.policy import load_policy
        except ModuleNotFoundError as missing:
            raise ImportError(f"a saved agent needs an extra: pip install 'offtrace[agent]' ({missing})") from missing
        return _of_agent(load_policy(path, allow_import=allow_import, warn=tell), epsilon, text)
    if epsilon:
        raise ValueError(f"`epsilon` must come with a saved agent; got {epsilon!r} with {text!r}.")
    if path.suffix in (".npy", ".npz"):
        return _of_table(_read(path), text)
    if colon and name and MODULE.fullmatch(module) and not path.exists():
        found = import_object(text, tell)
        if isinstance(found, str | Path):
            raise ValueError(f"`target` must be a function or a table; {text!r} is {found!r}.")
        made = _made(found, 0.0, (), tell)
        return Target(text, made.num_actions, made.table, made.function)
    raise ValueError(f"`target` must be {KINDS}; got {text!r}.")


def _read(path: Path) -> np.ndarray:
    try:
        if path.suffix == ".npy":
            return read_npy(path)
        arrays = read_npz(path)
    except ValueError as error:
        raise ValueError(f"`target`: {error}.") from None
    if "pi" not in arrays:
        raise ValueError(f"`target` must have an array `pi` in {path}; got {', '.join(arrays) or 'no array'}.")
    return arrays["pi"]


def _of_table(given: Any, title: str) -> Target:
    try:
        table = np.asarray(given)
    except ValueError:  # nested lists of different lengths
        raise ValueError(f"`target` must be {KINDS}; got lists of different lengths.") from None
    if table.ndim != 2 or not table.size or table.dtype.kind not in "fiu":
        raise ValueError(f"`target` must be {KINDS}; got {_kind_of(given, table)}.")
    checked = _checked(table, None, np.arange(len(table)))
    if title == "table":
        title = f"table of {len(table):,} states"
    return Target(title, table.shape[1], checked)


def _kind_of(given: Any, table: np.ndarray) -> str:
    if table.dtype.kind == "O":
        return f"{type(given).__name__}"
    return f"{table.dtype} of shape {table.shape}"


def _of_agent(policy: Any, epsilon: float, title: str) -> Target:
    if not 0 <= epsilon <= 1:
        raise ValueError(f"`epsilon` must be in [0, 1]; got {epsilon!r}.")
    kind = f"ε = {epsilon:g}" if epsilon else "greedy"
    function = partial(_of_observations, policy, epsilon)
    return Target(f"{title}, {kind}", int(policy.spaces.num_actions), function=function)


def _of_observations(policy: Any, epsilon: float, x: np.ndarray) -> np.ndarray:
    """Return an agent's probabilities. Logs have vectors of float64; the agent may read images or booleans."""
    shape, dtype = policy.spaces.observation
    if x.ndim == 2 and x.shape[1] == int(np.prod(shape)):
        x = x.reshape(len(x), *shape)
        if dtype.kind != "f":
            exact = x.astype(dtype)
            if not (exact == x).all():
                raise ValueError(f"the observations of the log must be {dtype}, as the agent's; got others.")
            x = exact
    return policy.probabilities(x, epsilon=epsilon)


# -- checks --------------------------------------------------------------------------------------


def _fitted(target: Target, log: Log) -> Target:
    """Return the target for a log: with a table if the log has states; raise if it does not fit."""
    if log.action.ndim != 1:
        if target.log_density is not None:
            return target
        if target.function is None or target.num_actions is not None:
            raise ValueError(
                "`target` must be a function from observations (N, d) and actions (N, k) to log-densities (N,), "
                f"as the actions of this log are vectors; got {target!r}."
            )
        return Target(target.title, None, log_density=target.function)  # ty: ignore[invalid-argument-type]
    fit = _for_observations if log.state is None else _for_states
    target = fit(target, log)
    assert target.num_actions is not None
    rule = f"`action` must be below {target.num_actions}, the number of actions of the target policy"
    problems = where(rule, log.action >= target.num_actions, log.row)
    if problems:
        raise LogError(problems)
    return target


def _for_observations(target: Target, log: Log) -> Target:
    if target.table is not None:
        raise LogError([whole("a table (X, A) needs a log of states; this one has observations. Pass a function")])
    assert log.observation is not None
    num_actions = target.probabilities(log.observation[:1]).shape[1]
    return Target(target.title, num_actions, function=target.function)


def _for_states(target: Target, log: Log) -> Target:
    assert log.state is not None
    successor = np.zeros(1, np.int32)
    if log.successor is not None:
        successor = np.where(log.terminated, 0, log.successor)  # what follows an end is never read
    if target.table is None:
        num_states = 1 + max(int(log.state.max()), int(successor.max()))
        if num_states > MOST_STATES:
            raise LogError(
                [whole(f"states must be numbered from 0 without large gaps; the largest is {num_states - 1:,}")]
            )
        table = target.probabilities(np.arange(num_states))
        return Target(target.title, table.shape[1], table, target.function)
    num_states = len(target.table)
    rule = f"must be below {num_states:,}, the number of states of the target policy"
    problems = where(f"`state` {rule}", log.state >= num_states, log.row)
    problems += where(f"`next_state` {rule}", successor >= num_states, log.row)
    if problems:
        raise LogError(problems)
    return target


def _checked(given: Any, num_actions: int | None, rows: np.ndarray) -> np.ndarray:
    """Return probabilities (N, A) as float64; raise unless every row is a distribution, up to rounding.

    `rows` (N,) are the numbers of the rows in errors.
    """
    array = np.asarray(given)
    wanted = "A" if num_actions is None else str(num_actions)
    wrong_width = num_actions is not None and array.shape[1:] != (num_actions,)
    if array.ndim != 2 or len(array) != len(rows) or wrong_width or array.dtype.kind not in "fiu":
        raise ValueError(
            f"`target` must give probabilities of shape ({len(rows)}, {wanted}); "
            f"got {array.dtype} of shape {array.shape}."
        )
    _refuse("must have finite probabilities", ~np.isfinite(array).all(axis=1), array, rows)
    _refuse("must not have negative probabilities", (array < 0).any(axis=1), array, rows)
    off = np.abs(array.sum(axis=1, dtype=np.float64) - 1)
    _refuse("must have rows that sum to 1", off > tolerance(array), array, rows)
    return array.astype(np.float64, copy=False)


def _refuse(rule: str, broken: Any, array: np.ndarray, rows: np.ndarray) -> None:
    found = np.flatnonzero(broken)
    if not len(found):
        return
    shown = ", ".join(f"{row:,}" for row in rows[found][:MOST_SHOWN])
    more = f" and {len(found) - MOST_SHOWN:,} more" if len(found) > MOST_SHOWN else ""
    row = np.array2string(array[found[0]], precision=6, threshold=8)
    raise ValueError(f"`target` {rule}; got {row} in row{'s' if len(found) > 1 else ''} {shown}{more}.")
