"""From Gymnasium's flags, `terminated` and `truncated`, to the `discount`, `mask` and `reset` of `targets`.

A loop writes one row per call of `env.step`: the observation that the action was chosen for, and what `step`
returned. Which rows follow the end of an episode depends on the autoreset mode: who calls `reset`, and when.
"""

from typing import Any, NamedTuple

import numpy as np

from offtrace.arrays import Array, is_concrete, library, namespace
from offtrace.errors import raise_where

NEXT_STEP = "next_step"
SAME_STEP = "same_step"
DISABLED = "disabled"
MODES = (NEXT_STEP, SAME_STEP, DISABLED)


class EpisodeFlags(NamedTuple):
    """Where episodes end, as `targets` takes it: `targets(..., **flags._asdict())`."""

    discount: Array
    """(n, …): γ, and 0 where step t terminated."""
    mask: Array
    """(n, …) bool: False where row t is not a step to learn from."""
    reset: Array
    """(n, …) bool: True where row t starts an episode. In row 0 it has no effect."""


def flags_from_gymnasium(
    *,
    terminated: Array,
    truncated: Array,
    gamma: Any,
    autoreset: Any,
    ended_before: Array | bool | None = None,
    keep_truncated: bool = False,
    validate: bool = True,
) -> EpisodeFlags:
    """Return `discount`, `mask` and `reset` for `targets` from the flags that Gymnasium's `step` returned.

    Rows are consecutive calls of `step`, with the time axis first: (n,) for one environment, (n, B) for a vector
    environment or for windows from replay. NumPy, JAX and PyTorch in and out. In these rows, step 1 ended the episode
    x_0, x_1, x_2, and the episode y_0, y_1, … follows.

    Next-step autoreset: the call after the end ignores its action and resets. It gives the dummy row, whose
    observation is the true last one of the episode, so `q[2]` is right for step 1.

        row            0       1       2       3       4
        observation    x_0     x_1     x_2     y_0     y_1
        mask           True    True    False   True    True      row 2 is the dummy row
        reset          False   False   False   True    False
        discount       γ       γ or 0  –       γ       γ         0 if step 1 terminated

    Same-step autoreset: the call that ends the episode also resets. The last observation x_2 is in
    `info["final_obs"]`, and in no row. Disabled autoreset, where your loop calls `reset` after the end, gives the
    same rows.

        row            0       1       2       3
        observation    x_0     x_1     y_0     y_1
        mask           True    *       True    True      * True if step 1 terminated, False if it was truncated
        reset          False   False   True    False
        discount       γ       γ or 0  γ       γ         0 if step 1 terminated

    A truncated step needs the value of x_2. It is masked here, so its transition is lost; step 0 still bootstraps
    from x_1. With `keep_truncated=True` it is kept, and `targets` needs the value of x_2 in `expected_q`.

    Args:
        terminated, truncated: (n, …) bool.
        gamma: γ, one number or (n, …). The discount has its dtype; for a Python float, the default of the array
            library (float64 in NumPy, so use `np.float32(0.99)` with float32 values).
        autoreset: `"next_step"`, `"same_step"`, or `"disabled"` if your loop calls `reset` after an end and stores no
            row for it. `env.metadata["autoreset_mode"]` of a vector environment is accepted as it is.
        ended_before: whether the step before row 0 ended its episode: one bool, or one per environment (…). Required
            for next-step autoreset, where row 0 is then the dummy row. False if row 0 follows `reset()`.
        keep_truncated: keep truncated steps in same-step and disabled autoreset, instead of masking them. `targets`
            then needs the value of their last observation in `expected_q`. Next-step autoreset always keeps them.
        validate: check the values as well as the shapes; inside `jit` values are unknown and pass.

    >>> flags = flags_from_gymnasium(
    ...     terminated=np.array([False, True, False, False]), truncated=np.zeros(4, bool),
    ...     gamma=0.5, autoreset="next_step", ended_before=False)
    >>> flags.discount
    array([0.5, 0. , 0.5, 0.5])
    >>> flags.mask
    array([ True,  True, False,  True])
    """
    mode = _mode(autoreset)
    terminated, truncated, ended_before = _same_library(terminated, truncated, ended_before, gamma)
    _check_shapes(terminated, truncated, ended_before, mode)
    xp = namespace(terminated)
    ended = terminated | truncated
    first = _first_row(ended_before, terminated)
    after_end = xp.concatenate([first, ended[:-1]])
    gamma = _gamma(gamma, terminated)
    if validate:
        _check_values(gamma, ended & after_end if mode == NEXT_STEP else None)
    discount = xp.where(terminated, 0, gamma)
    if mode == NEXT_STEP:
        after_dummy = xp.concatenate([xp.zeros_like(first), after_end[:-1]])
        return EpisodeFlags(discount, mask=~after_end, reset=after_dummy)
    # Termination wins where both flags are True: nothing comes after the step.
    lost = truncated & ~terminated & (not keep_truncated)
    return EpisodeFlags(discount, mask=~lost, reset=after_end)


