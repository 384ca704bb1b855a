"""A user's function as a trace: what it needs is read from its signature."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from offtrace.arrays import Array, is_compiling
from offtrace.likelihoods import Likelihoods
from offtrace.traces.base import Trace

PROBABILITIES = ("pi_a", "mu_a")
LOGARITHMS = ("log_pi_a", "log_mu_a")
VALUES = ("q", "pi", "a")
NAMES = (*PROBABILITIES, *LOGARITHMS, *VALUES)
"""Names of the arrays that a function may take, in the order of `Likelihoods`; it is called by these names."""
REMEDY = f"It is called by name: let it take some of {', '.join(NAMES)}."


class Signature(NamedTuple):
    """The parameters of a function that have one of `NAMES`."""

    taken: tuple[str, ...]
    required: frozenset[str]
    """Those without a default."""
    optional: frozenset[str]
    """Those with a default; every likelihood, for a function with `**kwargs`."""


@dataclass(frozen=True)
class FunctionTrace(Trace):
    """A function that returns c, one per step. `as_trace` makes it; the function keeps its own λ, if it has one.

    The function is called with keyword arguments: those of `pi_a, mu_a, log_pi_a, log_mu_a, q, pi, a` that it has as
    parameters. A parameter without a default is required; one with a default is passed if the array is given. A
    function with `**kwargs` gets the likelihoods that are given. All other parameters need a default.

    >>> trace = FunctionTrace(lambda pi_a, mu_a: 0.5 * pi_a)
    >>> trace.needs_mu, trace.needs_q
    (True, False)
    >>> import numpy as np
    >>> trace(pi_a=np.array([1.0, 0.5]), mu_a=np.array([0.5, 0.5]))
    array([0.5 , 0.25])
    """

    lambda_: Any = field(default=None, init=False, repr=False)
    function: Callable[..., Array]
    signature: Signature = field(init=False, repr=False, compare=False)
    has_lambda = False

    def __post_init__(self) -> None:
        signature = signature_of(self.function)
        name = _name(self.function)
        # These facts differ between functions, so they are set on the value and not on the class.
        facts = {
            "signature": signature,
            "name": name,
            "title": name,
            "full_name": name,
            "needs_pi": not signature.required.isdisjoint(("pi_a", "log_pi_a")),
            "needs_mu": not signature.required.isdisjoint(("mu_a", "log_mu_a")),
            "needs_q": not signature.required.isdisjoint(VALUES),
        }
        for fact, value in facts.items():
            object.__setattr__(self, fact, value)

    @property
    def reads_mu(self) -> bool:
        return self.needs_mu or not self.signature.optional.isdisjoint(("mu_a", "log_mu_a"))

    @property
    def reads_q(self) -> bool:
        return self.needs_q or not self.signature.optional.isdisjoint(VALUES)

    def parameters(self) -> tuple[Any, ...]:
        """Return what the callable holds; its arrays decide the array library, as those of a trace do."""
        if is_compiling():  # by then all arrays are tensors
            return ()
        return tuple(getattr(self.function, "__dict__", {}).values())

    def coefficients(self, likelihoods: Likelihoods, *, q: Array, pi: Array, a: Array) -> Array:
        """Return what the function returns."""
        given = dict(zip(NAMES, (*likelihoods[1:], q, pi, a), strict=True))
        arguments = {name: given[name] for name in self.signature.taken if given[name] is not None}
        if not all(name in arguments for name in self.signature.required):
            raise TypeError(self._missing(given))
        return self.function(**arguments)

    def _missing(self, given: dict[str, Any]) -> str:
        missing = [name for name in NAMES if name in self.signature.required and given[name] is None]
        names = ", ".join(f"`{name}=`" for name in missing)
        arrays = ", ".join(f"`{name}=`" for name in NAMES if given[name] is not None)
        remedy = ""
        if missing[0] in LOGARITHMS and given["pi_a"] is not None:
            remedy = " Let it take `pi_a` and `mu_a`, or give logarithms."
        elif missing[0] in PROBABILITIES and given["log_pi_a"] is not None:
            remedy = " Let it take `log_pi_a` and `log_mu_a`, or give probabilities."
        return f"`trace`: {self.name} takes {names}, which was not given; got {arrays}.{remedy}"

    def _check_coefficients(self, likelihoods: Likelihoods, c: Array) -> None:
        """Check nothing: whoever calls a user's function checks what it returns."""


