"""Random windows: the arguments of `ot.targets` and `ot.corrections` as NumPy arrays."""

from typing import Any

import numpy as np

Arrays = dict[str, Any]


def window(
    n: int = 6,
    batch: tuple[int, ...] = (2,),
    num_actions: int = 3,
    *,
    seed: int = 0,
    dtype: str = "float64",
    terminated: float = 0.0,
) -> Arrays:
    """Return a valid window of `n` steps. Each terminates with probability `terminated`; none is truncated."""
    rng = np.random.default_rng(seed)
    steps = (n, *batch)
    arrays = {
        "a": rng.integers(0, num_actions, steps),
        "pi": rng.dirichlet(np.ones(num_actions), (n + 1, *batch)),
        "q": rng.normal(size=(n + 1, *batch, num_actions)),
        "r": rng.normal(size=steps),
        "mu_a": rng.uniform(0.1, 1.0, steps),
        "discount": np.where(rng.random(steps) < terminated, 0.0, 0.9),
    }
    return {name: value if name == "a" else value.astype(dtype) for name, value in arrays.items()}


def with_ends(arrays: Arrays, seed: int = 1) -> Arrays:
    """Return the window with `reset` and `mask`: a tenth of the rows start an episode, a tenth are not steps."""
    rng = np.random.default_rng(seed)
    shape = arrays["r"].shape
    reset = rng.random(shape) < 0.1
    mask = rng.random(shape) < 0.9
    discount = arrays["discount"].copy()
    discount[:-1][reset[1:]] = 0  # the step before a new episode terminated
    return arrays | {"discount": discount, "reset": reset, "mask": mask}


def with_invalid_masked_rows(arrays: Arrays, seed: int = 2) -> Arrays:
    """Return the window with values that no step may have in the rows that are masked."""
    rng = np.random.default_rng(seed)
    mask = arrays["mask"]
    invalid = np.where(mask, 0, rng.choice([np.nan, np.inf, -7.0], mask.shape))
    changed = {name: arrays[name] + invalid for name in ("r", "discount", "mu_a")}
    return arrays | changed | {"a": np.where(mask, arrays["a"], 99)}


def correction_arguments(
    n: int = 6, batch: tuple[int, ...] = (2,), *, seed: int = 0, dtype: str = "float32"
) -> Arrays:
    """Return valid arguments of `ot.corrections`."""
    rng = np.random.default_rng(seed)
    names = ("q_a", "expected_q", "r", "c")
    arrays = {name: rng.uniform(0, 1, (n, *batch)).astype(dtype) for name in names}
    return arrays | {"discount": np.full((n, *batch), 0.9, dtype)}


def taken(values: np.ndarray, a: np.ndarray) -> np.ndarray:
    """Return the values of the actions that were taken, (n, …) from (n, …, A) or (n+1, …, A)."""
    return np.take_along_axis(values[: len(a)], a[..., None], -1)[..., 0]


def changed(arrays: Arrays, name: str, place: Any, value: Any) -> Arrays:
    """Return the same arguments with one value replaced; the arrays that were given stay as they are."""
    array = np.array(arrays[name])
    array[place] = value
    return arrays | {name: array}