def _mode(given: Any) -> str:
    """Return the autoreset mode by name; Gymnasium's own has the name `NEXT_STEP` and the value `"NextStep"`."""
    name = getattr(given, "name", given)
    plain = name.replace("_", "").lower() if isinstance(name, str) else None
    for mode in MODES:
        if mode.replace("_", "") == plain:
            return mode
    raise ValueError(
        f"`autoreset` must be one of {', '.join(map(repr, MODES))}; got {given!r}. A vector environment has its mode "
        f'in `env.metadata["autoreset_mode"]`; use {DISABLED!r} if your loop calls `reset` itself.'
    )


def _same_library(
    terminated: Any, truncated: Any, ended_before: Any, gamma: Any
) -> tuple[Array, Array, Array | None]:
    """Return the flags as arrays of one library; those of PyTorch on the device of the first tensor among them."""
    kind = library(terminated, truncated, ended_before, gamma)
    xp = np
    where = {}
    if kind != "numpy":
        example = next(v for v in (terminated, truncated, ended_before, gamma) if library(v) == kind)
        xp = namespace(example)
        if kind == "torch":
            where = {"device": example.device}
    flags = []
    for name, value in (("terminated", terminated), ("truncated", truncated), ("ended_before", ended_before)):
        array = None if value is None else xp.asarray(value, **where)
        if array is not None and str(array.dtype) not in ("bool", "torch.bool"):
            raise TypeError(f"`{name}` must be bool; got {array.dtype}. Convert it: `{name} != 0`.")
        flags.append(array)
    return flags[0], flags[1], flags[2]


def _check_shapes(terminated: Array, truncated: Array, ended_before: Array | None, mode: str) -> None:
    steps = tuple(terminated.shape)
    if not steps:
        raise ValueError("`terminated` must have a time axis, shape (n, …); got a single flag.")
    if tuple(truncated.shape) != steps:
        raise ValueError(f"`truncated` must have the shape of `terminated`, {steps}; got {tuple(truncated.shape)}.")
    if ended_before is None:
        if mode == NEXT_STEP:
            raise TypeError(
                "`ended_before` must be given for next-step autoreset: if the step before row 0 ended its episode, "
                "row 0 is a dummy row. Pass `terminated | truncated` of that step, or False after `reset()`."
            )
    elif tuple(ended_before.shape) not in ((), steps[1:]):
        raise ValueError(
            f"`ended_before` must be one bool or have the shape {steps[1:]}, one per environment; "
            f"got {tuple(ended_before.shape)}."
        )


def _first_row(ended_before: Array | None, terminated: Array) -> Array:
    """Return `ended_before` as one row, (1, …); False if it is not given."""
    row = namespace(terminated).zeros_like(terminated[:1])
    return row if ended_before is None else row | ended_before


def _gamma(gamma: Any, terminated: Array) -> Array:
    """Return γ as a floating-point array in the library of the flags, one number or one per step."""
    xp = namespace(terminated)
    where = {"device": terminated.device} if library(terminated) == "torch" else {}
    gamma = xp.asarray(gamma, **where) * 1.0  # an integer becomes a float, any float keeps its dtype
    steps = tuple(terminated.shape)
    given = tuple(gamma.shape)
    if given not in ((), steps):
        raise ValueError(f"`gamma` must be one number, or have the shape of `terminated`, {steps}; got {given}.")
    return gamma


def _check_values(gamma: Array, ends_in_dummy_row: Array | None) -> None:
    if is_concrete(gamma):
        raise_where(~((gamma >= 0) & (gamma <= 1)), "gamma", "must be in [0, 1]", gamma, axis="row")
    if ends_in_dummy_row is not None and is_concrete(ends_in_dummy_row):
        raise_where(
            ends_in_dummy_row,
            "terminated | truncated",
            "must be False in the row after an end, the dummy row of next-step autoreset",
            ends_in_dummy_row,
            "If the rows have no dummy rows, pass `autoreset='same_step'`.",
        )
