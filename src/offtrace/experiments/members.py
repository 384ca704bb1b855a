"""Trains one population, and writes the reports and results of its members to the store."""

import errno
import math
import os
import time
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple

from offtrace.agent.consent import check_saved
from offtrace.agent.spec import from_json
from offtrace.agent.telemetry import TickRecord, Watcher, divergence
from offtrace.experiments.networks import write_network
from offtrace.experiments.populations import Members, population_folder, remove_folder
from offtrace.experiments.provenance import provenance
from offtrace.experiments.store import Store

WRITE_SECONDS = 2.0
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
"""Errors of the disk: no run causes them, and they cannot be recorded in the store."""


class RunEnd(NamedTuple):
    """The end of a run."""

    returns: Sequence[float]
    num_unfinished: int
    diverged: str | None
    """When and how the run diverged, if it did. It has no score then, whatever the returns are."""


def end_of(result: Any) -> RunEnd:
    """Return the end of a run from its training result; it does not depend on the population."""
    return RunEnd(result.returns, result.num_unfinished, divergence(result.history))


class TrainedNetwork(NamedTuple):
    """The network of a run at its end."""

    parameters: Mapping[str, Any]
    num_steps: int


def trained_network(result: Any) -> TrainedNetwork | None:
    """Return the network of a training result; None for a run that diverged."""
    if divergence(result.history):
        return None
    parameters = result.parameters
    if parameters is None:  # the population was finished by an earlier process, before it wrote to the store
        from offtrace.agent.policy import saved_parameters

        parameters = saved_parameters(result.folder, result.spec)
    return TrainedNetwork(parameters, result.num_steps)


def train_population(
    store: Path,
    members: Members,
    command: str,
    stop: Callable[[], bool],
    tick: Callable[[], object] = lambda: None,
    allow_import: Collection[str] = (),
) -> None:
    """Train a population, or resume it, and write its reports to the store as they come.

    Members come from files, so they may name only users' modules that are in `allow_import`.
    """
    with Store(store) as opened:
        is_saved = (population_folder(store, members) / "spec.json").exists()
        claimed = ClaimedRuns(opened, members, provenance(command), keep_all=is_saved)
        if not claimed.ids:
            return

        def write(reports: Sequence[Sequence[TickRecord]]) -> None:
            claimed.write(reports)
            tick()

        batches = ReportBatches(write)
        try:
            specs = [from_json(member) for member in claimed.members]
            check_saved(specs, allow_import, where=f"the results file {str(store)!r}")
            results = _results(store, claimed, batches, stop)
            # A population that was killed may have saved more than it wrote to the store.
            claimed.write([result.history for result in results])
            if not results[0].finished:
                return
            for i, result in enumerate(results):
                claimed.keep_policy(i, trained_network(result))
            claimed.finish([*map(end_of, results)])
        except Exception as error:
            if isinstance(error, OSError) and error.errno in DISK_ERRORS:
                raise
            batches.flush()
            claimed.fail("".join(traceback.format_exception(error)))
            return
    with suppress(ValueError, OSError):
        remove_folder(population_folder(store, claimed.members))


def _results(store: Path, claimed: "ClaimedRuns", batches: "ReportBatches", stop: Callable[[], bool]) -> list[Any]:
    """Return the results of training. A saved population that cannot be resumed is removed, and its runs restart."""
    from offtrace.agent.checkpoints import FolderLock
    from offtrace.agent.training import runtime_for, train

    folder = population_folder(store, claimed.members)
    specs = [from_json(member) for member in claimed.members]
    resume = (folder / "spec.json").exists()
    if resume:
        with FolderLock(folder):  # raises here if another process trains it, and the folder stays
            pass
    try:
        return train(specs, folder, resume=resume, watcher=batches, stop=stop, checkpoint_seconds=30)
    except ValueError:
        if not resume or batches.has_started:
            raise
        # Specs that cannot be trained at all raise here as well: then the folder is not the cause, and stays.
        runtime_for(specs).close()
        remove_folder(folder)
    claimed.drop_others()
    return _results(store, claimed, batches, stop)


class ClaimedRuns:
    """The runs of a population that this process has claimed. Their reports and results go to the store.

    `members` are the runs to train: the claimed ones and, with `keep_all`, also those that are
    over, since a saved population can only be resumed as a whole.
    """

    def __init__(self, store: Store, members: Members, made_with: dict[str, str], *, keep_all: bool = False) -> None:
        ids = store.register(members, made_with)
        is_claimed = [store.claim(run_id, f"engine {os.getpid()}") for run_id in ids]
        others = [member for member, claimed in zip(members, is_claimed, strict=True) if not claimed]
        self._store = store
        self.ids = [*compress(ids, is_claimed)]
        if keep_all and not store.missing(others):
            self.members = [*members]
            self._is_claimed = is_claimed
        else:
            self.members = [*compress(members, is_claimed)]
            self._is_claimed = [True] * len(self.ids)

    def drop_others(self) -> None:
        """Keep the claimed runs only."""
        self.members = [*compress(self.members, self._is_claimed)]
        self._is_claimed = [True] * len(self.ids)

    def write(self, reports: Sequence[Sequence[TickRecord]]) -> None:
        """Write the reports of each member. Empty reports renew the heartbeats of the claims."""
        self._store.write_all(dict(zip(self.ids, compress(reports, self._is_claimed), strict=True)))

    def finish(self, ends: Sequence[RunEnd]) -> None:
        """Write the end of each member."""
        for run_id, end in zip(self.ids, compress(ends, self._is_claimed), strict=True):
            self._store.finish(run_id, end.returns, end.num_unfinished, diverged=end.diverged)

    def keep_policy(self, member: int, network: TrainedNetwork | None) -> None:
        """Save the network of a member beside the store, if it was claimed."""
        if network is not None and self._is_claimed[member]:
            write_network(self._store.path, self.members[member], *network)

    def fail(self, reason: str) -> None:
        """Record that all claimed runs failed."""
        for run_id in self.ids:
            self._store.fail(run_id, reason)

    def release(self) -> None:
        """Give up all claims."""
        for run_id in self.ids:
            self._store.release(run_id)


class ReportBatches(Watcher):
    """Collects the reports of all members. The first are sent at once, later ones every few seconds."""

    def __init__(self, send: Callable[[list[list[TickRecord]]], None]) -> None:
        self.has_started = False
        self._send = send
        self._batch: list[list[TickRecord]] = []
        self._sent_at = -math.inf

    def on_tick(self, records: Sequence[TickRecord]) -> None:
        self.has_started = True
        self._batch = self._batch or [[] for _ in records]
        for batch, record in zip(self._batch, records, strict=True):
            batch.append(record)
        if time.monotonic() - self._sent_at > WRITE_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Send what has been collected."""
        if self._batch:
            self._send(self._batch)
        self._batch = []
        self._sent_at = time.monotonic()
