"""Populations: runs that are trained together in one program, and the folders in which unfinished ones are saved.

results.sqlite          the store
results.sqlite.work/    a folder per unfinished population, and the programs compiled for them
"""

import hashlib
import secrets
import shutil
from collections.abc import Generator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from offtrace.agent.consent import modules
from offtrace.agent.memory import most_that_fit
from offtrace.agent.settings import NUMBERS, WORLDS, has_common_trace
from offtrace.agent.spec import Plan, from_json, to_json
from offtrace.environments import on_host, program_shape
from offtrace.experiments.store import Store, fingerprint

MAX_MEMBERS = 200
"""Members of a population on a CPU. They take turns there, and a stop is only possible after a tick of all."""
MAX_MEMBERS_ON_ACCELERATOR = 512
REMOVED = ".gone-"
"""Prefix of the name of a folder that is being removed."""

Members = Sequence[dict[str, Any]]
"""The members of a population: their specs as JSON."""


def populations(specs: Sequence[Plan], most: int, *, on_accelerator: bool = False) -> list[list[Plan]]:
    """Group specs that can share a program, at most `most` at a time, and no more than fit into its memory.

    On a CPU, environments on the host are on their own: processes train them faster. The
    populations of one group have sizes as equal as possible: those of equal size share a compiled
    program.
    """
    groups: dict[str, list[Plan]] = {}
    for spec in specs:
        if spec.runtime == "asynchronous" or (on_host(spec.env) and not on_accelerator):
            groups[repr(spec)] = [spec]
            continue
        shape = {name: value for name, value in vars(spec).items() if name not in (*NUMBERS, *WORLDS)}
        world = program_shape(spec.env, spec.options)
        own_trace = "" if has_common_trace(spec) else spec.trace
        groups.setdefault(repr((shape, world, own_trace)), []).append(spec)
    found = []
    for group in groups.values():
        limit = most
        if on_accelerator and on_host(group[0].env):
            limit = min(most, most_that_fit(group[0]))
        number = -(-len(group) // limit)
        size = -(-len(group) // number)
        found += [group[i : i + size] for i in range(0, len(group), size)]
    return found


def new_populations(missing: Sequence[Plan], jobs: int, on_accelerator: bool) -> list[Members]:
    """Return populations of a size that keeps all jobs busy, the longest first."""
    most = MAX_MEMBERS_ON_ACCELERATOR
    if not on_accelerator:
        most = max(1, min(MAX_MEMBERS, -(-len(missing) // max(1, jobs))))
    longest_first = sorted(
        populations(missing, most, on_accelerator=on_accelerator),
        key=lambda members: -len(members) * members[0].num_steps,
    )
    return [[to_json(spec) for spec in members] for members in longest_first]


# -- saved ones ----------------------------------------------------------------------------------------------


def saved_populations(path: Path, missing: Sequence[Plan]) -> tuple[list[Members], list[Plan]]:
    """Return the saved populations to resume, with the members they were saved with, and the runs in none of them.

    Some members may have finished in another population since. They are trained along, and their
    results are ignored. A population with a trace or an environment of a module that the missing runs
    do not name is left alone: a file must not decide what is imported.
    """
    left = {fingerprint(to_json(spec)): spec for spec in missing}
    allowed = set(modules(missing))
    resumed: list[Members] = []
    # Those with the fewest members that are trained for nothing come first.
    for members, wanted in sorted(_resumable(path), key=lambda saved: len(saved[0]) - len(saved[1])):
        is_known = set(modules(map(from_json, members))) <= allowed
        if wanted <= left.keys() and is_known:
            resumed.append(members)
            left = {key: spec for key, spec in left.items() if key not in wanted}
    return resumed, list(left.values())


def _resumable(path: Path) -> Generator[tuple[Members, set[str]]]:
    """Yield saved populations, with the fingerprints of their missing members. A finished one is removed.

    One with members that the store does not know is left alone, and so is one that is not worth
    resuming.
    """
    from offtrace.agent.runs import read_specs

    for removed in work_folder(path).glob(f"{REMOVED}*"):
        shutil.rmtree(removed, ignore_errors=True)
    with Store(path) as store:
        for folder in sorted(work_folder(path).glob("[!.]*")):
            with suppress(ValueError, OSError):
                members = [to_json(spec) for spec in read_specs(folder)]
                missing = store.missing(members)  # after the folder: its members were registered before it was made
                if members and not missing:
                    remove_folder(folder)
                elif missing and _is_worth_resuming(store, members, missing):
                    yield members, {fingerprint(spec) for _, spec in missing}


def _is_worth_resuming(store: Store, members: Members, missing: Sequence[tuple[int, dict[str, Any]]]) -> bool:
    """Return whether resuming all members takes fewer steps than restarting the missing ones."""
    total = int(members[0]["num_steps"])
    left = total - max(store.num_steps(run_id) for run_id, _ in missing)
    return len(missing) == len(members) or len(members) * left < len(missing) * total


def work_folder(store: Path) -> Path:
    """Return the folder of all saved populations of a store."""
    return store.with_name(store.name + ".work")


def population_folder(store: Path, members: Members) -> Path:
    """Return the folder in which a population is saved."""
    names = "".join(map(fingerprint, members))
    return work_folder(store) / hashlib.sha256(names.encode()).hexdigest()[:16]


def remove_folder(folder: Path) -> None:
    """Remove a saved population, unless another process trains it.

    It is renamed first, so that a process that is killed meanwhile does not leave half of it under
    its name.
    """
    from offtrace.agent.checkpoints import FolderLock

    with FolderLock(folder):
        removed = folder.rename(folder.with_name(f"{REMOVED}{folder.name}-{secrets.token_hex(4)}"))
        shutil.rmtree(removed, ignore_errors=True)
