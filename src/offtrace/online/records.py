"""Stored trajectories, the result of one run, and the results of a sweep."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from offtrace.likelihoods import tolerance
from offtrace.mdp.finite import checked_gamma

STEP_ARRAYS = ("states", "actions", "rewards", "next_states", "terminated")


@dataclass(frozen=True, eq=False, repr=False)
class Trajectories:
    """m whole trajectories, one after the other: n steps in all.

    `states`, `actions`, `rewards` and `next_states` are (n,). `terminated` (n,) is True where a
    step ended its episode; it is False at the last step of a trajectory that was cut, whose last
    state keeps its value. `first` (m + 1,) has the index of each trajectory's first step, and n.
    `mu_a` (n,) is the probability with which each action was drawn at the time; traces that do not
    read μ do not need it.

    >>> Trajectories(states=[0, 1, 0], actions=[0, 0, 0], rewards=[0.0, 1.0, 0.0], next_states=[1, 2, 1],
    ...              terminated=[False, True, False], first=[0, 2, 3], num_states=3, num_actions=1, gamma=0.9)
    Trajectories(2 trajectories, 3 steps, X=3, A=1, gamma=0.9, without mu_a)
    """

    states: Any
    actions: Any
    rewards: Any
    next_states: Any
    terminated: Any
    first: Any
    num_states: int
    num_actions: int
    gamma: float
    mu_a: Any = None

    def __post_init__(self) -> None:
        fill = object.__setattr__
        fill(self, "gamma", checked_gamma(self.gamma))
        fill(self, "first", _indices("first", self.first))
        sizes = {"states": self.num_states, "actions": self.num_actions, "next_states": self.num_states}
        for name, size in sizes.items():
            values = _indices(name, getattr(self, name))
            fill(self, name, values)
            _check((values >= 0) & (values < size), name, f"must be in [0, {size})", values)
        fill(self, "rewards", np.ascontiguousarray(self.rewards, dtype=np.float64))
        fill(self, "terminated", np.ascontiguousarray(self.terminated, dtype=np.bool_))
        rounding = 0.0
        if self.mu_a is not None:
            rounding = tolerance(np.asarray(self.mu_a))
            fill(self, "mu_a", np.ascontiguousarray(self.mu_a, dtype=np.float64))
        for name in (*STEP_ARRAYS, "mu_a"):
            value = getattr(self, name)
            if value is not None and (value.ndim != 1 or value.shape != self.states.shape):
                raise ValueError(
                    f"`{name}` must have one entry per step, {self.states.shape}; got shape {value.shape}."
                )
        self._check_steps(rounding)

    def _check_steps(self, rounding: float) -> None:
        first = self.first
        n = self.num_steps
        if len(first) < 2 or first[0] != 0 or first[-1] != n or (np.diff(first) < 1).any():
            raise ValueError(f"`first` must increase from 0 to the number of steps, {n}, by 1 or more; got {first}.")
        _check(np.isfinite(self.rewards), "rewards", "must be finite", self.rewards)
        inside = np.ones(n, bool)  # not the last step of a trajectory
        inside[first[1:] - 1] = False
        rule = "must be False before the last step of a trajectory"
        remedy = "Start a new trajectory there, with `first`."
        _check(~(inside & self.terminated), "terminated", rule, self.terminated, remedy)
        broken = inside.copy()
        broken[:-1] &= self.next_states[:-1] != self.states[1:]
        rule = "must be the state of the next step of the same trajectory"
        _check(~broken, "next_states", rule, self.next_states)
        if self.mu_a is not None:
            good = (self.mu_a > 0) & (self.mu_a <= 1 + rounding)
            remedy = "It is the probability with which a_t was drawn; no action taken can have had 0."
            _check(good, "mu_a", "must be a probability in (0, 1]", self.mu_a, remedy)

    @classmethod
    def joined(cls, parts: Iterable["Trajectories"]) -> "Trajectories":
        """Join several collections of trajectories of one MDP, to replay from all of them."""
        parts = list(parts)
        if len({(*part.shape, part.gamma, part.mu_a is None) for part in parts}) != 1:
            raise ValueError(
                "`parts` must be one or more `Trajectories` of the same X, A and γ, all with `mu_a` or none."
            )
        steps = np.cumsum([0, *(part.num_steps for part in parts)])
        first = [part.first[:-1] + offset for part, offset in zip(parts, steps[:-1], strict=True)]
        names = STEP_ARRAYS if parts[0].mu_a is None else (*STEP_ARRAYS, "mu_a")
        arrays = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
        return replace(parts[0], **arrays, first=np.concatenate([*first, steps[-1:]]))

    def __len__(self) -> int:
        return len(self.first) - 1

    def __iter__(self) -> Iterator["Trajectories"]:
        for start, stop in zip(self.first[:-1], self.first[1:], strict=True):
            steps = {name: getattr(self, name)[start:stop] for name in STEP_ARRAYS}
            mu_a = None if self.mu_a is None else self.mu_a[start:stop]
            yield replace(self, **steps, mu_a=mu_a, first=np.array([0, stop - start]))

    def __repr__(self) -> str:
        sizes = f"{len(self):,} trajectories, {self.num_steps:,} steps, X={self.num_states:,}, A={self.num_actions:,}"
        drawn = "without mu_a" if self.mu_a is None else "with mu_a"
        return f"Trajectories({sizes}, gamma={self.gamma:g}, {drawn})"

    @property
    def num_steps(self) -> int:
        return len(self.states)

    @property
    def shape(self) -> tuple[int, int]:
        """(X, A)."""
        return self.num_states, self.num_actions


CURVES = ("num_steps", "returns", "max_error", "rms_error")
"""The curves of a run by name."""


@dataclass(frozen=True, eq=False, repr=False)
class Learned:
    """The result of one run: the final Q (X, A), the visit counts (X, A), and curves (P,).

    `num_episodes` has the number of trajectories at each point of the curves; the first is 0.
    `returns` is the mean discounted return of the behaviour since the point before (NaN at the
    first). `max_error` and `rms_error` are the errors of Q against `truth`, over the pairs of
    positive weight; None without a truth. A run stops once a TD error is not finite: `diverged_at`
    is that trajectory, and the errors after it are infinite.
    """

    q: np.ndarray
    visits: np.ndarray
    num_episodes: np.ndarray
    num_steps: np.ndarray
    returns: np.ndarray
    max_error: np.ndarray | None
    rms_error: np.ndarray | None
    diverged_at: int | None

    def __repr__(self) -> str:
        made = f"{self.num_episodes[-1]:,} trajectories, {self.num_steps[-1]:,} steps"
        if self.diverged_at is not None:
            return f"Learned(q {self.q.shape}, {made}, diverged at trajectory {self.diverged_at:,})"
        error = "" if self.max_error is None else f", max_error={self.max_error[-1]:.3g}"
        return f"Learned(q {self.q.shape}, {made}{error})"

    def columns(self) -> dict[str, np.ndarray]:
        """Return the curves by name, with one row per point, for a data frame or a chart."""
        named = {"num_episodes": self.num_episodes} | {name: getattr(self, name) for name in CURVES}
        return {name: values for name, values in named.items() if values is not None}


@dataclass(frozen=True, eq=False, repr=False)
class SweepResult:
    """The results of a grid of runs.

    `axes` maps `trace`, `lambda_`, `step_size` and `seed` to their values, in the order of the
    arrays' first axes. `num_steps`, `returns`, `max_error` and `rms_error` are (…, P), as in
    `Learned`; `q` is (…, X, A), or None where it was not kept; `diverged_at` (…) is −1 where a run
    did not diverge.
    """

    axes: Mapping[str, tuple[Any, ...]]
    num_episodes: np.ndarray
    num_steps: np.ndarray
    returns: np.ndarray
    max_error: np.ndarray | None
    rms_error: np.ndarray | None
    diverged_at: np.ndarray
    q: np.ndarray | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of each axis."""
        return tuple(len(values) for values in self.axes.values())

    def __repr__(self) -> str:
        axes = ", ".join(f"{name} {len(values)}" for name, values in self.axes.items())
        diverged = int((self.diverged_at >= 0).sum())
        runs = f"{self.diverged_at.size:,} runs ({axes})"
        return f"SweepResult({runs}, {self.num_episodes[-1]:,} trajectories each, {diverged:,} diverged)"

    def select(self, **where: Any) -> "SweepResult":
        """Return the part at these values, without their axes: `sweep.select(trace="retrace", lambda_=0.9)`."""
        index: list[Any] = [slice(None)] * len(self.axes)
        for name, value in where.items():
            if name not in self.axes:
                raise ValueError(f"unknown axis `{name}`; this sweep has {', '.join(self.axes)}.")
            if value not in self.axes[name]:
                raise ValueError(f"`{name}` must be one of {self.axes[name]}; got {value!r}.")
            index[list(self.axes).index(name)] = self.axes[name].index(value)
        parts: dict[str, Any] = {
            name: None if (array := getattr(self, name)) is None else array[tuple(index)]
            for name in (*CURVES, "diverged_at", "q")
        }
        axes = {name: values for name, values in self.axes.items() if name not in where}
        return SweepResult(axes=axes, num_episodes=self.num_episodes, **parts)

    def columns(self) -> dict[str, np.ndarray]:
        """Return the long form: one row per run and point, one column per axis and curve."""
        points = (*self.shape, len(self.num_episodes))
        grids = np.meshgrid(*(np.arange(size) for size in points), indexing="ij")
        named = {
            name: np.asarray(values)[grid.ravel()]
            for (name, values), grid in zip(self.axes.items(), grids[:-1], strict=True)
        }
        named["num_episodes"] = self.num_episodes[grids[-1].ravel()]
        curves = {name: getattr(self, name) for name in CURVES}
        return named | {name: values.ravel() for name, values in curves.items() if values is not None}


def _indices(name: str, values: Any) -> np.ndarray:
    array = np.asarray(values)
    if array.dtype.kind not in "iu":
        raise TypeError(f"`{name}` must be whole numbers; got {array.dtype}.")
    return np.ascontiguousarray(array, dtype=np.int64)


def _check(good: np.ndarray, name: str, rule: str, values: np.ndarray, remedy: str = "") -> None:
    if not good.all():
        place = int(np.argmin(good))
        raise ValueError(f"`{name}` {rule}; got {values[place]} at step {place}. {remedy}".rstrip())
