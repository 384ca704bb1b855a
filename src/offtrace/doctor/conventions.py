"""Conventions: how to call a function with a window, or with several windows side by side.

A convention is a set of independent choices: layout × array library × rows per argument × what each
parameter is given × flags as bools or numbers. A function of one argument called `window` is its
own convention.
"""

import contextlib
import functools
import importlib
import inspect
import io
import os
import warnings
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import numpy as np

from offtrace.doctor.golden import usual_companions
from offtrace.doctor.quantities import CUTS, ENDS, ONLINE, QUANTITIES, TRUE_NEXT, WITH_ACTIONS
from offtrace.doctor.windows import GoldenWindow

LAYOUTS = (
    "single stream",
    "time-major",
    "batch-major",
    "batch-major with a last axis",
    "time-major with a last axis",
)
LIBRARIES = ("numpy", "torch", "jax")
ROW_COUNTS = ("natural", "policies_n", "all_n", "all_n1", "taken_n1", "online_n")
"""The rows per argument: as in a window; policies have n; everything has n; everything has n+1;
what belongs to actions has n+1; the online network's values have n."""


@dataclass(frozen=True)
class Argument:
    """One parameter, and the kind of quantity it is given."""

    name: str
    kind: str
    start: int = 0
    """The first row: 1 for rlax's `_t` arguments."""
    trailing: bool = False
    """True if this argument has one more axis, of length one."""


@dataclass(frozen=True)
class Convention:
    """One way to call a function."""

    arguments: tuple[Argument, ...] = ()
    layout: str = LAYOUTS[0]
    library: str = "numpy"
    row_count: str = "natural"
    flags: str = "bool"
    adapter: Callable[[Any], Any] | None = field(default=None, compare=False)
    reads: frozenset[str] = frozenset()
    """The kinds that an adapter reads."""
    companions: tuple[GoldenWindow, ...] = ()
    """The other streams of a batch, if not the usual ones."""

    @property
    def kinds(self) -> frozenset[str]:
        return self.reads or frozenset(argument.kind for argument in self.arguments)

    @property
    def knows_lambda(self) -> bool:
        return bool({"lambda_", "c"} & self.kinds)

    @property
    def takes_gamma(self) -> bool:
        return bool({"gamma", "discount"} & self.kinds)

    @property
    def two_networks(self) -> bool:
        return bool(ONLINE & self.kinds)

    @property
    def batched(self) -> bool:
        return self.layout != LAYOUTS[0]

    def expresses(self, window: GoldenWindow) -> bool:
        """Return whether these arguments can describe what happens in this window."""
        if any(window.terminated) and not ENDS & self.kinds:
            return False
        if "done" in self.kinds and "terminated" not in self.kinds and any(window.truncated):
            return False  # one flag cannot tell the two ends apart
        can_cut = bool(CUTS & self.kinds)
        if not all(window.real):
            return can_cut
        if window.needs_cut and not can_cut:
            return False
        return bool(TRUE_NEXT & self.kinds) or not window.needs_true_next

    def streams(self, window: GoldenWindow) -> tuple[GoldenWindow, ...]:
        """Return the window, and the other streams of the batch."""
        if not self.batched:
            return (window,)
        return (window, *(self.companions or usual_companions(window)))

    def call(self, fn: Callable[..., Any], window: GoldenWindow) -> Any:
        """Return the function's raw output."""
        with quiet():
            if self.adapter is not None:
                return self.adapter(WindowView(window))
            streams = self.streams(window)
            parameters = parameters_of(fn)
            positional = []
            named = {}
            for argument in self.arguments:
                value = self._value(argument, streams)
                if parameters[argument.name].kind is inspect.Parameter.POSITIONAL_ONLY:
                    positional.append(value)
                else:
                    named[argument.name] = value
            return fn(*positional, **named)

    def _value(self, argument: Argument, streams: tuple[GoldenWindow, ...]) -> Any:
        quantity = QUANTITIES[argument.kind]
        if quantity.group == "scalar":
            return quantity.rows(streams[0])
        rows = [np.asarray(quantity.rows(w)) for w in streams]
        if quantity.group != "last":
            only_steps = argument.name.endswith("_tm1") or (self.row_count == "online_n" and argument.kind in ONLINE)
            count = "all_n" if only_steps else self.row_count
            rows = [_select_rows(x, argument.start, streams[0].n, quantity.group, count) for x in rows]
        if self.batched:
            batch_first = self.layout.startswith("batch") or quantity.group == "last"
            value = np.stack(rows, axis=0 if batch_first else 1)
        else:
            value = rows[0]
        if argument.trailing or ("last axis" in self.layout and argument.kind not in WITH_ACTIONS):
            value = value[..., None]
        return _convert(value, self.library, self.flags)

    def text(self, layouts: tuple[str, ...] = ()) -> str:
        """Return one line for the verdict; `layouts` are all that were found to work."""
        if self.adapter is not None:
            return "your adapter, one stream at a time"
        layout = " or ".join(layouts or (self.layout,))
        arrays = {"numpy": "NumPy", "torch": "PyTorch", "jax": "JAX"}[self.library]
        shift = "; `_t` is the row after, as in rlax" if any(x.start for x in self.arguments) else ""
        return f"{layout}; {arrays}{shift}"

    def fed(self) -> tuple[str, ...]:
        """Return what each parameter was given, for the user to check."""
        shown = []
        for argument in self.arguments:
            shift = ", from row 1 on" if argument.start else ""
            shown.append(f"{argument.name}: {QUANTITIES[argument.kind].title}{shift}")
        return tuple(shown)


