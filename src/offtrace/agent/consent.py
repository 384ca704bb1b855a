"""Consent to import the modules of users that specs name: importing runs their code.

Passing a spec to `train` is consent. A spec that was read from a file must pass `check_saved` first.
"""

from collections.abc import Callable, Collection, Iterable

from offtrace import imports
from offtrace.agent.own_traces import is_reference
from offtrace.agent.spec import TrainSpec
from offtrace.environments import import_named, reference


def references(spec: TrainSpec) -> list[str]:
    """Return the references to users' modules in a spec: its environment, and its trace.

    >>> references(TrainSpec(env="my_module:MyEnv")), references(TrainSpec(env="CartPole-v1", trace="mine:Trace"))
    (['my_module:MyEnv'], ['mine:Trace'])
    """
    found = [reference(spec.env)]
    if is_reference(spec.trace):
        found.append(spec.trace)
    return [one for one in found if one]


def modules(specs: Iterable[TrainSpec]) -> list[str]:
    """Return the users' modules that specs name, each once."""
    return list(dict.fromkeys(imports.split(found)[0] for spec in specs for found in references(spec)))


def check_saved(specs: Iterable[TrainSpec], allow_import: Collection[str], *, where: str) -> None:
    """Raise if specs that were read from a file, to train them, name a module that the user did not allow."""
    for spec in specs:
        for found in references(spec):
            imports.check_consent(found, allow_import, where=where)


def check_saved_env(spec: TrainSpec, allow_import: Collection[str], *, where: str) -> None:
    """Raise if the environment of a spec from a file is of a module that was not allowed; its trace is not needed."""
    found = reference(spec.env)
    if found:
        imports.check_consent(found, allow_import, where=where)


def import_modules(specs: Iterable[TrainSpec], tell: Callable[[str], None]) -> None:
    """Import the users' modules that specs name, and tell which files were imported."""
    for name in dict.fromkeys(spec.env for spec in specs):
        import_named(name, tell)
