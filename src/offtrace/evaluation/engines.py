"""Where the parts of a log are: in this process, or on the workers of a Ray cluster."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

from offtrace.evaluation.log import Log
from offtrace.evaluation.parts import Engine, LocalEngine, Part, cuts, take
from offtrace.ray_connection import connected

ENGINES = ("local", "ray")
OBJECT_STORE_BYTES = 500 << 20
"""Object store of a cluster that is started here; parts go through it one after the other."""


@contextmanager
def make_engine(
    log: Log, name: str, ray_address: str | None = None, num_workers: int | None = None
) -> Generator[Engine]:
    """Return the engine of that name with the log in it, and free it at the end."""
    if name not in ENGINES:
        raise ValueError(f"`engine` must be one of {', '.join(ENGINES)}; got {name!r}.")
    if name == "local":
        yield LocalEngine(log)
        return
    with connected(ray_address, num_workers, OBJECT_STORE_BYTES) as ray:
        engine = RayEngine(ray, log, num_workers)
        try:
            yield engine
        finally:
            engine.close()


class Worker:
    """Some of the parts, in a process of a Ray cluster."""

    def __init__(self, parts: list[Part]) -> None:
        self.parts = parts

    def run(self, function: Callable[..., Any], common: tuple[Any, ...], own: list[tuple[Any, ...]]) -> list[Any]:
        """Return the function of every part here."""
        return [function(part, *common, *more) for part, more in zip(self.parts, own, strict=True)]


class RayEngine:
    """The parts on Ray workers: part i is on worker i modulo the number of workers."""

    def __init__(self, ray: Any, log: Log, num_workers: int | None = None) -> None:
        self._ray = ray
        parts = [Part(take(log, *bounds)) for bounds in cuts(log)]
        self.sizes = [part.log.num_episodes for part in parts]
        if num_workers is None:
            num_workers = int(ray.cluster_resources().get("CPU", 1))
        self._num_workers = min(num_workers, len(parts))
        remote = ray.remote(Worker)
        self._workers = [remote.remote(parts[i :: self._num_workers]) for i in range(self._num_workers)]

    def map(self, function: Callable[..., Any], *common: Any, each: Sequence[Any] | None = None) -> list[Any]:
        own: list[tuple[Any, ...]] = [()] * len(self.sizes)
        if each is not None:
            own = [(one,) for one in each]
        step = self._num_workers
        shared = self._ray.put(common)
        calls = [worker.run.remote(function, shared, own[i::step]) for i, worker in enumerate(self._workers)]
        found = self._ray.get(calls)
        return [found[i % step][i // step] for i in range(len(self.sizes))]

    def close(self) -> None:
        """Stop the workers."""
        for worker in self._workers:
            self._ray.kill(worker)
