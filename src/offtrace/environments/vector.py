"""A Gymnasium vector environment with timeouts, which reports the first fault and the actor it belongs to."""

import multiprocessing
from collections.abc import Callable, Sequence
from typing import Any

from offtrace.environments.guard import FAULT, gymnasium, maker
from offtrace.environments.watchdog import CallHung, Watchdog, WorkerLost, kill

CLOSE_SECONDS = 5.0


class Fault(Exception):
    """An error of an environment: the actor (None if unknown), the call, and the message."""

    def __init__(self, actor: int | None, call: str, what: str, *, trace: str = "", hung: bool = False) -> None:
        super().__init__(what)
        self.actor = actor
        self.call = call
        self.what = what
        self.trace = trace
        self.hung = hung


class Vector:
    """`reset`, `send`, `receive` and `close` of a vector environment, each in at most `timeout` seconds.

    Workers are spawned, never forked: a fork copies the locks of JAX's threads, and may deadlock.
    """

    def __init__(self, env: Any, *, timeout: float | None) -> None:
        self._timeout = timeout
        self._watchdog = Watchdog()
        self._waiting: list[int] = []
        self._sent: Any = None
        self._ours = callable(env)
        self.env: Any = None
        before = multiprocessing.active_children()
        try:
            self.env = self._call("construction", env) if self._ours else env
        except BaseException:
            kill([child for child in multiprocessing.active_children() if _is_worker(child) and child not in before])
            raise

    def reset(self, *, seed: Any) -> tuple[Any, dict]:
        observations, info = self._exchange("reset", seed=seed)
        self._raise_reported(info)
        return observations, info

    def send(self, actions: Any) -> None:
        """Start a step. ALE's threads work on it at once; other environments step in `receive`."""
        self._sent = actions
        if hasattr(self.env, "recv"):
            self.env.send(actions)

    def receive(self) -> tuple[Any, Any, Any, Any, dict]:
        """Return the results of the step that `send` started."""
        call = ("recv",) if hasattr(self.env, "recv") else ("step", self._sent)
        answer = self._exchange(*call)
        self._raise_reported(answer[4])
        return answer

    def close(self) -> None:
        """Close the environment, then kill what is left of its processes. Closing twice is allowed."""
        env, self.env = self.env, None
        if env is None:
            return
        processes = _processes(env)
        try:
            self._watchdog.call(env.close, seconds=CLOSE_SECONDS)
        except Exception:  # it hangs or raises; either way only its processes matter now
            env.unwrapped.closed = True
        kill(processes)

    def abandon(self) -> None:
        """Kill the processes without closing the environment, in which the thread or a process is stuck."""
        env, self.env = self.env, None
        if env is not None:
            kill(_processes(env))
            env.unwrapped.closed = True  # otherwise it tries to close itself when it is collected

    def _exchange(self, call: str, *args: Any, **kwargs: Any) -> Any:
        if self.env is None:
            raise RuntimeError("The environments are closed.")
        if self._ours and _processes(self.env):
            return self._call(call, _through_pipes, self.env, self._waiting, call, *args, **kwargs)
        return self._call(call, getattr(self.env, call), *args, **kwargs)

    def _call(self, call: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        processes = _processes(self.env)
        try:
            return self._watchdog.call(function, *args, seconds=self._timeout, processes=processes, **kwargs)
        except CallHung:
            actor = self._busy()
            self.abandon()
            raise Fault(actor, _named(call), f"no answer in {self._timeout} seconds", hung=True) from None
        except WorkerLost as lost:
            self.abandon()
            raise Fault(lost.args[0], _named(call), lost.args[1]) from None
        except (EOFError, ConnectionError) as error:
            self.abandon()
            hint = "a script that starts workers needs `if __name__ == '__main__':`"
            raise Fault(None, _named(call), f"a worker ended ({type(error).__name__}); {hint}") from error
        except (Exception, SystemExit) as error:
            self.close()
            if call == "construction" and isinstance(error, Exception):
                raise
            raise Fault(None, _named(call), f"{type(error).__name__}: {error}") from error
        except BaseException:  # Ctrl-C while a call is running
            self.abandon()
            raise

    def _busy(self) -> int | None:
        """Return the first actor whose answer is missing."""
        if self._waiting:
            return self._waiting[0]
        envs = getattr(self.env, "envs", ())
        return next((index for index, env in enumerate(envs) if getattr(env, "busy", False)), None)

    def _raise_reported(self, info: dict) -> None:
        if FAULT in info:
            actor = next(index for index, report in enumerate(info[FAULT]) if report is not None)
            call, what, trace = info[FAULT][actor]
            self.close()
            raise Fault(actor, call, what, trace=trace)


def vector_maker(
    spec: Any, name: str, num_envs: int, vectorization: str, autoreset: Any, options: dict
) -> Callable[[], Any]:
    """Return a function that makes a vector of `num_envs` guarded environments."""
    makers = [maker(spec, name, options)] * num_envs
    if vectorization == "sync":
        return lambda: gymnasium.vector.SyncVectorEnv(makers, copy=False, autoreset_mode=autoreset)
    if vectorization == "async":
        return lambda: gymnasium.vector.AsyncVectorEnv(makers, copy=False, context="spawn", autoreset_mode=autoreset)
    raise ValueError(f'`vectorization` must be "sync" or "async"; got {vectorization!r}.')


def _through_pipes(env: Any, waiting: list[int], call: str, *args: Any, **kwargs: Any) -> Any:
    """Call `reset` or `step` of the workers; `waiting` holds the one whose answer is missing."""
    getattr(env, f"{call}_async")(*args, **kwargs)
    for index, pipe in enumerate(env.parent_pipes):
        waiting[:] = [index]
        pipe.poll(None)
    waiting.clear()
    return getattr(env, f"{call}_wait")()


def _named(call: str) -> str:
    """Return the name of a call for people: `recv` is the second half of a step."""
    return "step" if call == "recv" else call


def _processes(env: Any) -> Sequence[Any]:
    return getattr(getattr(env, "unwrapped", None), "processes", ())


def _is_worker(process: Any) -> bool:
    return process.name.startswith("Worker<AsyncVectorEnv>")
