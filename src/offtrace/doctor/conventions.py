"""How a function wants to be called: independent choices, found by the names of its parameters and by trying.

layout × library × how many rows each argument has × probabilities of all actions or of those taken × flags as bools
or numbers. A function of one argument called `window` is its own convention.
"""

import contextlib
import functools
import importlib
import inspect
import io
import itertools
import os
import sys
import warnings
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from types import CodeType, ModuleType
from typing import Any, NoReturn

import numpy as np

from offtrace.doctor.golden import Golden, companions
from offtrace.doctor.quantities import CUTS, KINDS, ONLINE, TRUE_NEXT, WITH_ACTIONS, Meaning, meanings

LAYOUTS = (
    "single stream",
    "time-major",
    "batch-major",
    "batch-major with a last axis",
    "time-major with a last axis",
)
LIBRARIES = ("numpy", "torch", "jax")
ROWS = ("natural", "policies_n", "all_n", "all_n1", "taken_n1", "online_n")
"""How many rows: as in a window; policies only n; everything only n; everything n+1; what belongs to actions n+1; the
online network's only n."""
WORDS = ("single", "time-major", "batch-major", *LIBRARIES)
"""What `convention=` may say, to narrow the search."""


@dataclass(frozen=True)
class Argument:
    """One parameter, and what it is fed with."""

    name: str
    kind: str
    start: int = 0
    trailing: bool = False
    """One more axis of length one, on this argument alone."""


@dataclass(frozen=True)
class Convention:
    """One way to call a function with a window, or with several side by side."""

    arguments: tuple[Argument, ...] = ()
    layout: str = LAYOUTS[0]
    library: str = "numpy"
    rows: str = "natural"
    flags: str = "bool"
    adapter: Callable[[Any], Any] | None = field(default=None, compare=False)
    reads: frozenset[str] = frozenset()
    beside: tuple[Golden, ...] = ()
    """What stands beside a window in a batch, if not its usual companions."""

    @property
    def kinds(self) -> frozenset[str]:
        return self.reads or frozenset(argument.kind for argument in self.arguments)

    @property
    def knows_lambda(self) -> bool:
        return bool({"lambda_", "c"} & self.kinds)

    @property
    def two_networks(self) -> bool:
        return bool(ONLINE & self.kinds)

    @property
    def batched(self) -> bool:
        return self.layout != LAYOUTS[0]

    def expresses(self, window: Golden) -> bool:
        """Whether these arguments can say what happens in this window."""
        cuts, true_next = bool(CUTS & self.kinds), bool(TRUE_NEXT & self.kinds)
        if any(window.terminated) and not {"discount", "not_done", "terminated", "done"} & self.kinds:
            return False
        if "done" in self.kinds and "terminated" not in self.kinds and any(window.truncated):
            return False  # one flag cannot say which of the two ends it was
        if not all(window.real):
            return cuts
        return (cuts or not window.needs_cut) and (true_next or not window.needs_true_next)

    def streams(self, window: Golden) -> tuple[Golden, ...]:
        """The window, and what stands beside it in a batch."""
        return (window, *(self.beside or companions(window))) if self.batched else (window,)

    def call(self, fn: Callable[..., Any], window: Golden) -> Any:
        """The function's raw answer; what it prints is not the doctor's, and its own exit is an error like others."""
        with warnings.catch_warnings(), np.errstate(all="ignore"), contained():
            warnings.simplefilter("ignore")
            if self.adapter is not None:
                return self.adapter(View(window))
            streams = self.streams(window)
            positional, named = [], {}
            parameters = _parameters(fn)
            for argument in self.arguments:
                value = self._value(argument, streams)
                if parameters[argument.name].kind is inspect.Parameter.POSITIONAL_ONLY:
                    positional.append(value)
                else:
                    named[argument.name] = value
            return fn(*positional, **named)

    def _value(self, argument: Argument, streams: tuple[Golden, ...]) -> Any:
        quantity = KINDS[argument.kind]
        if quantity.group == "scalar":
            return quantity.rows(streams[0])
        n = streams[0].n
        rows = [np.asarray(quantity.rows(w)) for w in streams]
        if quantity.group != "last":
            of_step = argument.name.endswith("_tm1") or (self.rows == "online_n" and argument.kind in ONLINE)
            option = "all_n" if of_step else self.rows
            rows = [_rows(x, argument.start, n, quantity.group, option) for x in rows]
        if self.batched:
            axis = 0 if self.layout.startswith("batch") or quantity.group == "last" else 1
            value = np.stack(rows, axis=axis)
        else:
            value = rows[0]
        if argument.trailing or ("last axis" in self.layout and argument.kind not in WITH_ACTIONS):
            value = value[..., None]
        return _convert(value, quantity.group, self.library, self.flags)

    def text(self, layouts: tuple[str, ...] = ()) -> str:
        """One line for a person; `layouts` are all that were found to work."""
        if self.adapter is not None:
            return "your adapter, one stream at a time"
        shift = "; `_t` is the row after, as in rlax" if any(x.start for x in self.arguments) else ""
        arrays = {"numpy": "NumPy", "torch": "PyTorch", "jax": "JAX"}[self.library]
        return f"{' or '.join(layouts or (self.layout,))}; {arrays}{shift}"

    def fed(self) -> tuple[str, ...]:
        """What each parameter was given, for a person to disagree with."""
        rows = {1: ", from row 1 on"}
        return tuple(f"{x.name}: {KINDS[x.kind].says}{rows.get(x.start, '')}" for x in self.arguments)


