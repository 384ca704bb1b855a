"""Trained agents, loaded from a run, a population or a sweep."""

from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from offtrace.agent import policy
from offtrace.agent.selection import select, the_only
from offtrace.agent.spec import Plan, from_json
from offtrace.experiments.networks import read_network
from offtrace.experiments.store import StoredRun, read


def load_policy(
    source: str | Path,
    *,
    member: int | None = None,
    allow_import: Collection[str] = (),
    warn: Callable[[str], None] | None = None,
    **fields: Any,
) -> policy.Policy:
    """Load a trained agent: from the folder of a run or a population, or from the results file of a sweep.

        ot.load_policy("runs/CartPole-v1-retrace-0")
        ot.load_policy("runs/breakout", trace="retrace", seed=3)         # of a population
        ot.load_policy("results.sqlite", env="pocket/catch", seed=0)     # of a sweep

    `fields` are fields of `TrainSpec`; they must select one run. `member` selects one of a
    population by its number.

    An environment `module:Name-v0` or `module:MyEnv` imports that module, which runs its code. This
    needs `allow_import=["module"]`; no file can allow it. Modules that you allow are imported also if
    the run does not name them, as they may register its environment.
    """
    path = Path(source)
    if not path.is_file():
        _check_exists(path)
        return policy.load_policy(path, member=member, allow_import=allow_import, warn=warn, **fields)
    if member is not None:
        raise ValueError(f"`member` must come with the folder of a population; {str(path)!r} is a file.")
    runs, specs = _finished(path, warn)
    number = the_only(select(specs, fields, where=str(path)), specs, where=str(path))
    return _load(path, runs[number], allow_import)


def load_policies(
    source: str | Path,
    *,
    allow_import: Collection[str] = (),
    warn: Callable[[str], None] | None = None,
    **fields: Any,
) -> list[policy.Policy]:
    """Load all trained agents of a population or a sweep, or those whose specs have these fields.

    for policy in ot.load_policies("results.sqlite", trace="retrace"):
        print(policy.spec.seed, policy.evaluate())
    """
    path = Path(source)
    if not path.is_file():
        _check_exists(path)
        return policy.load_policies(path, allow_import=allow_import, warn=warn, **fields)
    runs, specs = _finished(path, warn)
    return [_load(path, runs[i], allow_import) for i in select(specs, fields, where=str(path))]


def _check_exists(path: Path) -> None:
    if not path.exists():
        raise ValueError(f"{str(path)!r} must be the folder of a run, or a results file; it does not exist.")


def _finished(path: Path, warn: Callable[[str], None] | None) -> tuple[list[StoredRun], list[Plan]]:
    """Return the runs of agents in a results file that are done, and their specs."""
    runs = []
    specs = []
    for run in read([path], warn=warn):
        if run.status == "done":
            with suppress(ValueError):  # the spec of something else than an agent
                specs.append(from_json(run.spec))
                runs.append(run)
    if not runs:
        raise ValueError(f"{str(path)!r} has no finished run of an agent.")
    return runs, specs


def _load(path: Path, run: StoredRun, allow_import: Collection[str]) -> policy.Policy:
    spec = from_json(run.spec)
    policy.allow(spec, allow_import, where=f"the results file {str(path)!r}")
    return policy.make_policy(spec, *read_network(path, run.fingerprint))
