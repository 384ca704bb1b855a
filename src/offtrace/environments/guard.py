"""One Gymnasium environment, held to its interface where it runs: in this process, or in a worker.

A fault does not travel as an exception, which a vector environment would turn into a warning or lose on its way out
of a worker. The guard answers with a blank step instead, and a report of the fault in `info`.
"""

import functools
import importlib
import inspect
import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import Any

import numpy as np

from offtrace.environments import near, there_are

try:
    import gymnasium
except ModuleNotFoundError as missing:
    raise ImportError(f"Gymnasium environments need it: pip install 'offtrace[agent]' ({missing})") from missing

FAULT = "offtrace_fault"
"""The key of `info` for (the call that failed, what happened in one line, the traceback)."""


def find(name: str, *, allow_import: bool) -> Any:
    """The specification of a registered id. `module:Name-v0` imports the module, which runs its code."""
    module, colon, id_ = name.rpartition(":")
    if colon and not allow_import:
        raise ValueError(
            f"`env` must be an id that imports nothing; got {name!r}. If you trust it, pass allow_import=True."
        )
    if colon:
        try:
            importlib.import_module(module)
        except SystemExit as error:
            raise ValueError(f"`env` {name!r}: its module {module} exits when it is imported.") from error
    try:
        return gymnasium.spec(id_)
    except gymnasium.error.Error as error:
        said = str(error) if colon else _with_hint(id_, error)
        raise ValueError(f"`env` must be the id of a registered environment; got {name!r}. {said}") from error


def _with_hint(id_: str, error: Exception) -> str:
    """What Gymnasium says of a name that it does not know, with our own names: one hint, not two."""
    said = str(error)
    if not isinstance(error, gymnasium.error.NameNotFound | gymnasium.error.NamespaceNotFound):
        return said
    hint = near(id_)
    if "Did you mean" not in said:
        return f"{said} {hint or there_are()}"
    return said if not hint else f"{said.removesuffix('?')}, or {hint.removeprefix('Did you mean ')}"


def takes(spec: Any) -> list[str]:
    """The options of an environment itself, as far as it says."""
    load = gymnasium.envs.registration.load_env_creator
    try:
        creator = load(spec.entry_point) if isinstance(spec.entry_point, str) else spec.entry_point
        parameters = inspect.signature(creator).parameters.values()
    except (ImportError, AttributeError, TypeError, ValueError, gymnasium.error.Error):
        return []
    named = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return [name for name in named if name != "render_mode"]


def made(spec: Any, **options: Any) -> Any:
    """`gymnasium.make`, but what an environment needs and does not find is an `ImportError` with a remedy."""
    try:
        return gymnasium.make(spec, disable_env_checker=True, **options)  # its checker warns; the guard refuses
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        if str(spec.entry_point).startswith("gymnasium.envs.box2d"):
            raise ImportError(f"{spec.id} needs Box2D: pip install 'offtrace[box2d]'") from error
        raise ImportError(f"{spec.id} needs a package that is not installed: {error}") from error


def maker(spec: Any, options: dict[str, Any]) -> Callable[[], Any]:
    """A function without arguments that makes the guarded environment, here or in a worker."""
    return functools.partial(_made, spec, options, os.getpid())


def _made(spec: Any, options: dict[str, Any], parent: int) -> Any:
    if os.getpid() != parent:
        _settle()
    env = made(spec, **options)
    inner = env
    while isinstance(inner, gymnasium.Wrapper) and isinstance(inner.env, gymnasium.Wrapper):
        inner = inner.env
    if isinstance(inner, gymnasium.Wrapper):
        inner.env = Counted(inner.env)
    else:
        env = Counted(env)
    return Guard(env)


def _settle() -> None:
    """In a worker: leave Ctrl-C to the parent, and end with it, even from a step that hangs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


class Counted(gymnasium.Wrapper):
    """Innermost: refuses the results of the API before Gymnasium, by which other wrappers only stumble."""

    def reset(self, **kwargs: Any) -> Any:
        result = self.env.reset(**kwargs)
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
            raise TypeError("`reset` must return (observation, info), as since Gym 0.26; got something else")
        return result

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        if not (isinstance(result, tuple) and len(result) == 5):
            got = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
            raise TypeError(
                f"`step` must return 5 values, (observation, reward, terminated, truncated, info); got {got}. Before "
                "Gym 0.26 it returned 4, and said only `done`"
            )
        return result


class Guard(gymnasium.Wrapper):
    """Outermost: reports what the environment raises, and observations that would not survive a batch.

    Values are checked later, in the whole batch at once; here only the shape and dtype, which batching hides: 300
    becomes 44 in uint8.
    """

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        space = env.observation_space
        self._shape, self._dtype = space.shape, space.dtype
        self._blank = np.zeros(self._shape or (), self._dtype)
        self.busy = False
        """While a call is under way."""

    def reset(self, **kwargs: Any) -> tuple[Any, dict]:
        self.busy = True
        try:
            observation, _ = self.env.reset(**kwargs)
            return self._observed(observation), {}
        except (Exception, SystemExit) as error:  # what exits must not pass for a run that is done
            return self._blank, {FAULT: ("reset", *_report(error))}
        finally:
            self.busy = False

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self.busy = True
        try:
            observation, reward, terminated, truncated, _ = self.env.step(action)
            return self._observed(observation), float(reward), bool(terminated), bool(truncated), {}
        except (Exception, SystemExit) as error:
            return self._blank, 0.0, False, False, {FAULT: ("step", *_report(error))}
        finally:
            self.busy = False

    def _observed(self, observation: Any) -> np.ndarray:
        array = np.asarray(observation)
        if array.dtype != self._dtype:
            with np.errstate(invalid="ignore"):  # NaN has no integer; it is refused below
                same = array.dtype.kind in "biuf" and np.array_equal(array.astype(self._dtype), array)
            if not same and not (array.dtype.kind == self._dtype.kind == "f"):
                raise TypeError(f"the observation must fit its space's dtype, {self._dtype}; got {array.dtype}")
        if array.shape != self._shape:
            raise ValueError(f"the observation must have its space's shape, {self._shape}; got {array.shape}")
        return array


def _report(error: BaseException) -> tuple[str, str]:
    """One line that says what and where, and the traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename != __file__]
    where = f" at {os.path.basename(own[-1].filename)}:{own[-1].lineno}" if own else ""
    return f"{type(error).__name__}: {error}{where}", "".join(traceback.format_exception(error))
