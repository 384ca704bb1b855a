"""The trace of a spec: what a user gives, what the spec stores, and the trace that the agent computes with.

given in Python, or typed       fields of the spec                                        made from it
"retrace", ot.Retrace           trace="retrace"                                           Retrace(λ)
ot.QSigma(0.9, sigma=0.3)       trace="q_sigma", lambda_=0.9, trace_options={"sigma": …}  QSigma(λ, σ)
"my_module:Mine", Mine          trace="my_module:Mine", trace_source, trace_title         Mine(λ)
a lambda, a class of a script   trace=the object itself; such a spec cannot be saved      FunctionTrace

`stored` and `made` read no file that a user did not name: a reference is imported by `described`, for
a spec that was typed or passed in Python, and by `made`, for a spec that is trained.
"""

import functools
import hashlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from numbers import Real
from types import MappingProxyType
from typing import Any, NamedTuple

from offtrace import imports
from offtrace.traces import TRACES, FunctionTrace, Trace, as_trace, check_name
from offtrace.traces.function import NAMES

Tell = Callable[[str], None]
Options = dict[str, Any]


def is_reference(trace: Any) -> bool:
    """Return whether the trace of a spec is a user's own, named as `module:name`."""
    return isinstance(trace, str) and ":" in trace


# -- from what is given to a spec ----------------------------------------------------------------------------


class StoredTrace(NamedTuple):
    """A trace as fields of a spec."""

    trace: Any
    """A name, a reference, or the object itself if there is no reference to it."""
    lambda_: float | None = None
    """The λ of a trace that was given as a value."""
    options: Mapping[str, Any] = MappingProxyType({})
    """Its other parameters."""


def stored(given: Any) -> StoredTrace:
    """Return a trace as fields of a spec; nothing is imported.

    >>> from offtrace.traces import QSigma
    >>> stored(QSigma(0.9, sigma=0.25))
    StoredTrace(trace='q_sigma', lambda_=0.9, options={'sigma': 0.25})
    """
    if isinstance(given, str):
        _check_text(given)
        return StoredTrace(given)
    if isinstance(given, type) and issubclass(given, Trace):
        return StoredTrace(_stored_class(given))
    trace = _as_trace(given)
    if isinstance(trace, FunctionTrace):
        return StoredTrace(_reference_or_itself(trace.function))
    return _stored_value(trace)


def _check_text(given: str) -> None:
    if not is_reference(given):
        check_name(given, also=("dqn",))
        return
    try:
        imports.split(given)
    except ValueError as error:
        raise ValueError(f"`trace`: {error}") from None


def _stored_class(cls: type[Trace]) -> Any:
    if TRACES.get(cls.name) is cls:
        return cls.name
    return _reference_or_itself(cls)


def _stored_value(trace: Trace) -> StoredTrace:
    """Return a trace value as its class, its λ, and those of its parameters that are not the defaults."""
    found: Options = {}
    lambda_ = None
    for field in fields(trace):
        value = getattr(trace, field.name)
        if not isinstance(value, Real):
            raise ValueError(
                f"`trace` must have numbers as parameters in a spec; got {field.name} = {value!r} of "
                f"{type(trace).__name__}."
            )
        if field.name == "lambda_":
            lambda_ = float(value) if trace.has_lambda else None
        elif value != field.default:
            found[field.name] = value if isinstance(value, int) else float(value)
    return StoredTrace(_stored_class(type(trace)), lambda_, found)


def _reference_or_itself(value: Any) -> Any:
    """Return the reference to a class or function, or the object itself where importing would not give it."""
    try:
        reference = imports.reference_to(value)
    except ValueError:
        return value
    module, name = imports.split(reference)
    found = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return reference if found is value else value


def check_saved(trace: Any) -> str:
    """Return the trace of a spec as text; raise if it has no name that another process could import."""
    if isinstance(trace, str):
        return trace
    try:
        reference = imports.reference_to(trace)
    except ValueError as error:
        raise ValueError(f"`trace`: {error}") from None
    raise ValueError(f"`trace`: {reference} is another object than the one given. Give it a name of its own.")


# -- what a spec stores of a user's trace --------------------------------------------------------------------


class TraceDescription(NamedTuple):
    """What is known of a user's trace after its import."""

    source: str
    """Hash of the source; "" for what was not defined in a file."""
    title: str
    has_lambda: bool


def described(trace: Any, tell: Tell = lambda _: None) -> TraceDescription:
    """Return what a spec stores of a user's trace. A reference is imported."""
    found = trace
    source = ""
    if is_reference(trace):
        found = loaded(trace, tell)
        source = source_of(trace, found)
    if not isinstance(found, type):
        found = _as_trace(found)
    return TraceDescription(source, _title(found), found.has_lambda)


def _as_trace(function: Any) -> Trace:
    try:
        return as_trace(function)
    except TypeError as error:
        raise ValueError(str(error)) from None


