"""Windows and faults for the CUDA kernels."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from builders import windows
from builders.windows import Arrays, with_ends, with_invalid_masked_rows

NAN, INF = math.nan, math.inf


def window_with_ends(shape: tuple[int, int, int]) -> Arrays:
    """Some steps terminate, some rows start an episode, and masked rows hold values that no step may have."""
    n, batch, actions = shape
    return with_invalid_masked_rows(with_ends(windows.window(n, (batch,), actions, terminated=0.1)))


def broken(name: str, place: tuple[int, ...], value: float) -> Callable[[Arrays], None]:
    def change(w: Arrays) -> None:
        w[name][place] = value

    return change


def overflow(w: Arrays) -> None:
    """Every value is finite, and so is π/μ = 10; its product with the TD error of row 5 is not."""
    w["q"][5, 0] = 1.7e308
    w["pi"][5, 0] = 1 / 3
    w["mu_a"][5, 0] = 1 / 30


def cross(w: Arrays) -> None:
    w["reset"][3, 1], w["discount"][2, 1] = True, 0.9


FAULTS: dict[str, Callable[[Arrays], None]] = {
    "a reward that is no number": broken("r", (2, 1), NAN),
    "the first reward": broken("r", (0, 0), INF),
    "a discount above 1": broken("discount", (4, 1), 1.5),
    "a discount below 0": broken("discount", (0, 1), -0.1),
    "an action that does not exist": broken("a", (3, 0), 3),
    "a negative action": broken("a", (5, 1), -1),
    "an action that wraps": broken("a", (2, 1), 1 << 32),
    "the first action": broken("a", (0, 1), 7),
    "μ = 0": broken("mu_a", (1, 0), 0.0),
    "μ above 1": broken("mu_a", (2, 0), 1.5),
    "the first μ": broken("mu_a", (0, 0), NAN),
    "a policy that does not sum to 1": broken("pi", (3, 1, 2), 0.9),
    "a negative probability": broken("pi", (2, 0), np.array([0.7, 0.5, -0.2])),
    "the first policy": broken("pi", (0, 0, 1), NAN),
    "the last policy": broken("pi", (6, 1), np.array([0.1, 0.1, 0.1])),
    "a value that is no number": broken("q", (4, 0, 1), NAN),
    "the first value": broken("q", (0, 0), INF),
    "the last value": broken("q", (6, 1), NAN),
    "a step into another episode": cross,
    "targets that overflow": overflow,
}


def plain() -> Arrays:
    """No episode ends, and no row is masked."""
    steps = (6, 2)
    ends = {"reset": np.zeros(steps, bool), "mask": np.ones(steps, bool)}
    return windows.window(6, (2,), 3, seed=1) | ends


def refusal(function: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    with pytest.raises((ValueError, IndexError)) as caught:
        function(*args, **kwargs)
    return f"{caught.type.__name__}: {caught.value}"
