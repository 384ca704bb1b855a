"""Double precision in JAX, in every version of it that the tests are run with."""

from collections.abc import Generator
from contextlib import contextmanager

import jax


@contextmanager
def double_precision() -> Generator[None]:
    """Let JAX use float64 inside; `jax.enable_x64` does the same from JAX 0.8 on."""
    jax.config.update("jax_enable_x64", True)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", False)
