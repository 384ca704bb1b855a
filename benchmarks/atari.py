"""Agents on Atari's Pong, on an accelerator: frames per second of all members together.

Batches have 64 transitions, and there is an update every 4 steps of a member's actors: 16 replayed
transitions for each new one. The network computes in bfloat16; members differ in trace and seed. A
call is some iterations; compiling and filling the memories are not timed. A frame is one step of
the emulator, four per step of an actor.

Besides the whole, each side alone: the device with environments that answer at once, and the
environments with random actions. The whole cannot be faster than either.
"""

from collections.abc import Callable
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


def started(size: Size) -> tuple[Any, Any]:
    """Return a runtime and its state, after the memories are filled and everything is compiled."""
    import jax

    from offtrace.agent.runtimes import runtime_for
    from offtrace.agent.spec import TrainSpec, resolved

    if jax.default_backend() == "cpu":
        raise LeftOut("needs an accelerator")
    specs = [
        resolved(
            TrainSpec(
                env="atari/pong",
                trace=TRACES[i % len(TRACES)],
                seed=1_000 * i,
                num_actors=size.num_actors,
                precision="bfloat16",
                replay_size=100_000,
                fill=5_000,
            )
        )
        for i in range(size.num_members)
    ]
    runtime = runtime_for(specs)
    state = runtime.start()
    state, _ = runtime.advance(state, runtime.program.fill, learns=False)
    runtime.end_tick(state)
    return runtime, state


def ticks(runtime: Any, state: Any, size: Size) -> Callable[[], object]:
    def tick() -> object:
        after, _ = runtime.advance(state, STEPS // size.num_actors, learns=True)
        runtime.end_tick(after)
        return after.rest.learner.params

    tick()
    return tick


def together(size: Size) -> Callable[[], object]:
    runtime, state = started(size)
    return ticks(runtime, state, size)


def device(size: Size) -> Callable[[], object]:
    runtime, state = started(size)
    for group in state.groups:
        group.fleet = InstantFleet(group.fleet)
    return ticks(runtime, state, size)


def environments(size: Size) -> Callable[[], object]:
    _, state = started(size)
    fleets = [group.fleet for group in state.groups]
    rng = np.random.default_rng(0)
    actions = rng.integers(fleets[0].rows.num_actions, size=(fleets[0].num_members, fleets[0].num_actors))
    for fleet in fleets:
        fleet.send(actions)

    def steps() -> object:
        for _ in range(STEPS // size.num_actors):
            for fleet in fleets:
                fleet.receive()
                fleet.send(actions)
        return None

    return steps


def frames_per_second(size: Size, seconds: float) -> float:
    return FRAMES * size.num_members * STEPS / seconds


BENCHMARK = Benchmark(
    name="atari",
    question="How many frames of Pong per second do agents see and learn from? (members, actors of each)",
    rows=(Size(1, 128), Size(8, 32), Size(8, 64), Size(16, 16)),
    problem=lambda size: size,
    contenders={"together": together, "device alone": device, "environments alone": environments},
    ours=("together",),
    columns={"frames/s": frames_per_second},
    repeats=7,
    min_time=0.2,
    quick_rows=1,
)