class View:
    """A golden window as an adapter sees it: one stream of NumPy arrays, row t being the paper's step t."""

    def __init__(self, window: Golden) -> None:
        self._window = window
        self._read: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        name = {"expected_q": "next_v", "starts": "reset", "gammas": "discount"}.get(name, name)
        if name == "n":
            return self._window.n
        if name not in KINDS:
            raise AttributeError(f"a window has {', '.join(sorted((*KINDS, 'n')))}; not `{name}`.")
        self._read.add(name)
        quantity = KINDS[name]
        value = quantity.rows(self._window)
        if quantity.group == "scalar":
            return value
        rows = np.asarray(value)
        return rows[: self._window.n] if quantity.group == "taken" else rows


@contextlib.contextmanager
def contained() -> Generator[None]:
    """Somebody's code cannot end the process as if all were well, nor print what looks like a verdict."""
    process, leave = os.getpid(), os._exit

    def refused(status: int = 0) -> NoReturn:
        if os.getpid() != process:
            leave(status)
        raise RuntimeError(f"it called os._exit({status})")

    os._exit = refused  # ty: ignore[invalid-assignment]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    except SystemExit as error:
        raise RuntimeError(f"it called sys.exit({error.code!r})") from None
    finally:
        os._exit = leave


# -- finding them ---------------------------------------------------------------------------------------------------


def candidates(fn: Callable[..., Any], words: tuple[str, ...] = ()) -> Iterator[Convention]:
    """Ways to call this function, the likelier ones first; whether they work is for the caller to see."""
    parameters = _parameters(fn)
    readings = meanings(list(parameters))
    strange = [name for name, p in parameters.items() if readings[0][name] is None and p.default is p.empty]
    if strange:
        names = ", ".join(f"`{name}`" for name in strange)
        raise ValueError(f"nothing is known about the parameter{'s' * (len(strange) > 1)} {names}.")
    layouts = [x for x in LAYOUTS if not set(words) & set(WORDS[:3]) or any(x.startswith(w) for w in words)]
    named_by_user = [x for x in LIBRARIES if x in words]
    named = named_by_user or libraries(fn)
    choices = [arguments for known in readings for arguments in _arguments(parameters, known)]
    late = (x for x in LIBRARIES[1:] if not named_by_user and x in sys.modules and x not in named)
    for library in itertools.chain(named, late):  # the function may have imported one while it was tried
        for layout, arguments, rows, flags in itertools.product(layouts, choices, ROWS, ("bool", "float")):
            if flags == "float" and not any(KINDS[x.kind].group == "flag" for x in arguments):
                continue
            if rows == "online_n" and not any(x.kind in ONLINE for x in arguments):
                continue
            yield Convention(arguments, layout, library, rows, flags)


def _arguments(parameters: Any, known: dict[str, Meaning | None]) -> list[tuple[Argument, ...]]:
    """Every choice of kinds for the parameters; optional ones are first left out where another already tells them."""
    wanted = {name: m for name, m in known.items() if m is not None}
    required = {name for name in wanted if parameters[name].default is inspect.Parameter.empty}
    asked = {m.kinds[0] for m in wanted.values()}
    has_flags = bool(asked & {"done", "terminated", "truncated", "not_done"})
    has_ends = bool(asked & {"done", "terminated", "discount"})
    choices: list[tuple[Argument, ...]] = []
    for full in (False, True):
        kept = wanted if full else {k: m for k, m in wanted.items() if k in required or not _told(m, wanted, k)}
        options = []
        for name, meaning in kept.items():
            kinds = meaning.kinds
            if kinds == ("discount", "gamma") and has_flags:
                kinds = ("gamma", "discount")
            if kinds == ("not_done", "mask") and has_ends:
                kinds = ("mask", "not_done")
            several = [Argument(name, kind, meaning.start) for kind in kinds]
            if kinds[0] in ("v", "next_v"):
                several.append(Argument(name, kinds[0], meaning.start, trailing=True))
            options.append(several)
        choices += [combination for combination in itertools.product(*options) if combination not in choices]
    return choices


def _told(meaning: Meaning, wanted: dict[str, Meaning], name: str) -> bool:
    """An optional argument whose content follows from the others."""
    others = {kind for other, m in wanted.items() if other != name for kind in m.kinds[:1]}
    told_by = {
        "q_a": {"q"},
        "pi_a": {"pi"},
        "log_pi_a": {"pi", "pi_a"},
        "log_mu_a": {"mu", "mu_a"},
        "c": {"mu", "mu_a"},
        "v": {"q"},
        "not_done": {"discount"},
        "mask": {"reset", "discount"},
    }
    return bool(told_by.get(meaning.kinds[0], set()) & others)


