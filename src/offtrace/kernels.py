"""How the compiled parts are compiled. Importing this loads Numba; nothing does before it is needed."""

from collections.abc import Callable
from typing import Any

import numba


def jit(**options: Any) -> Callable:
    """`numba.njit` without the GIL, the compile kept on disk, where there is a disk to keep it on."""

    def wrap(function: Callable) -> Callable:
        try:
            return numba.njit(nogil=True, error_model="numpy", cache=True, **options)(function)
        except RuntimeError:  # no folder that may be written to
            return numba.njit(nogil=True, error_model="numpy", **options)(function)

    return wrap
