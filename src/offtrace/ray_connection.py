"""Connects to a Ray cluster, or starts one on this machine. Ray is imported here only, when it is needed."""

import logging
import os
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from offtrace.threads import num_cores

QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS_SKIP_REGEX": "."}
"""Settings for Ray: no usage statistics, and no output about dead workers, since the caller has the reason."""
OBJECT_STORE_BYTES = 100 << 20
"""Object store of a cluster started here, where messages have a few kilobytes."""


@contextmanager
def connected(
    ray_address: str | None = None, jobs: int | None = None, object_store_bytes: int = OBJECT_STORE_BYTES
) -> Generator[Any]:
    """Connect to Ray. A connection that is made here, and a cluster that is started here, end with the block."""
    ray = _ray()
    if ray.is_initialized():
        yield ray
        return
    address = ray_address or os.environ.get("RAY_ADDRESS") or "local"
    if address.startswith("ray://"):
        raise ValueError(
            f"`ray_address` must be the address of a node, as tasks cannot report through a Ray client; "
            f"got {address!r}. Run it on a node of the cluster, with the address 'auto'."
        )
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == "local":
        settings["num_cpus"] = jobs or num_cores()
        settings["object_store_memory"] = object_store_bytes
        settings["include_dashboard"] = False
    in_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    try:
        _check_answers(address)
        with warnings.catch_warnings():
            # Ray forks to execute another program at once, so JAX's threads are not a problem.
            warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
            ray.init(address, **settings)
    except (OSError, ValueError, ray.exceptions.RayError) as error:
        if address == "local":
            raise
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise ValueError(
            f"`ray_address` must be the address of a running cluster; got {address!r}: {reason}. Start one with "
            "`ray start --head`, or leave the address out to use this machine."
        ) from error
    finally:
        if in_main and handler is not None:
            signal.signal(signal.SIGTERM, handler)  # Ray replaces the handler, and runs are stopped by this signal
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_answers(address: str) -> None:
    """Raise an OSError if nothing answers at the address: Ray itself waits two minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def _ray() -> Any:
    if "ray" not in sys.modules:
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)
    try:
        import ray
        import ray.exceptions
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != "ray":
            raise
        raise ValueError("this needs `ray`: pip install 'offtrace[ray]'") from None
    return ray