def _select_rows(rows: np.ndarray, start: int, n: int, group: str, count: str) -> np.ndarray:
    """Return the rows that an argument has under this row count.

    Quantities of states, policies and actions taken are known in n+1 rows, the others in n:

        start 0, n rows        x_0 … x_{n−1}
        start 0, n+1 rows      x_0 … x_n
        start 1 (rlax's _t)    x_1 … x_n, or x_1 … x_{n−1} for actions under "taken_n1"
    """
    if group in ("step", "flag", "next"):
        if count == "all_n1" and group != "next":
            return np.concatenate([rows, np.zeros_like(rows[:1])])
        return rows
    if start:
        return rows[1:n] if count == "taken_n1" and group == "taken" else rows[1 : n + 1]
    if count == "all_n" or (count == "policies_n" and group == "policy"):
        return rows[:n]
    if count in ("all_n1", "taken_n1"):
        return rows[: n + 1]
    return rows[:n] if group == "taken" else rows[: n + 1]


def _convert(value: np.ndarray, library: str, flags: str) -> Any:
    """Return the array in the function's library: float64 in NumPy, float32 elsewhere."""
    if value.dtype.kind == "b" and flags == "float":
        value = value.astype(np.float64)
    if library == "numpy":
        return value.copy()
    if value.dtype.kind == "f":
        value = value.astype(np.float32)
    if library == "torch":
        torch = importlib.import_module("torch")
        dtype = {"f": torch.float32, "i": torch.int64, "b": torch.bool}[value.dtype.kind]
        return torch.tensor(value.tolist(), dtype=dtype)
    if value.dtype.kind == "i":
        value = value.astype(np.int32)
    return importlib.import_module("jax.numpy").asarray(value)


class WindowView:
    """A golden window as an adapter sees it: one stream of NumPy arrays, where row t is the paper's step t."""

    def __init__(self, window: GoldenWindow) -> None:
        self._window = window
        self._read: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        name = {"expected_q": "next_v", "starts": "reset", "gammas": "discount"}.get(name, name)
        if name == "n":
            return self._window.n
        if name not in QUANTITIES:
            valid = ", ".join(sorted((*QUANTITIES, "n")))
            raise AttributeError(f"a window has no `{name}`; valid names: {valid}.")
        self._read.add(name)
        quantity = QUANTITIES[name]
        value = quantity.rows(self._window)
        if quantity.group == "scalar":
            return value
        rows = np.asarray(value)
        return rows[: self._window.n] if quantity.group == "taken" else rows


@contextlib.contextmanager
def quiet() -> Generator[None]:
    """Run the user's code without its warnings and output; an attempt to exit becomes an error.

    Otherwise the function could print text that looks like a verdict, or end the process with exit
    code 0.
    """
    process = os.getpid()
    leave = os._exit

    def refuse_exit(status: int = 0) -> NoReturn:
        if os.getpid() != process:  # a child process of the function may exit
            leave(status)
        raise RuntimeError(f"it called os._exit({status})")

    os._exit = refuse_exit  # ty: ignore[invalid-assignment]
    try:
        with (
            warnings.catch_warnings(),
            np.errstate(all="ignore"),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    except SystemExit as error:
        raise RuntimeError(f"it called sys.exit({error.code!r})") from None
    finally:
        os._exit = leave


def parameters_of(fn: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters that can be passed, without those that a partial has bound already."""
    try:
        parameters = inspect.signature(fn).parameters
    except (TypeError, ValueError):
        raise unfit(f"{fn!r} has no signature to read.") from None
    named = {name: p for name, p in parameters.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    if isinstance(fn, functools.partial):
        named = {name: p for name, p in named.items() if name not in fn.keywords}
    return named


# -- adapters --------------------------------------------------------------------------------------

ADAPTER = """Write an adapter, and check that instead:

    def adapter(window):       # one stream; row t is the paper's step t
        return my_retrace(window.q[:-1], window.q[1:], window.a, window.r,
                          window.terminated, window.pi, window.mu_a,
                          gamma=window.gamma, lam=window.lambda_)   # (n,) targets

A window has q, pi, mu (n+1, A); a, r, mu_a, pi_a, q_a, ratio, discount, terminated, truncated,
reset, expected_q, next_q, next_pi (n, …); gamma and lambda_. With two networks, q is the target
network's and q_online the online network's."""


def from_adapter(adapter: Callable[[Any], Any], window: GoldenWindow) -> Convention:
    """Return the convention of a function of one window. It can express what it reads."""
    view = WindowView(window)
    with quiet():
        adapter(view)
    return replace(Convention(adapter=adapter), reads=frozenset(view._read) or frozenset({"r"}))


def takes_a_window(fn: Callable[..., Any]) -> bool:
    return list(parameters_of(fn)) == ["window"]


def unfit(text: str) -> ValueError:
    """Return an error with the adapter to write as a note: a note keeps its lines, so it can be pasted."""
    error = ValueError(text)
    error.add_note(ADAPTER)
    return error


def remedy(module: str) -> str:
    """Return how to install a missing module."""
    return f"Install it: pip install 'offtrace[{module}]'." if module in LIBRARIES else "Install it."
