"""Makes one Gymnasium environment, and checks what it returns, in this process or in a worker.

A vector environment turns an exception into a warning, or loses it on the way out of a worker. So
the guard does not raise: it returns a blank step, and a report of the fault in `info`.
"""

import functools
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

try:
    import gymnasium
except ModuleNotFoundError as missing:
    raise ImportError(f"this needs `gymnasium`: pip install 'offtrace[agent]' ({missing})") from missing

FAULT = "offtrace_fault"
"""The key of `info` that holds a report: the call that failed, the error in one line, and the traceback."""


def accepted_options(spec: Any) -> list[str]:
    """Return the options of an environment, as far as its signature shows them."""
    try:
        creator = spec.entry_point
        if isinstance(creator, str):
            creator = gymnasium.envs.registration.load_env_creator(creator)
        parameters = inspect.signature(creator).parameters.values()
    except (ImportError, AttributeError, TypeError, ValueError, gymnasium.error.Error):
        return []
    named = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return [name for name in named if name != "render_mode"]


def make_one(spec: Any, **options: Any) -> Any:
    """Call `gymnasium.make`; a missing package raises an `ImportError` that says how to install it."""
    try:
        return gymnasium.make(spec, disable_env_checker=True, **options)  # it only warns; the guard checks
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        if str(spec.entry_point).startswith("gymnasium.envs.box2d"):
            raise ImportError(f"{spec.id} needs Box2D: pip install 'offtrace[box2d]'") from error
        raise ImportError(f"{spec.id} needs a package that is not installed: {error}") from error


def maker(spec: Any, name: str, options: dict[str, Any]) -> Callable[[], Any]:
    """Return a function without arguments that makes the guarded environment, here or in a worker."""
    return functools.partial(_make_guarded, spec, name, options, os.getpid())


def _make_guarded(spec: Any, name: str, options: dict[str, Any], parent: int) -> Any:
    from offtrace.environments.encoding import Encoded, encoded

    if os.getpid() != parent:
        _prepare_worker()
    env = make_one(spec, **options)
    inner = env
    while isinstance(inner, gymnasium.Wrapper) and isinstance(inner.env, gymnasium.Wrapper):
        inner = inner.env
    if isinstance(inner, gymnasium.Wrapper):
        inner.env = ResultCheck(inner.env)
    else:
        env = ResultCheck(env)
    raw_spaces = (env.observation_space, env.action_space)
    env = encoded(env, name)
    notes = env.notes if isinstance(env, Encoded) else ()
    return Guard(env, notes, raw_spaces)


def _prepare_worker() -> None:
    """Leave Ctrl-C to the parent process, and exit when it does, even during a step that hangs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


class ResultCheck(gymnasium.Wrapper):
    """The innermost wrapper: checks the number of values returned. Old Gym environments return fewer."""

    def reset(self, **kwargs: Any) -> Any:
        result = self.env.reset(**kwargs)
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
            raise TypeError("`reset` must return (observation, info), as in Gymnasium; got something else")
        return result

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        if not (isinstance(result, tuple) and len(result) == 5):
            got = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
            raise TypeError(
                "`step` must return 5 values, (observation, reward, terminated, truncated, info); "
                f"got {got}. Before Gym 0.26 it returned 4, with one `done` for both ends"
            )
        return result


class Guard(gymnasium.Wrapper):
    """The outermost wrapper: reports errors, and observations of a wrong shape or dtype.

    Batching would hide a wrong dtype: 300 becomes 44 in uint8. Values are checked later, for the
    whole batch at once.
    """

    def __init__(self, env: Any, notes: tuple[str, ...] = (), raw_spaces: Any = None) -> None:
        super().__init__(env)
        self._space = env.observation_space
        self._blank = np.zeros(self._space.shape or (), self._space.dtype)
        self.notes = notes
        self.raw_spaces = raw_spaces
        """Spaces of observations and actions before they are encoded."""
        """Sentences about how observations and actions are encoded."""
        self.busy = False
        """True during a call."""

    def reset(self, **kwargs: Any) -> tuple[Any, dict]:
        self.busy = True
        try:
            observation, _ = self.env.reset(**kwargs)
            return self._observed(observation), {}
        except (Exception, SystemExit) as error:  # an exit must not look like the end of the run
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
        check_fits(array, self._space)
        return array


def check_fits(array: np.ndarray, space: Any) -> None:
    """Raise unless an array has the dtype and the shape of its Box."""
    if array.dtype != space.dtype:
        with np.errstate(invalid="ignore"):  # NaN has no integer value; it raises below
            same = array.dtype.kind in "biuf" and np.array_equal(array.astype(space.dtype), array)
        if not same and not (array.dtype.kind == space.dtype.kind == "f"):
            raise TypeError(f"the observation must fit its space's dtype, {space.dtype}; got {array.dtype}")
    if array.shape != space.shape:
        raise ValueError(f"the observation must have its space's shape, {space.shape}; got {array.shape}")


def _report(error: BaseException) -> tuple[str, str]:
    """Return the error and its place in one line, and the traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    of_environment = [frame for frame in frames if os.path.dirname(frame.filename) != os.path.dirname(__file__)]
    where = ""
    if of_environment:
        last = of_environment[-1]
        where = f" at {os.path.basename(last.filename)}:{last.lineno}"
    return f"{type(error).__name__}: {error}{where}", "".join(traceback.format_exception(error))
