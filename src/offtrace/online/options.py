"""The options that all doors share, with their defaults, and the setting they make."""

import difflib
from typing import Any, TypedDict

import numpy as np

from offtrace.mdp import FiniteMDP
from offtrace.online.checks import count, one_of, shape_and_gamma, table
from offtrace.online.records import Trajectories
from offtrace.online.sequences import Fixed, Sequence
from offtrace.online.setting import Setting, acted_in


class Options(TypedDict, total=False):
    """What each means is said at `control`."""

    num_episodes: int | None
    update: str
    view: str
    visits: str
    q0: Any
    gamma: float | None
    order: str
    max_steps: int
    truth: Any
    weights: Any
    record_every: int | None
    engine: str


def setting(source: Any, target: Sequence, behaviour: Sequence, options: Options) -> Setting:
    """Everything checked, the defaults filled in."""
    unknown = set(options) - set(Options.__annotations__)
    if unknown:
        name = min(unknown)
        near = difflib.get_close_matches(name, Options.__annotations__, n=1)
        hint = f" Did you mean `{near[0]}`?" if near else ""
        raise TypeError(f"`{name}` is no option; there are {', '.join(Options.__annotations__)}.{hint}")
    return _setting(source, target, behaviour, **options)


def _setting(
    source: Any,
    target: Sequence,
    behaviour: Sequence,
    *,
    num_episodes: int | None = None,
    update: str = "trajectory",
    view: str = "forward",
    visits: str = "every",
    q0: Any = 0.0,
    gamma: float | None = None,
    order: str = "stored",
    max_steps: int = 1_000,
    truth: Any = None,
    weights: Any = None,
    record_every: int | None = None,
    engine: str = "auto",
) -> Setting:
    shape, gamma = shape_and_gamma(source, gamma)
    stored = isinstance(source, Trajectories)
    if num_episodes is None:
        num_episodes = len(source) if stored else 1_000
    num = count("num_episodes", num_episodes, 1)
    every = max(1, num // 100) if record_every is None else count("record_every", record_every, 1)
    fixed = behaviour.table(shape) if isinstance(behaviour, Fixed) and not stored else None
    pi = target.table(shape) if isinstance(target, Fixed) else None
    if weights is None and isinstance(source, FiniteMDP):
        weights = np.repeat(acted_in(source, fixed)[:, None], shape[1], axis=1).astype(np.float64)
        weights *= 1.0 if fixed is None else fixed > 0
    weights = table("weights", 1.0 if weights is None else weights, shape)
    if (weights < 0).any() or not weights.any():
        raise ValueError("`weights` must be at least 0, and above it somewhere.")
    if fixed is not None and pi is not None and isinstance(source, FiniteMDP):
        _check_coverage(source, pi, fixed)
    return Setting(
        source=source,
        shape=shape,
        gamma=gamma,
        target=target,
        behaviour=behaviour,
        num_episodes=num,
        every_step=one_of("update", update, ("trajectory", "step")) == "step",
        backward=one_of("view", view, ("forward", "backward")) == "backward",
        first_visit=one_of("visits", visits, ("every", "first")) == "first",
        max_steps=count("max_steps", max_steps, 1),
        record_every=every,
        order=one_of("order", order, ("stored", "random")),
        engine=one_of("engine", engine, ("auto", "compiled", "python")),
        q0=table("q0", q0, shape),
        truth=None if truth is None else table("truth", truth, shape),
        weights=weights,
    )


def _check_coverage(mdp: FiniteMDP, pi: np.ndarray, mu: np.ndarray) -> None:
    """Theorem 3 asks that every pair is visited: what μ never does, and π does, keeps its first value for ever."""
    missing = (pi > 0) & ~(mu > 0) & acted_in(mdp, mu)[:, None]
    if missing.any():
        x, a = np.argwhere(missing)[0].tolist()
        raise ValueError(
            f"`mu` must be above 0 wherever π is; got μ = 0, π = {pi[x, a]:.6g} at (x, a) = ({x}, {a}). What is "
            "never tried is never learned: mix a little of π into μ."
        )
