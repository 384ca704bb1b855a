"""Trains the runs of a sweep that are missing in its store on a Ray cluster; `engine` does so on this machine.

A population is a task with a process of its own, on one core, or on one GPU if the cluster has
any. The store must be on this machine, so tasks do not open it: they send reports and results
back, and this process alone claims runs and writes. The files of users' own traces and
environments go with the tasks. Nothing is saved on the way: a population that
is stopped, or whose worker dies, starts over.
"""

import os
import queue
import threading
import time
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from offtrace.agent.spec import Plan, from_json
from offtrace.experiments import shipping
from offtrace.experiments.engine import register
from offtrace.experiments.members import (
    ClaimedRuns,
    ReportBatches,
    RunEnd,
    TrainedNetwork,
    end_of,
    trained_network,
)
from offtrace.experiments.populations import Members, new_populations
from offtrace.experiments.progress import ProgressReader, SweepProgress
from offtrace.experiments.provenance import provenance
from offtrace.experiments.store import Store
from offtrace.experiments.workers import TRIES
from offtrace.ray_connection import connected

HEARTBEAT_SECONDS = 60.0


def run(
    specs: Sequence[Plan],
    store: str | Path,
    *,
    jobs: int | None = None,
    command: str = "",
    tell: Callable[[SweepProgress], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
    ray_address: str | None = None,
) -> SweepProgress:
    """Train missing runs as `engine.run` does, on the Ray cluster in use, else on that of the address.

    Without an address, here or in RAY_ADDRESS, a cluster is started on this machine and ended with
    the sweep. `jobs` is the number of populations trained at once, by default the number of cores,
    or GPUs, of the cluster.
    """
    if jobs is not None and jobs < 1:
        raise ValueError(
            f"`jobs` must be at least 1 on Ray, where every population has its own process; got {jobs}. Leave it out."
        )
    path = Path(store)
    with connected(ray_address, jobs) as ray:
        on_gpus = os.environ.get("JAX_PLATFORMS", "") != "cpu" and ray.cluster_resources().get("GPU", 0) > 0

        def capacity() -> int:
            """Return how many populations may run now: clusters grow and shrink, some only when there is demand."""
            resource = "GPU" if on_gpus else "CPU"
            return jobs or max(1, int(ray.cluster_resources().get(resource, 0)))

        missing, reader = register(specs, path, command, tell)
        waiting = new_populations(missing, capacity(), on_gpus)
        task = ray.remote(num_cpus=1, num_gpus=int(on_gpus), max_calls=1, max_retries=0)(train_remotely)
        task = task.options(num_returns="streaming", name="offtrace sweep")
        files = shipping.collect(shipping.modules_of(missing))
        with Store(path) as opened:
            driver = _Driver(ray, opened, command, lambda members: task.remote(members, command, on_gpus, files))
            driver.drive(waiting, capacity, stop, reader)
    return reader.update()


# -- in a worker ---------------------------------------------------------------------------------------------


def train_remotely(
    members: Members, command: str, on_gpus: bool, files: Mapping[str, bytes] = MappingProxyType({})
) -> Generator[tuple[str, Any]]:
    """Train a population, and yield its messages: provenance, reports as they come, then its ends or a failure.

    `files` are the modules of the user's own traces and environments.
    """
    import jax

    if not on_gpus:
        jax.config.update("jax_platforms", "cpu")  # Ray hides GPUs only from tasks that ask for some
    yield "made", provenance(command)
    messages: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
    with shipping.unpacked(files):
        threading.Thread(target=_train, args=(members, messages.put), daemon=True).start()
        kind = ""
        while kind not in ("ends", "failure"):
            kind, content = messages.get()
            yield kind, content


def _train(members: Members, send: Callable[[tuple[str, Any]], None]) -> None:
    from offtrace.agent.training import train

    batches = ReportBatches(lambda reports: send(("reports", reports)))
    try:
        results = train([from_json(member) for member in members], watcher=batches)
        batches.flush()
        for i, result in enumerate(results):
            if (network := trained_network(result)) is not None:
                send(("policy", (i, *network)))
        send(("ends", [tuple(end_of(result)) for result in results]))
    except BaseException as error:
        batches.flush()
        send(("failure", "".join(traceback.format_exception(error))))


# -- in this process -----------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Task:
    """A population that a worker trains."""

    runs: ClaimedRuns
    tries: int
    messages: Any


class _Driver:
    """Hands populations to workers, and writes their messages to the store."""

    def __init__(self, ray: Any, store: Store, command: str, start: Callable[[Members], Any]) -> None:
        self._ray = ray
        self._store = store
        self._command = command
        self._start = start
        self._queue: list[tuple[Members, int]] = []
        self._tasks: list[_Task] = []

    def drive(
        self,
        waiting: Sequence[Members],
        capacity: Callable[[], int],
        stop: Callable[[], bool],
        reader: ProgressReader,
    ) -> None:
        """Train the populations until none is left, or until `stop`."""
        self._queue = [(members, 1) for members in waiting]
        looked_at = beaten_at = time.monotonic()
        try:
            while (self._queue or self._tasks) and not stop():
                if self._queue:
                    self._start_tasks(capacity())
                for task in self._with_messages():
                    self._handle(task)
                if time.monotonic() - looked_at > 1:
                    reader.update()
                    looked_at = time.monotonic()
                if time.monotonic() - beaten_at > HEARTBEAT_SECONDS:
                    for task in self._tasks:
                        task.runs.write([()] * len(task.runs.ids))
                    beaten_at = time.monotonic()
        finally:
            for task in self._tasks:
                self._ray.cancel(task.messages, force=True)

    def _start_tasks(self, capacity: int) -> None:
        while self._queue and len(self._tasks) < capacity:
            members, tries = self._queue.pop(0)
            runs = ClaimedRuns(self._store, members, provenance(self._command, computes=False))
            if runs.members:
                self._tasks.append(_Task(runs, tries, self._start(runs.members)))

    def _with_messages(self) -> list[_Task]:
        """Return the tasks that have a message, after a short wait."""
        if not self._tasks:
            return []
        messages = [task.messages for task in self._tasks]
        ready, _ = self._ray.wait(messages, num_returns=len(messages), timeout=0.2, fetch_local=False)
        return [task for task in self._tasks if any(task.messages is one for one in ready)]

    def _handle(self, task: _Task) -> None:
        kind, content = self._next_message(task)
        if kind == "made":
            self._store.made_with(task.runs.ids, content)
        elif kind == "reports":
            task.runs.write(content)
        elif kind == "policy":
            member, *network = content
            task.runs.keep_policy(member, TrainedNetwork(*network))
        else:
            self._tasks.remove(task)
            self._end(task, kind, content)

    def _next_message(self, task: _Task) -> tuple[str, Any]:
        """Return the next message; a `failure` if the task raised outside of training, a `death` if it ended."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(next(task.messages))
        except errors.RayTaskError as error:
            return "failure", str(error)
        except (errors.RayError, StopIteration) as error:
            return "death", f"{type(error).__name__}: {error}"

    def _end(self, task: _Task, kind: str, content: Any) -> None:
        if kind == "ends":
            task.runs.finish([RunEnd(*end) for end in content])
        elif kind == "failure":
            task.runs.fail(content)
        elif task.tries < TRIES:
            task.runs.release()
            self._queue.append((task.runs.members, task.tries + 1))
        else:
            task.runs.fail(f"its worker died, {TRIES} times; the last time: {content}")
