"""Consent to import the modules of users that specs name: importing runs their code.

Passing a spec to `train` is consent. A spec that was read from a file must pass `check_saved` first.
"""

from collections.abc import Callable, Collection, Iterable

from offtrace import imports
from offtrace.agent.spec import TrainSpec
from offtrace.environments import import_named, reference


def references(spec: TrainSpec) -> list[str]:
    """Return the references to users' modules in a spec.

    >>> references(TrainSpec(env="my_module:MyEnv")), references(TrainSpec(env="CartPole-v1"))
    (['my_module:MyEnv'], [])
    """
    return [found for found in [reference(spec.env)] if found]


def modules(specs: Iterable[TrainSpec]) -> list[str]:
    """Return the users' modules that specs name, each once."""
    return list(dict.fromkeys(imports.split(found)[0] for spec in specs for found in references(spec)))


def check_saved(specs: Iterable[TrainSpec], allow_import: Collection[str], *, where: str) -> None:
    """Raise if specs that were read from a file name a module that the user did not allow."""
    for spec in specs:
        for found in references(spec):
            imports.check_consent(found, allow_import, where=where)


def import_modules(specs: Iterable[TrainSpec], tell: Callable[[str], None]) -> None:
    """Import the users' modules that specs name, and tell which files were imported."""
    for name in dict.fromkeys(spec.env for spec in specs):
        import_named(name, tell)
