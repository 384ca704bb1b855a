"""Candidate conventions for a function, from the names of its parameters and the libraries in its code."""

import functools
import inspect
import itertools
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from types import CodeType, ModuleType
from typing import Any

from offtrace.doctor.conventions import (
    LAYOUTS,
    LIBRARIES,
    ROW_COUNTS,
    Argument,
    Convention,
    parameters_of,
    remedy,
)
from offtrace.doctor.quantities import ONLINE, QUANTITIES, Meaning, meanings

LAYOUT_WORDS = ("single", "time-major", "batch-major")
WORDS = (*LAYOUT_WORDS, *LIBRARIES)
"""The words that `convention=` may contain, to narrow the search."""


def candidates(fn: Callable[..., Any], words: tuple[str, ...] = ()) -> Iterator[Convention]:
    """Yield ways to call this function, the likelier ones first. They may fail; the caller tries them."""
    parameters = parameters_of(fn)
    readings = meanings(list(parameters))
    unknown = [name for name, p in parameters.items() if readings[0][name] is None and p.default is p.empty]
    if unknown:
        names = ", ".join(f"`{name}`" for name in unknown)
        raise ValueError(f"the meaning of its parameter{'s' * (len(unknown) > 1)} {names} is not known.")
    layouts: list[str] = list(LAYOUTS)
    if set(words) & set(LAYOUT_WORDS):
        layouts = [layout for layout in LAYOUTS if any(layout.startswith(word) for word in words)]
    choices = [arguments for known in readings for arguments in _arguments(parameters, known)]
    for library in _libraries_to_try(fn, words):
        for layout, arguments, row_count, flags in itertools.product(layouts, choices, ROW_COUNTS, ("bool", "float")):
            if flags == "float" and not any(QUANTITIES[x.kind].group == "flag" for x in arguments):
                continue
            if row_count == "online_n" and not any(x.kind in ONLINE for x in arguments):
                continue
            yield Convention(arguments, layout, library, row_count, flags)


def _libraries_to_try(fn: Callable[..., Any], words: tuple[str, ...]) -> Iterator[str]:
    named_by_user = [x for x in LIBRARIES if x in words]
    if named_by_user:
        yield from named_by_user
        return
    named = libraries(fn)
    yield from named
    # The function may have imported a library while it was tried with the others.
    yield from (x for x in LIBRARIES[1:] if x in sys.modules and x not in named)


def _arguments(parameters: Any, known: dict[str, Meaning | None]) -> list[tuple[Argument, ...]]:
    """Return every choice of kinds for the parameters.

    Optional parameters that follow from the others are left out first, and passed in later choices.
    """
    wanted = {name: meaning for name, meaning in known.items() if meaning is not None}
    necessary = {
        name: meaning
        for name, meaning in wanted.items()
        if parameters[name].default is inspect.Parameter.empty or not _follows(name, wanted)
    }
    likeliest = {meaning.kinds[0] for meaning in wanted.values()}
    choices: list[tuple[Argument, ...]] = []
    for passed in (necessary, wanted):
        options = [_options(name, meaning, likeliest) for name, meaning in passed.items()]
        choices += [combination for combination in itertools.product(*options) if combination not in choices]
    return choices


def _options(name: str, meaning: Meaning, likeliest: set[str]) -> list[Argument]:
    """Return the kinds that one parameter may be given, likeliest first, in the light of the other parameters."""
    kinds = meaning.kinds
    has_flags = bool(likeliest & {"done", "terminated", "truncated", "not_done"})
    has_ends = bool(likeliest & {"done", "terminated", "discount"})
    if kinds == ("discount", "gamma") and has_flags:
        kinds = ("gamma", "discount")
    if kinds == ("not_done", "mask") and has_ends:
        kinds = ("mask", "not_done")
    options = [Argument(name, kind, meaning.start) for kind in kinds]
    if kinds[0] in ("v", "next_v"):
        options.append(Argument(name, kinds[0], meaning.start, trailing=True))
    return options


FOLLOWS_FROM = {
    "q_a": {"q"},
    "pi_a": {"pi"},
    "log_pi_a": {"pi", "pi_a"},
    "log_mu_a": {"mu", "mu_a"},
    "c": {"mu", "mu_a"},
    "v": {"q"},
    "not_done": {"discount"},
    "mask": {"reset", "discount"},
}
"""The kinds that can be computed from others."""


def _follows(name: str, wanted: dict[str, Meaning]) -> bool:
    """Return whether a parameter's content follows from the other parameters."""
    others = {meaning.kinds[0] for other, meaning in wanted.items() if other != name}
    return bool(FOLLOWS_FROM.get(wanted[name].kinds[0], set()) & others)


def libraries(fn: Callable[..., Any]) -> list[str]:
    """Return the array libraries to try: those that the function's own code names, then those of its module."""
    inner = _unwrapped(fn)
    module = getattr(inner, "__globals__", {})
    code = getattr(inner, "__code__", None)
    names = list(_names(code)) if code is not None else []
    imported = {name.partition(".")[0] for name in names}  # `import torch` inside the function
    found = [x for x in ("torch", "jax") if x in imported and x not in module and find_spec(x) is not None]
    found += _used({name: module[name] for name in names if name in module})
    found += _used(module)
    found += [x for x in _used({"fn": inner}) if x != "numpy"]
    found += ["numpy", *(x for x in ("torch", "jax") if x in sys.modules)]
    return list(dict.fromkeys(found))


def _unwrapped(fn: Any) -> Any:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return inspect.unwrap(fn)


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names in a function's code, and in that of the functions inside it."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


def _used(names: dict[str, Any]) -> list[str]:
    """Return the array libraries that these objects come from."""
    roots = set()
    for value in names.values():
        module = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        roots.add(str(module).partition(".")[0])
    return [x for x in ("torch", "jax", "numpy") if x in roots]


def narrowing_words(convention: str) -> tuple[str, ...]:
    """Split and check the words of `convention="batch-major torch"`."""
    found = tuple(convention.replace(",", " ").replace("pytorch", "torch").split())
    unknown = [word for word in found if word not in WORDS]
    if unknown:
        raise ValueError(f"`convention` must consist of the words {', '.join(WORDS)}; got {unknown[0]!r}.")
    for word in found:
        if word in LIBRARIES and find_spec(word) is None:
            raise ValueError(f"`convention` must name a library that is installed; got {word!r}. {remedy(word)}")
    return found
