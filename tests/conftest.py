"""Settings of all tests."""

import importlib.metadata
import importlib.util
import os
import signal
import sys
from collections.abc import Generator
from pathlib import Path

import hypothesis
import pytest

hypothesis.settings.register_profile("offtrace", deadline=None)  # a first call compiles, and machines may be busy
hypothesis.settings.load_profile("offtrace")
MOST_MAPS = 30_000
"""Memory maps of a process at which compiled programs are freed; Linux allows 65,530."""


def pytest_configure(config: pytest.Config) -> None:
    """Make XLA compile faster, since compiling takes most of the time of these tests.

    It optimises less, and caches programs beside pytest's own cache, for other processes and later runs. Variables
    that are already set keep their values.
    """
    chosen = {
        "XLA_FLAGS": _xla_flags(),
        "JAX_COMPILATION_CACHE_DIR": str(config.rootpath / ".pytest_cache" / "compiled"),
        "JAX_COMPILATION_CACHE_MAX_SIZE": str(2 << 30),  # with a limit it is used under a lock
        # JAX reads a file of every cached program whenever it adds one, so only the slow ones are worth a place
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "OMP_NUM_THREADS": "1",  # each core has a test of its own
        "OPENBLAS_NUM_THREADS": "1",
    }
    for name, value in chosen.items():
        os.environ.setdefault(name, value)
    if not Path("/dev/nvidiactl").exists():  # before anything imports Triton, as `torch.compile` does
        os.environ.setdefault("TRITON_INTERPRET", "1")
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):  # each process would compile all that it imports
        os.environ.setdefault("PYTHONPYCACHEPREFIX", str(config.rootpath / ".pytest_cache" / "bytecode"))
    if "PYTHONPYCACHEPREFIX" in os.environ:  # Python has read the variables when it started
        sys.dont_write_bytecode = False
        sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"]
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell sets it for commands in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _xla_flags() -> str:
    """Return flags for fast compilation. XLA ends a process that names one it does not know."""
    flags = (
        "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
        "--xla_cpu_parallel_codegen_split_count=1"
    )
    if importlib.util.find_spec("jaxlib"):
        major, minor, *_ = importlib.metadata.version("jaxlib").split(".")
        if (int(major), int(minor)) < (0, 11):  # 0.11.2 does not know it
            flags += " --xla_cpu_use_fusion_emitters=false"
    return flags


@pytest.fixture(autouse=True, scope="session")
def _charts_are_validated_once() -> None:
    """Let Altair check a chart when it becomes JSON, and not also each part of it while it is put together."""
    if importlib.util.find_spec("altair"):
        from altair.utils import schemapi

        schemapi.disable_debug_mode()


@pytest.fixture(autouse=True, scope="module")
def _compiled_programs_are_let_go() -> Generator[None]:
    """Free compiled programs when there are many: XLA maps memory for each, and a process may have so many maps."""
    yield
    if "jax" in sys.modules and _num_maps() > MOST_MAPS:
        sys.modules["jax"].clear_caches()


def _num_maps() -> float:
    try:
        return Path("/proc/self/maps").read_bytes().count(b"\n")
    except OSError:  # not Linux
        return float("inf")
