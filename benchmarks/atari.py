"""Agents on Atari's Pong, on an accelerator: frames per second of all members together.

Batches have 64 transitions, and there is an update every 4 steps of a member's actors: 16 replayed
transitions for each new one. The network computes in bfloat16; members differ in trace and seed. A
call is some iterations; compiling and filling the memories are not timed. A frame is one step of
the emulator, four per step of an actor.

Besides the whole, each side alone: the device with environments that answer at once, and the
environments with random actions. The whole cannot be faster than either.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from offtrace.bench import Benchmark, LeftOut

FRAMES = 4
STEPS = 4_096
"""Steps of each member per call."""
TRACES = ("retrace", "tree_backup", "q_lambda")


class Size(NamedTuple):
    num_members: int
    num_actors: int


class InstantFleet:
    """Environments that answer at once, always the same."""

    def __init__(self, fleet: Any) -> None:
        from offtrace.environments.interface import Actor, Ended, Row

        self.num_members = fleet.num_members
        self.num_actors = fleet.num_actors
        self.rows = fleet.rows
        shape = (self.num_members, self.num_actors)
        frames = np.random.default_rng(0).integers(0, 256, (*shape, 84, 84), dtype=np.uint8)
        no = np.zeros(shape, bool)
        zero = np.zeros(shape, np.float32)
        actor = Actor(None, frames, no, no, zero, zero, None)
        self._answer = actor, Row(None, no, ~no, zero, ~no), Ended(no, zero, zero)

    def send(self, actions: np.ndarray) -> None:
        pass

    def receive(self) -> Any:
        return self._answer


class Agents:
    """Agents whose memories are filled and whose programs are compiled. All contenders of a row share them."""

    def __init__(self, size: Size) -> None:
        self.num_iterations = STEPS // size.num_actors
        self._size = size
        self._runtime: Any = None

    def start(self) -> None:
        """Make the emulators, one after another, and compile."""
        import jax

        from offtrace.agent.runtimes import runtime_for
        from offtrace.agent.spec import TrainSpec, resolved

        if self._runtime is not None:
            return
        if jax.default_backend() == "cpu":
            raise LeftOut("needs an accelerator")
        specs = [
            resolved(
                TrainSpec(
                    env="atari/pong",
                    trace=TRACES[i % len(TRACES)],
                    seed=1_000 * i,
                    num_actors=self._size.num_actors,
                    precision="bfloat16",
                    replay_size=100_000,
                    fill=5_000,
                )
            )
            for i in range(self._size.num_members)
        ]
        self._runtime = runtime_for(specs)
        self._state = self._runtime.start()
        self._state, _ = self._runtime.advance(self._state, self._runtime.program.fill, learns=False)
        self._runtime.end_tick(self._state)
        self.fleets = [group.fleet for group in self._state.groups]

    def train(self, fleets: Sequence[Any]) -> object:
        """Train for some iterations in these environments, one fleet per group of actors."""
        for group, fleet in zip(self._state.groups, fleets, strict=True):
            group.fleet = fleet
        self._state, _ = self._runtime.advance(self._state, self.num_iterations, learns=True)
        self._runtime.end_tick(self._state)
        return np.asarray(self._state.rest.num_steps)


def together(agents: Agents) -> Callable[[], object]:
    agents.start()
    return lambda: agents.train(agents.fleets)


def device(agents: Agents) -> Callable[[], object]:
    agents.start()
    instant = [InstantFleet(fleet) for fleet in agents.fleets]
    return lambda: agents.train(instant)


def environments(agents: Agents) -> Callable[[], object]:
    agents.start()
    first = agents.fleets[0]
    rng = np.random.default_rng(0)
    actions = rng.integers(first.rows.num_actions, size=(first.num_members, first.num_actors))

    def steps() -> object:
        for fleet in agents.fleets:
            fleet.send(actions)
        for _ in range(agents.num_iterations - 1):
            for fleet in agents.fleets:
                fleet.receive()
                fleet.send(actions)
        for fleet in agents.fleets:
            fleet.receive()
        return None

    return steps


def peak_memory(size: Size, name: str) -> float:
    """Return the most gigabytes of the device that were in use at once, up to this row."""
    import jax

    stats = jax.devices()[0].memory_stats() or {}
    return stats.get("peak_bytes_in_use", math.nan) / 1e9


def frames_per_second(size: Size, seconds: float) -> float:
    return FRAMES * size.num_members * STEPS / seconds


BENCHMARK = Benchmark(
    name="atari",
    question="How many frames of Pong per second do agents see and learn from? (members, actors of each)",
    rows=(Size(1, 128), Size(8, 32), Size(8, 64)),
    problem=Agents,
    contenders={"together": together, "device alone": device, "environments alone": environments},
    ours=("together",),
    columns={"frames/s": frames_per_second},
    measures={"peak GB": peak_memory},
    repeats=9,
    min_time=0.4,
    quick_rows=2,
)