def libraries(fn: Callable[..., Any]) -> list[str]:
    """The array libraries to try, first those that the function's own code names, then those of its module."""
    inner = _unwrap(fn)
    names = getattr(inner, "__globals__", {})
    code = getattr(inner, "__code__", None)
    said = list(_names(code)) if code is not None else []
    own = {name: names[name] for name in said if name in names}
    imported = {name.partition(".")[0] for name in said}  # `import torch` inside the function
    found = [x for x in ("torch", "jax") if x in imported and x not in names and find_spec(x) is not None]
    found += [*_used(own), *_used(names)]
    found += [x for x in _used({"fn": inner}) if x != "numpy"]
    found += ["numpy", *(x for x in ("torch", "jax") if x in sys.modules)]
    return list(dict.fromkeys(found))


def _names(code: CodeType) -> Iterator[str]:
    """The names in a function's code, and in that of the functions inside it."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


def _used(names: dict[str, Any]) -> list[str]:
    roots = set()
    for value in names.values():
        module = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        roots.add(str(module).partition(".")[0])
    return [x for x in ("torch", "jax", "numpy") if x in roots]


def narrowed(words: str) -> tuple[str, ...]:
    """The words of `convention="batch-major torch"`."""
    found = tuple(words.replace(",", " ").replace("pytorch", "torch").split())
    unknown = [word for word in found if word not in WORDS]
    if unknown:
        raise ValueError(f"`convention` may say {', '.join(WORDS)}; got {unknown[0]!r}.")
    for word in found:
        if word in LIBRARIES and find_spec(word) is None:
            raise ValueError(f"`convention` must name a library that is installed; got {word!r}. {remedy(word)}")
    return found


def remedy(module: str) -> str:
    """What to do about a module that is missing."""
    return f"Install it: pip install 'offtrace[{module}]'." if module in LIBRARIES else "Install it."


def unfit(text: str) -> ValueError:
    """An error whose note is the adapter to write: a note keeps its lines, so it can be pasted."""
    error = ValueError(text)
    error.add_note(ADAPTER)
    return error


def from_adapter(adapter: Callable[[Any], Any], window: Golden) -> Convention:
    """The convention of a function of one window; what it reads says what it can express."""
    convention = Convention(adapter=adapter)
    view = View(window)
    with warnings.catch_warnings(), np.errstate(all="ignore"), contained():
        warnings.simplefilter("ignore")
        adapter(view)
    return replace(convention, reads=frozenset(view._read) or frozenset({"r"}))


def takes_a_window(fn: Callable[..., Any]) -> bool:
    return list(_parameters(fn)) == ["window"]


ADAPTER = """Write it an adapter, and check that:

    def adapter(window):       # one stream; row t is the paper's step t
        return my_retrace(window.q[:-1], window.q[1:], window.a, window.r,
                          window.terminated, window.pi, window.mu_a,
                          gamma=window.gamma, lam=window.lambda_)   # (n,) targets

A window has q, pi, mu (n+1, A); a, r, mu_a, pi_a, q_a, ratio, discount, terminated, truncated,
reset, expected_q, next_q, next_pi (n, …); gamma and lambda_. Of two networks, q is the target's and
q_online the other's."""


def _rows(rows: np.ndarray, start: int, n: int, group: str, option: str) -> np.ndarray:
    """The rows that this argument has under this option; `start` 1 is rlax's index."""
    if group in ("step", "flag", "next"):
        return np.concatenate([rows, np.zeros_like(rows[:1])]) if option == "all_n1" and group != "next" else rows
    if start:
        return rows[1:n] if option == "taken_n1" and group == "taken" else rows[1 : n + 1]
    natural = n if group == "taken" else n + 1
    if option == "all_n" or (option == "policies_n" and group == "policy"):
        natural = n
    elif option in ("all_n1", "taken_n1"):
        natural = n + 1
    return rows[:natural]


def _convert(value: np.ndarray, group: str, library: str, flags: str) -> Any:
    if value.dtype.kind == "b" and flags == "float":
        value = value.astype(np.float64)
    if library == "numpy":
        return value.copy()
    if value.dtype.kind == "f":
        value = value.astype(np.float32)
    if library == "torch":
        return importlib.import_module("torch").tensor(value.tolist(), dtype=_torch_dtype(value))
    return importlib.import_module("jax.numpy").asarray(value.astype(np.int32) if value.dtype.kind == "i" else value)


def _torch_dtype(value: np.ndarray) -> Any:
    torch = importlib.import_module("torch")
    return {"f": torch.float32, "i": torch.int64, "b": torch.bool}[value.dtype.kind]


def _unwrap(fn: Any) -> Any:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return inspect.unwrap(fn)


def _parameters(fn: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        parameters = inspect.signature(fn).parameters
    except (TypeError, ValueError):
        raise unfit(f"{fn!r} has no signature to read.") from None
    named = {name: p for name, p in parameters.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    if isinstance(fn, functools.partial):  # what is bound already is not ours to feed
        named = {name: p for name, p in named.items() if name not in fn.keywords}
    return named