_SIGNATURES: WeakKeyDictionary[Callable[..., Any], Signature] = WeakKeyDictionary()


def signature_of(function: Callable[..., Any]) -> Signature:
    """Return the arrays that a function takes; reading a signature is slow, so it is kept for as long as it lives."""
    if is_compiling():
        return _read_signature(function)
    try:
        found = _SIGNATURES.get(function)
    except TypeError:  # it has no hash, or takes no weak reference
        return _read_signature(function)
    if found is None:
        found = _SIGNATURES[function] = _read_signature(function)
    return found


class _Parameter(NamedTuple):
    """A parameter of a function, as far as a call by names depends on it."""

    name: str
    by_name: bool
    """False for one that can be given by its position only."""
    has_default: bool


def _read_signature(function: Callable[..., Any]) -> Signature:
    if is_compiling() and isinstance(function, FunctionType) and not hasattr(function, "__wrapped__"):
        parameters, takes_any = _from_code(function)
    else:
        parameters, takes_any = _from_signature(function)
    name = _name(function)
    required: set[str] = set()
    optional: set[str] = set()
    if takes_any:
        optional |= {*PROBABILITIES, *LOGARITHMS}
    for parameter in parameters:
        if not parameter.by_name or parameter.name not in NAMES:
            if not parameter.has_default:
                raise TypeError(f"`trace` must not need other arguments; {name} has `{parameter.name}`. {REMEDY}")
        elif parameter.has_default:
            optional.add(parameter.name)
        else:
            required.add(parameter.name)
    if not required and not optional:
        raise TypeError(f"`trace` must take an array; {name} takes none. {REMEDY}")
    taken = tuple(name for name in NAMES if name in required | optional)
    return Signature(taken, frozenset(required), frozenset(optional - required))


def _from_signature(function: Callable[..., Any]) -> tuple[list[_Parameter], bool]:
    """Return the parameters of a callable, and whether it has `**kwargs`."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (AttributeError, TypeError, ValueError):
        raise TypeError(f"`trace` must be a function with a signature; got {_name(function)}. {REMEDY}") from None
    found = []
    takes_any = False
    for parameter in parameters:
        if parameter.kind is parameter.VAR_KEYWORD:
            takes_any = True
        elif parameter.kind is not parameter.VAR_POSITIONAL:
            by_name = parameter.kind is not parameter.POSITIONAL_ONLY
            found.append(_Parameter(parameter.name, by_name, parameter.default is not parameter.empty))
    return found, takes_any


def _from_code(function: FunctionType) -> tuple[list[_Parameter], bool]:
    """Return the same while PyTorch compiles: it may be unable to trace `inspect.signature`.

    Of a function that is defined inside the compiled one, PyTorch 2.13 knows the names and not the
    defaults. Then every parameter counts as one with a default.
    """
    code = function.__code__
    num_positional = code.co_argcount
    names = code.co_varnames[: num_positional + code.co_kwonlyargcount]
    try:
        with_default = tuple(function.__kwdefaults__ or ())
        num_defaults = len(function.__defaults__ or ())
        with_default += names[num_positional - num_defaults : num_positional]
    except AttributeError:
        with_default = names
    by_name = names[code.co_posonlyargcount :]
    found = [_Parameter(name, name in by_name, name in with_default) for name in names]
    return found, bool(code.co_flags & inspect.CO_VARKEYWORDS)


def _name(function: Any) -> str:
    """Return the name of a function, of the one inside a `functools.partial`, or of a callable object's class."""
    inner = getattr(function, "func", function)
    return getattr(inner, "__name__", type(inner).__name__)