def _title(trace: Any) -> str:
    """Return the title of a trace. It has a λ if the trace has one, and is a call, "mine()", if it has none."""
    title = trace.title
    if trace.has_lambda:
        title = title.replace("()", "")
        return title if "λ" in title else f"{title}(λ)"
    title = title.replace("(λ)", "").replace("λ", "")
    return title if "()" in title else f"{title}()"


def loaded(reference: str, tell: Tell = lambda _: None) -> Any:
    """Import a user's trace: a class, or a function that returns c."""
    try:
        found = imports.import_object(reference, tell)
    except ValueError as error:
        raise ValueError(f"`trace` {reference!r}: {error}") from error
    if isinstance(found, Trace):
        raise ValueError(
            f"`trace` must name a class or a function; {reference!r} is the value {found!r}. Name its class, and "
            "give its parameters by `lambda_` and `trace_options`."
        )
    is_class = isinstance(found, type)
    if (is_class and not issubclass(found, Trace)) or not callable(found):
        raise ValueError(
            f"`trace` must name a subclass of `ot.Trace`, or a function that returns c; {reference!r} is {found!r}."
        )
    return found


def source_of(reference: str, found: Any) -> str:
    """Return a hash of the files that define a user's trace: its own, and those of its base classes."""
    names = [imports.split(reference)[0]]
    if isinstance(found, type):
        names = [base.__module__ for base in found.__mro__]
    elif hasattr(found, "__qualname__"):
        names = [found.__module__]
    own = dict.fromkeys(
        name for name in names if name.partition(".")[0] not in ("offtrace", *sys.stdlib_module_names)
    )
    hashes = [imports.source_hash(name) for name in own if name in sys.modules]
    if len(hashes) == 1:
        return hashes[0]
    return hashlib.sha256(" ".join(hashes).encode()).hexdigest()[:16]


def sweep_fields(given: Any, tell: Tell = lambda _: None) -> tuple[Options, bool]:
    """Return a trace as fields of the specs of a sweep, and whether it has a λ of its own to vary.

    >>> sweep_fields("retrace"), sweep_fields("dqn")
    (({'trace': 'retrace'}, True), ({'trace': 'dqn'}, False))
    """
    found = stored(given)
    name = check_saved(found.trace)
    own: Options = {"trace": name}
    if found.options:
        own["trace_options"] = {**found.options}
    if found.lambda_ is not None:
        own["lambda_"] = found.lambda_
    if not is_reference(name):
        return own, name in TRACES and TRACES[name].has_lambda
    description = described(name, tell)
    own |= {"trace_source": description.source, "trace_title": description.title}
    return own, description.has_lambda


# -- from a spec to the trace --------------------------------------------------------------------------------


def made(trace: Any, lambda_: Any, options: Mapping[str, Any], source: str = "") -> Trace:
    """Return the trace of a spec. A reference is imported; `source` is the hash that it must have."""
    found = trace
    if trace == "dqn":
        found = TRACES["one_step"]
    elif is_reference(trace):
        found = loaded(trace)
        now = source_of(trace, found)
        if source and now != source:
            raise ValueError(
                f"`trace` {trace!r} must be the one that the run was planned with, whose source has the hash "
                f"{source}; got {now}. The file has changed: run the command again to plan new runs."
            )
    elif isinstance(trace, str):
        found = TRACES[trace]
    if isinstance(found, type):
        return _from_class(found, lambda_, options)
    if options:
        found = _bound(found, tuple(options.items()))
    return _as_trace(found)


def _from_class(cls: Any, lambda_: Any, options: Mapping[str, Any]) -> Trace:
    parameters = [field for field in fields(cls) if field.init and field.name != "lambda_"]
    _check_known(options, [field.name for field in parameters], cls.__name__)
    for field in parameters:
        if field.name not in options and field.default is field.default_factory is MISSING:
            raise ValueError(
                f"`trace_options` must give every parameter of {cls.__name__} that has no default; {field.name!r} is "
                f"missing."
            )
    given = dict(options)
    if cls.has_lambda:
        given["lambda_"] = lambda_
    try:
        return cls(**given)
    except TypeError as error:
        raise ValueError(f"`trace_options`: {error}") from None


@functools.cache  # equal options give one object, so that a program is compiled once
def _bound(function: Callable[..., Any], options: tuple[tuple[str, Any], ...]) -> Callable[..., Any]:
    """Return a function with some of its parameters set."""
    parameters = inspect.signature(function).parameters.values()
    names = [one.name for one in parameters if one.name not in NAMES and one.kind is not one.VAR_KEYWORD]
    _check_known(dict(options), names, getattr(function, "__name__", repr(function)))
    return functools.partial(function, **dict(options))


def _check_known(options: Mapping[str, Any], names: Sequence[str], owner: str) -> None:
    unknown = [name for name in options if name not in names]
    if unknown:
        known = f"It has {', '.join(names)}." if names else "It has none."
        raise ValueError(f"`trace_options` must be parameters of {owner}; got {unknown[0]!r}. {known}")
