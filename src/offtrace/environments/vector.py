"""A Gymnasium vector environment under watch: what it answers, or the first fault, with the actor it belongs to."""

import multiprocessing
from collections.abc import Callable, Sequence
from typing import Any

from offtrace.environments.guard import FAULT, gymnasium, maker
from offtrace.environments.watchdog import Hung, Lost, Watchdog, end

CLOSE_SECONDS = 5.0


class Fault(Exception):
    """Something an environment did wrong: to which actor (None: not known), in which call, and what."""

    def __init__(self, actor: int | None, call: str, what: str, *, trace: str = "", hung: bool = False) -> None:
        super().__init__(what)
        self.actor, self.call, self.what, self.trace, self.hung = actor, call, what, trace, hung


class Vector:
    """`reset`, `step` and `close` of a vector environment, each in at most `timeout` seconds.

    Workers are started afresh (`spawn`) and never forked: a fork copies the locks of JAX's threads, and may deadlock.
    """

    def __init__(self, env: Any, *, timeout: float | None) -> None:
        self._timeout = timeout
        self._watchdog = Watchdog()
        self._waiting: list[int] = []
        self._ours = callable(env)
        self.env: Any = None
        before = multiprocessing.active_children()
        try:
            self.env = self._call("construction", env) if self._ours else env
        except BaseException:
            end([child for child in multiprocessing.active_children() if _is_worker(child) and child not in before])
            raise

    def reset(self, *, seed: int) -> tuple[Any, dict]:
        observations, info = self._exchange("reset", seed=seed)
        self._look_for_reports(info)
        return observations, info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict]:
        answer = self._exchange("step", actions)
        self._look_for_reports(answer[4])
        return answer

    def close(self) -> None:
        """Politely at first. Closing twice is fine."""
        env, self.env = self.env, None
        if env is None:
            return
        processes = _processes(env)
        try:
            self._watchdog.call(env.close, seconds=CLOSE_SECONDS)
        except Exception:  # it hangs or raises: either way it is over, and only its processes matter
            env.unwrapped.closed = True
        end(processes)

    def abandon(self) -> None:
        """Without asking: the thread, or a process, is stuck in the environment."""
        env, self.env = self.env, None
        if env is not None:
            end(_processes(env))
            env.unwrapped.closed = True  # or it would try to close itself when collected

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
        except Hung:
            actor = self._busy()
            self.abandon()
            raise Fault(actor, call, f"no answer in {self._timeout} seconds", hung=True) from None
        except Lost as lost:
            self.abandon()
            raise Fault(lost.args[0], call, lost.args[1]) from None
        except (EOFError, ConnectionError) as error:
            self.abandon()
            hint = "a script that starts workers needs `if __name__ == '__main__':`"
            raise Fault(None, call, f"a worker ended ({type(error).__name__}); {hint}") from error
        except (Exception, SystemExit) as error:
            self.close()
            if call == "construction" and isinstance(error, Exception):
                raise
            raise Fault(None, call, f"{type(error).__name__}: {error}") from error
        except BaseException:  # Ctrl-C, while the answer is still to come
            self.abandon()
            raise

    def _busy(self) -> int | None:
        """The actor that the others wait for; of several the first."""
        if self._waiting:
            return self._waiting[0]
        envs = getattr(self.env, "envs", ())
        return next((index for index, env in enumerate(envs) if getattr(env, "busy", False)), None)

    def _look_for_reports(self, info: dict) -> None:
        if FAULT in info:
            actor = next(index for index, report in enumerate(info[FAULT]) if report is not None)
            call, what, trace = info[FAULT][actor]
            self.close()
            raise Fault(actor, call, what, trace=trace)


def vector_maker(spec: Any, num_envs: int, vectorization: str, autoreset: Any, options: dict) -> Callable[[], Any]:
    """A function that makes `num_envs` guarded environments of one specification."""
    makers = [maker(spec, options)] * num_envs
    if vectorization == "sync":
        return lambda: gymnasium.vector.SyncVectorEnv(makers, copy=False, autoreset_mode=autoreset)
    if vectorization == "async":
        return lambda: gymnasium.vector.AsyncVectorEnv(makers, copy=False, context="spawn", autoreset_mode=autoreset)
    raise ValueError(f'`vectorization` must be "sync" or "async"; got {vectorization!r}.')


def _through_pipes(env: Any, waiting: list[int], call: str, *args: Any, **kwargs: Any) -> Any:
    """`reset` or `step` of workers; `waiting` holds the one whose answer is waited for."""
    getattr(env, f"{call}_async")(*args, **kwargs)
    for index, pipe in enumerate(env.parent_pipes):
        waiting[:] = [index]
        pipe.poll(None)
    waiting.clear()
    return getattr(env, f"{call}_wait")()


def _processes(env: Any) -> Sequence[Any]:
    return getattr(getattr(env, "unwrapped", None), "processes", ())


def _is_worker(process: Any) -> bool:
    return process.name.startswith("Worker<AsyncVectorEnv>")
