"""What goes in and what comes out: stored trajectories, one run, a grid of runs."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from offtrace.likelihoods import tolerance
from offtrace.mdp.finite import checked_gamma


@dataclass(frozen=True, eq=False)
class Trajectories:
    """m whole trajectories, one after the other: n steps in all.

    `x`, `a`, `r`, `x_next` are (n,); `terminated` (n,) is True where a step ended its episode, and False at the last
    step of a trajectory that was cut: its value goes on, its trace does not. `first` (m + 1,) says where trajectories
    begin. `mu_a` (n,) is the probability with which a_t was drawn, as it was then; traces that do not read μ do
    without it.

    >>> two = Trajectories(x=[0, 1, 0], a=[0, 0, 0], r=[0.0, 1.0, 0.0], x_next=[1, 2, 1],
    ...                    terminated=[False, True, False], first=[0, 2, 3], num_states=3, num_actions=1, gamma=0.9)
    >>> len(two), two.num_steps
    (2, 3)
    """

    x: Any
    a: Any
    r: Any
    x_next: Any
    terminated: Any
    first: Any
    num_states: int
    num_actions: int
    gamma: float
    mu_a: Any = None

    def __post_init__(self) -> None:
        fill = object.__setattr__
        fill(self, "gamma", checked_gamma(self.gamma))
        fill(self, "first", _whole("first", self.first))
        for name, size in (("x", self.num_states), ("a", self.num_actions), ("x_next", self.num_states)):
            values = _whole(name, getattr(self, name))
            fill(self, name, values)
            _refuse((values < 0) | (values >= size), name, f"must be in [0, {size})", values)
        fill(self, "r", np.ascontiguousarray(self.r, dtype=np.float64))
        fill(self, "terminated", np.ascontiguousarray(self.terminated, dtype=np.bool_))
        off = tolerance(np.asarray(self.mu_a)) if self.mu_a is not None else 0.0
        fill(self, "mu_a", None if self.mu_a is None else np.ascontiguousarray(self.mu_a, dtype=np.float64))
        steps = self.x.shape
        for name in ("x", "a", "r", "x_next", "terminated", "mu_a"):
            value = getattr(self, name)
            if value is not None and (value.ndim != 1 or value.shape != steps):
                raise ValueError(f"`{name}` must have one entry for each step, {steps}; got {value.shape}.")
        self._check_steps(off)

    def _check_steps(self, off: float) -> None:
        first = self.first
        if len(first) < 2 or first[0] != 0 or first[-1] != len(self.x) or (np.diff(first) < 1).any():
            raise ValueError(
                f"`first` must grow from 0 to the number of steps, {len(self.x)}, by 1 or more for each trajectory; "
                f"got {first}."
            )
        _refuse(~np.isfinite(self.r), "r", "must be finite", self.r)
        inside = np.ones(len(self.x), bool)
        inside[first[1:] - 1] = False
        rule = "must be False before the last step of a trajectory"
        _refuse(inside & self.terminated, "terminated", rule, self.terminated, "Begin a new one there, with `first`.")
        broken = inside.copy()
        broken[:-1] &= self.x_next[:-1] != self.x[1:]
        _refuse(broken, "x_next", "must be the state of the next step of the same trajectory", self.x_next)
        if self.mu_a is not None:
            bad = ~((self.mu_a > 0) & (self.mu_a <= 1 + off))
            remedy = "It is the probability with which a_t was drawn; no action taken can have had 0."
            _refuse(bad, "mu_a", "must be a probability in (0, 1]", self.mu_a, remedy)

    @classmethod
    def joined(cls, parts: Iterable["Trajectories"]) -> "Trajectories":
        """Those of several collections, of one MDP, as one: a memory to replay from."""
        parts = list(parts)
        if len({(*part.shape, part.gamma, part.mu_a is None) for part in parts}) != 1:
            raise ValueError("`parts` must be one or more of the same X, A and γ, all with `mu_a` or none.")
        steps = np.cumsum([0, *(part.num_steps for part in parts)])
        first = [part.first[:-1] + offset for part, offset in zip(parts, steps[:-1], strict=True)]
        names = ("x", "a", "r", "x_next", "terminated", *(() if parts[0].mu_a is None else ("mu_a",)))
        arrays = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
        return replace(parts[0], **arrays, first=np.concatenate([*first, steps[-1:]]))

    def __len__(self) -> int:
        return len(self.first) - 1

    def __iter__(self) -> Iterator["Trajectories"]:
        for start, stop in zip(self.first[:-1], self.first[1:], strict=True):
            steps = {name: getattr(self, name)[start:stop] for name in ("x", "a", "r", "x_next", "terminated")}
            mu_a = None if self.mu_a is None else self.mu_a[start:stop]
            yield replace(self, **steps, mu_a=mu_a, first=np.array([0, stop - start]))

    @property
    def num_steps(self) -> int:
        return len(self.x)

    @property
    def shape(self) -> tuple[int, int]:
        """(X, A)."""
        return self.num_states, self.num_actions


CURVES = ("num_steps", "returns", "max_error", "rms_error")


@dataclass(frozen=True, eq=False)
class Learned:
    """One run: Q at the end, and curves whose points are the trajectory counts in `num_episodes`; the first is 0.

    `returns` is the mean discounted return of the trajectories since the point before (NaN at the first): what the
    behaviour earned. `max_error` and `rms_error` are those of Q against `truth`, over the pairs of positive weight,
    and None without a truth. Once a TD error is no longer finite the run stops, at trajectory `diverged_at`, and the
    errors after it are infinite.
    """

    q: np.ndarray
    visits: np.ndarray
    num_episodes: np.ndarray
    num_steps: np.ndarray
    returns: np.ndarray
    max_error: np.ndarray | None
    rms_error: np.ndarray | None
    diverged_at: int | None

    def columns(self) -> dict[str, np.ndarray]:
        """The curves by name, one row for each point: for a data frame or a chart."""
        named = {"num_episodes": self.num_episodes} | {name: getattr(self, name) for name in CURVES}
        return {name: values for name, values in named.items() if values is not None}


@dataclass(frozen=True, eq=False)
class Sweep:
    """A grid of runs: `axes` names its axes in order, and every curve has those, then the points.

    `axes` maps `trace`, `lambda_`, `step_size` and `seed` to their values. `num_steps`, `returns`, `max_error` and
    `rms_error` are (…, P), as in `Learned`; `q` is (…, X, A), or None where it was not kept; `diverged_at` (…) is −1
    where a run did not diverge.
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
        """How many values each axis has."""
        return tuple(len(values) for values in self.axes.values())

    def select(self, **where: Any) -> "Sweep":
        """The part at these values, without their axes: `sweep.select(trace="retrace", lambda_=0.9)`."""
        index: list[Any] = [slice(None)] * len(self.axes)
        for name, value in where.items():
            if name not in self.axes:
                raise ValueError(f"`{name}` is no axis of this sweep; it has {', '.join(self.axes)}.")
            if value not in self.axes[name]:
                raise ValueError(f"`{name}` must be one of {self.axes[name]}; got {value!r}.")
            index[list(self.axes).index(name)] = self.axes[name].index(value)
        parts: dict[str, Any] = {
            name: None if (array := getattr(self, name)) is None else array[tuple(index)]
            for name in (*CURVES, "diverged_at", "q")
        }
        axes = {name: values for name, values in self.axes.items() if name not in where}
        return Sweep(axes=axes, num_episodes=self.num_episodes, **parts)

    def columns(self) -> dict[str, np.ndarray]:
        """Long form: one row for each run and point, a column for each axis and curve."""
        points = (*self.shape, len(self.num_episodes))
        grids = np.meshgrid(*(np.arange(size) for size in points), indexing="ij")
        named = {
            name: np.asarray(values)[grid.ravel()]
            for (name, values), grid in zip(self.axes.items(), grids[:-1], strict=True)
        }
        named["num_episodes"] = self.num_episodes[grids[-1].ravel()]
        curves = {name: getattr(self, name) for name in CURVES}
        return named | {name: values.ravel() for name, values in curves.items() if values is not None}


def _whole(name: str, values: Any) -> np.ndarray:
    array = np.asarray(values)
    if array.dtype.kind not in "iu":
        raise TypeError(f"`{name}` must be whole numbers; got {array.dtype}.")
    return np.ascontiguousarray(array, dtype=np.int64)


def _refuse(bad: np.ndarray, name: str, rule: str, values: np.ndarray, remedy: str = "") -> None:
    if bad.any():
        place = int(np.argmax(bad))
        raise ValueError(f"`{name}` {rule}; got {values[place]} at step {place}. {remedy}".rstrip())
