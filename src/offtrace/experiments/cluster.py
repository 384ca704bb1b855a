"""Runs the cells of a sweep that are missing in its store on a Ray cluster; `engine` runs them on this machine.

A pack is a task, in a process of its own, on one core, or on one GPU where the cluster has any. The store's file must
stay on this machine, so the tasks never see it: they send reports and results back, and this process alone claims and
writes. Nothing is saved on the way: a pack whose worker died, or that was stopped, starts over.
"""

import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offtrace.agent.spec import Plan, from_json
from offtrace.experiments.engine import (
    TRIES,
    Batches,
    End,
    Held,
    Progress,
    Watched,
    begin,
    end_of,
    packed,
)
from offtrace.experiments.provenance import provenance
from offtrace.experiments.store import Store
from offtrace.threads import num_cores

BEAT_SECONDS = 60.0
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS_SKIP_REGEX": "."}
"""Ray sends no statistics, and does not print its own account of dead workers: the store has the reason."""
OBJECT_STORE_BYTES = 100 << 20
"""Of a cluster of our own, for messages of a few kilobytes."""


def run(
    specs: Sequence[Plan],
    store: str | Path,
    *,
    jobs: int | None = None,
    command: str = "",
    tell: Callable[[Progress], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
    ray_address: str | None = None,
) -> Progress:
    """As `engine.run`, on the cluster that this program is connected to, else on that of the address.

    Without an address, here or in RAY_ADDRESS, a cluster is started on this machine and ended with the sweep. `jobs`
    packs at once, as many as the cluster has cores, or GPUs, unless given.
    """
    if jobs is not None and jobs < 1:
        raise ValueError(
            f"`jobs` must be at least 1 on Ray, where every pack is a process; got {jobs}. Leave it out."
        )
    path = Path(store)
    with connected(ray_address, jobs) as ray:
        on_gpus = os.environ.get("JAX_PLATFORMS", "") != "cpu" and ray.cluster_resources().get("GPU", 0) > 0

        def places() -> int:
            """As clusters grow and shrink; never 0, as some grow only when they are asked."""
            return jobs or max(1, int(ray.cluster_resources().get("GPU" if on_gpus else "CPU", 0)))

        missing, watched = begin(specs, path, command, tell)
        waiting = packed(missing, places(), on_gpus)
        task = ray.remote(num_cpus=1, num_gpus=int(on_gpus), max_calls=1, max_retries=0)(trained)
        task = task.options(num_returns="streaming", name="offtrace sweep")
        with Store(path) as opened:
            driver = _Driver(ray, opened, command, lambda rows: task.remote(rows, command, on_gpus))
            driver.drive(waiting, places, stop, watched)
    return watched.told()


# -- in a worker ---------------------------------------------------------------------------------------------


def trained(rows: Sequence[dict[str, Any]], command: str, on_gpus: bool) -> Generator[tuple[str, Any]]:
    """Trains a pack, and says with what, then its reports as they come, then how each cell ended, or why not."""
    import jax

    if not on_gpus:
        jax.config.update("jax_platforms", "cpu")  # Ray hides GPUs only from those that asked for some
    yield "made", provenance(command)
    messages: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_train, args=(rows, messages.put), daemon=True).start()
    kind = ""
    while kind not in ("ends", "failure"):
        kind, what = messages.get()
        yield kind, what


def _train(rows: Sequence[dict[str, Any]], send: Callable[[tuple[str, Any]], None]) -> None:
    from offtrace.agent.training import train

    batches = Batches(lambda reports: send(("reports", reports)))
    try:
        results = train([from_json(row) for row in rows], watcher=batches)
        batches.flush()
        send(("ends", [tuple(end_of(result)) for result in results]))
    except BaseException as error:
        batches.flush()
        send(("failure", "".join(traceback.format_exception(error))))


# -- in this process -----------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Running:
    """A pack that is with a worker."""

    pack: Held
    tries: int
    messages: Any


