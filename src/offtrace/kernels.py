"""`jit`: how kernels are compiled and cached. Importing this loads Numba; import it only where it is needed."""

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numba

try:
    from numba.core import options as numba_options

    CAN_BORROW = hasattr(numba_options.DefaultOptions, "_nrt")
except (ImportError, AttributeError):  # a version of Numba with other internals
    CAN_BORROW = False
"""Whether this Numba can be told to count no references; the option is not documented."""

SHARED = (Path(__file__).parent / "traces" / "formulas.py",)
"""Kernels that those of other packages may call."""


def jit(*, allocates: bool = True, **options: Any) -> Callable:
    """`numba.njit` that releases the GIL and caches what it compiles on disk, where a folder can be written to.

    A cached kernel is compiled again when a file of its package or of `SHARED` changes. So a kernel
    may call kernels of its own package and of `SHARED`, and no others: it would not notice when
    those change.

    `allocates=False` is for a kernel that neither makes nor returns an array. Numba then counts no
    references to the arrays that it is given: its caller in Python holds them until it returns.
    Counting takes an atomic operation wherever an array is read from a tuple or handed on. A kernel
    that does make an array fails to compile.
    """
    if CAN_BORROW and not allocates:
        options["_nrt"] = False

    def wrap(function: Any) -> Callable:
        try:
            kernel = numba.njit(nogil=True, error_model="numpy", cache=True, **options)(function)
        except RuntimeError:  # no folder that can be written to
            return numba.njit(nogil=True, error_model="numpy", **options)(function)
        with suppress(AttributeError):  # a version of Numba with other internals
            cached = kernel._cache._cache_file
            # Numba's own stamp covers the kernel's file only, but the code of what it calls is compiled into it
            cached._source_stamp = (cached._source_stamp, _stamp(Path(function.__code__.co_filename).parent))
            _ignore_damaged_files(kernel._cache)
        return kernel

    return wrap


def _ignore_damaged_files(cached: Any) -> None:
    """Drop a cached file that cannot be read, such as one cut short by a full disk, and compile again."""
    load = cached.load_overload

    def load_if_readable(*arguments: Any) -> Any:
        try:
            return load(*arguments)
        except Exception:  # reading a damaged file may raise anything
            with suppress(OSError):
                cached.flush()
            return None

    cached.load_overload = load_if_readable


@cache
def _stamp(package: Path) -> tuple[tuple[str, int, int], ...]:
    """Name, time of change and size of every file whose code may be compiled into a kernel of this package."""
    files = [file for file in (*sorted(package.glob("*.py")), *SHARED) if file.exists()]
    return tuple((file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in files)
