"""The interface between the training loop and what runs the program.

`Synchronous` runs pure environments inside the compiled program, a whole population at once. `Host`
steps Gymnasium's environments on the CPU while the learner works. `Asynchronous` has both kinds of
environments, and the paper's actor-learners in threads.

    state = runtime.start()
    state, summary = runtime.advance(state, num_iterations, learns=True)
    arrays = runtime.arrays(state)                          # everything that an exact resume needs, by name
    state = runtime.restore(arrays)
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from offtrace.agent.actor_records import ActorsRecord
from offtrace.agent.host import Host
from offtrace.agent.population import TickSummary
from offtrace.agent.program import Probe, ProgramSpec
from offtrace.agent.spec import Plan
from offtrace.agent.synchronous import Synchronous
from offtrace.environments import on_host, with_options


class Runtime(Protocol):
    """One or more members that are trained together; results have a leading axis of members."""

    specs: tuple[Plan, ...]
    program: ProgramSpec
    max_return: float | None
    notes: tuple[str, ...]
    """Sentences for the user about the environment, such as how its observations are encoded."""

    def start(self) -> Any:
        """Return the state of untrained members."""
        ...

    def advance(
        self, state: Any, num_iterations: int, *, learns: bool, stop: Callable[[], bool] = lambda: False
    ) -> tuple[Any, TickSummary | None]:
        """Run the rest of a tick of `num_iterations` iterations; the summary is None if `stop` returned True.

        The given state is used up. A stopped tick can be saved, restored and continued.
        """
        ...

    def end_tick(self, state: Any) -> None:
        """Discard the records of the finished tick."""
        ...

    def num_done(self, state: Any) -> int:
        """Return a count that rises within a tick and is 0 between ticks."""
        ...

    def probe(self, state: Any, number: int) -> Probe: ...

    def evaluate(
        self, state: Any, number: int, num_episodes: int, *, stop: Callable[[], bool] = lambda: False
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Return returns, and which episodes ended, (members, num_episodes); None if `stop` returned True."""
        ...

    def counts(self, state: Any) -> tuple[int, int]:
        """Return the numbers of environment steps and of updates so far."""
        ...

    def parameters(self, state: Any) -> list[dict[str, np.ndarray]]:
        """Return the parameters of each member's network, as named arrays."""
        ...

    def arrays(self, state: Any) -> dict[str, np.ndarray]:
        """Return the state as named arrays."""
        ...

    def restore(
        self,
        arrays: Mapping[str, np.ndarray],
        *,
        new_episodes: bool = False,
        stop: Callable[[], bool] = lambda: False,
    ) -> Any:
        """Return the state that `arrays` was made from; None if `stop` returned True before it was complete.

        `new_episodes` is only for environments on the host: their actions are not repeated.
        """
        ...

    def close(self) -> None: ...


@runtime_checkable
class HasActors(Protocol):
    """A runtime whose actors are measured one by one."""

    def actors_record(self, state: Any) -> ActorsRecord:
        """Return the measurements of the tick that has just ended."""
        ...


def runtime_for(specs: Sequence[Plan], tell: Callable[[str], None] | None = None) -> Runtime:
    """Return the runtime of resolved specs.

    It is `Asynchronous` if the spec says so, `Host` for Gymnasium's environments, else `Synchronous`.
    `tell` is called with a line for each module that is imported.
    """
    env = with_options(specs[0].env, specs[0].options, tell)
    kinds = {spec.runtime for spec in specs}
    if len(kinds) > 1:
        raise ValueError(f"`runtime` must be the same for all specs; got {', '.join(sorted(kinds))}.")
    if specs[0].runtime == "asynchronous":
        from offtrace.agent.asynchronous import Asynchronous  # loads Numba

        return Asynchronous(env, specs)
    if on_host(specs[0].env):
        return Host([env, *(with_options(spec.env, spec.options, tell) for spec in specs[1:])], specs)
    return Synchronous(env, specs)