class _Driver:
    """Hands packs to workers, and writes down what they say."""

    def __init__(self, ray: Any, store: Store, command: str, start: Callable[[Any], Any]) -> None:
        self._ray, self._store, self._command, self._start = ray, store, command, start
        self._queue: list[tuple[Sequence[dict[str, Any]], int]] = []
        self._running: list[_Running] = []

    def drive(
        self,
        waiting: Sequence[Sequence[dict[str, Any]]],
        places: Callable[[], int],
        stop: Callable[[], bool],
        watched: Watched,
    ) -> None:
        self._queue = [(rows, 1) for rows in waiting]
        looked = beaten = time.monotonic()
        try:
            while (self._queue or self._running) and not stop():
                if self._queue:
                    self._fill(places())
                for running in self._ready():
                    self._hear(running)
                if time.monotonic() - looked > 1:
                    watched.told()
                    looked = time.monotonic()
                if time.monotonic() - beaten > BEAT_SECONDS:
                    for running in self._running:
                        running.pack.write([()] * len(running.pack.ids))
                    beaten = time.monotonic()
        finally:
            for running in self._running:
                self._ray.cancel(running.messages, force=True)

    def _fill(self, places: int) -> None:
        while self._queue and len(self._running) < places:
            rows, tries = self._queue.pop(0)
            pack = Held(self._store, rows, provenance(self._command, computes=False))
            if pack.rows:
                self._running.append(_Running(pack, tries, self._start(pack.rows)))

    def _ready(self) -> list[_Running]:
        """Those that have something to say, after a moment."""
        if not self._running:
            return []
        messages = [running.messages for running in self._running]
        ready, _ = self._ray.wait(messages, num_returns=len(messages), timeout=0.2, fetch_local=False)
        return [running for running in self._running if any(running.messages is one for one in ready)]

    def _hear(self, running: _Running) -> None:
        kind, what = self._message(running)
        if kind == "made":
            self._store.made_with(running.pack.ids, what)
        elif kind == "reports":
            running.pack.write(what)
        else:
            self._running.remove(running)
            self._end(running, kind, what)

    def _message(self, running: _Running) -> tuple[str, Any]:
        """Its next one: the worker is dead if there is none; an error of the task is one outside of the training."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(next(running.messages))
        except errors.RayTaskError as error:
            return "failure", str(error)
        except (errors.RayError, StopIteration) as error:
            return "death", f"{type(error).__name__}: {error}"

    def _end(self, running: _Running, kind: str, what: Any) -> None:
        if kind == "ends":
            running.pack.finish([End(*end) for end in what])
        elif kind == "failure":
            running.pack.fail(what)
        elif running.tries < TRIES:
            running.pack.release()
            self._queue.append((running.pack.rows, running.tries + 1))
        else:
            running.pack.fail(f"its worker died, {TRIES} times; the last time: {what}")


# -- the cluster ---------------------------------------------------------------------------------------------


@contextmanager
def connected(ray_address: str | None = None, jobs: int | None = None) -> Generator[Any]:
    """Ray, connected, for one `run` or for several; if it was not so before, that ends with the block."""
    ray = _ray()
    if ray.is_initialized():
        yield ray
        return
    address = ray_address or os.environ.get("RAY_ADDRESS") or "local"
    if address.startswith("ray://"):
        raise ValueError(
            f"`ray_address` must be that of a node, as tasks cannot report through a Ray client; got {address!r}. "
            "Run the sweep on a node of the cluster, with the address 'auto'."
        )
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == "local":
        settings |= {"num_cpus": jobs or num_cores(), "object_store_memory": OBJECT_STORE_BYTES}
        settings |= {"include_dashboard": False}
    in_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    try:
        _refuse_silence(address)
        with warnings.catch_warnings():  # a child that goes on to another program at once does not mind JAX's threads
            warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
            ray.init(address, **settings)
    except (OSError, ValueError, ray.exceptions.RayError) as error:
        if address == "local":
            raise
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise ValueError(
            f"`ray_address` must be of a cluster that runs; got {address!r}: {reason}. Start one by `ray start "
            "--head`, or leave the address out for one of this machine."
        ) from error
    finally:
        if in_main and handler is not None:
            signal.signal(signal.SIGTERM, handler)  # Ray takes it over, and a sweep stops by it
    try:
        yield ray
    finally:
        ray.shutdown()


def _refuse_silence(address: str) -> None:
    """Ray takes two minutes to find out that nobody answers."""
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
