"""For all tests."""

import os
import signal
import sys
from collections.abc import Generator

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Most of the time is XLA's, so it compiles with less care, and keeps what it compiled beside pytest's own cache,
    for other processes and for the next run of the tests. Whoever sets these variables is not overruled.
    """
    chosen = {
        "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
        "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1",
        "JAX_COMPILATION_CACHE_DIR": str(config.rootpath / ".pytest_cache" / "compiled"),
        "JAX_COMPILATION_CACHE_MAX_SIZE": str(2 << 30),  # with a limit it is used under a lock
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    for name, value in chosen.items():
        os.environ.setdefault(name, value)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell does so for what it runs in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="module")
def _compiled_programs_are_let_go() -> Generator[None]:
    """XLA keeps every program that it compiled in maps of its own, and a process may have 65,530 of those."""
    yield
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()
