"""How the compiled parts are compiled. Importing this loads Numba; nothing does before it is needed."""

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numba


def jit(**options: Any) -> Callable:
    """`numba.njit` without the GIL, the compile kept on disk, where there is a disk to keep it on."""

    def wrap(function: Any) -> Callable:
        try:
            kernel = numba.njit(nogil=True, error_model="numpy", cache=True, **options)(function)
        except RuntimeError:  # no folder that may be written to
            return numba.njit(nogil=True, error_model="numpy", **options)(function)
        # Numba looks at the kernel's own file only, but a kernel is made of others in its room, too
        with suppress(AttributeError):
            kept = kernel._cache._cache_file
            kept._source_stamp = (kept._source_stamp, _last_change(Path(function.__code__.co_filename).parent))
            _forgive(kernel._cache)
        return kernel

    return wrap


def _forgive(kept: Any) -> None:
    """A file that cannot be read, cut short by a full disk, say, counts as none: it is dropped, and made again."""
    load = kept.load_overload

    def load_if_readable(*given: Any) -> Any:
        try:
            return load(*given)
        except Exception:  # unpickling what is broken may raise anything
            with suppress(OSError):
                kept.flush()
            return None

    kept.load_overload = load_if_readable


@cache
def _last_change(room: Path) -> int:
    return max((file.stat().st_mtime_ns for file in room.glob("*.py")), default=0)
