"""What limits a population of agents on Atari, and how much memory does a member take?

    python studies/atari_profile.py [--members 8 --actors 32]

The agents are those of `offtrace bench atari`, which measures frames per second. Three parts, also stored as JSON:

- memory: the bytes of every kind of array, and what the device reports;
- turn: where the host's time goes in a turn of a group of actors (`src/offtrace/agent/host.py`). The host waits for
  environments and for actions, which come after the updates of the turn before; other work it only starts;
- kernels: what the device does in an iteration, copies included, and the share of time in which it does anything.

A device that is always busy is the limit. Otherwise it is what the host waits for, or the host.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp

from offtrace import bench
from offtrace.agent.groups import Group, HostState
from offtrace.agent.host import Host
from offtrace.agent.memory import num_bytes
from offtrace.agent.runtimes import runtime_for
from offtrace.agent.spec import TrainSpec, resolved

bench.load("atari")
atari: Any = sys.modules["offtrace_benchmark_atari"]

NUM_KERNELS = 15
REPORTED = {"bytes_in_use": "in use on the device", "peak_bytes_in_use": "peak on the device"}
PLACES: dict[str, tuple[Any, str]] = {
    "choice": (Host, "_choose"),
    "of it, frames to the device": (jnp, "asarray"),
    "start of updates": (Host, "_work"),
    "waiting for environments": (Group, "receive"),
    "actions": (Group, "send"),
}
"""The parts of a turn, and the functions that are timed for them."""
Event = tuple[float, float, str]
"""Start and end in nanoseconds, and the name of a kernel or copy."""


class Population(atari.Agents):
    """The agents of the benchmark, with memories of any size and on any device."""

    def __init__(self, given: argparse.Namespace) -> None:
        super().__init__(atari.Size(given.members, given.actors))
        specs = [
            TrainSpec(
                env="atari/pong",
                trace=atari.TRACES[i % len(atari.TRACES)],
                seed=1_000 * i,
                num_actors=given.actors,
                precision="bfloat16",
                replay_size=given.replay_size,
                fill=given.replay_size // 20,
            )
            for i in range(given.members)
        ]
        self._runtime = runtime_for([resolved(spec) for spec in specs])
        self._state: HostState = self._runtime.start()
        self._state, _ = self._runtime.advance(self._state, self._runtime.program.fill, learns=False)
        self._runtime.end_tick(self._state)
        self.fleets = [group.fleet for group in self._state.groups]

    def seconds(self, num_iterations: int) -> float:
        """Train for some iterations, wait for the device, and return the time."""
        self.num_iterations = num_iterations
        start = time.perf_counter()
        self.train(self.fleets)
        jax.block_until_ready((self._state.rest, self._state.memory))
        return time.perf_counter() - start

    def memory(self) -> dict[str, float]:
        """Return megabytes per member."""
        learner = self._state.rest.learner
        arrays = {
            "frames of replay": self._state.memory.frames,
            "records of replay": self._state.memory.records,
            "parameters": learner.params,
            "target parameters": learner.target_params,
            "optimiser": learner.optimiser,
            "stacks of actors": [group.stacks for group in self._state.groups],
        }
        found = {name: num_bytes(tree) for name, tree in arrays.items()}
        found["all of these"] = sum(found.values())
        reported = jax.devices()[0].memory_stats() or {}  # a CPU reports nothing
        found |= {REPORTED[name]: value for name, value in reported.items() if name in REPORTED}
        return {name: value / self._size.num_members / 1e6 for name, value in found.items()}


def timed(function: Callable[..., Any], durations: list[float]) -> Callable[..., Any]:
    """Return the function, which now also appends the seconds of every call."""

    def call(*args: Any, **options: Any) -> Any:
        start = time.perf_counter()
        result = function(*args, **options)
        durations.append(time.perf_counter() - start)
        return result

    return call


def turn(population: Population, num_iterations: int) -> dict[str, float]:
    """Return milliseconds per turn."""
    durations: dict[str, list[float]] = {name: [] for name in PLACES}
    with ExitStack() as patches:
        for name, (owner, attribute) in PLACES.items():
            function = timed(getattr(owner, attribute), durations[name])
            patches.enter_context(mock.patch.object(owner, attribute, function))
        whole = population.seconds(num_iterations)
    seconds = {name: sum(values) for name, values in durations.items()}
    seconds["whole turn"] = whole
    return {name: 1e3 * value / len(durations["choice"]) for name, value in seconds.items()}


def device_events(folder: str) -> list[Event]:
    """Return what the streams of a GPU did; nothing on other devices."""
    [file] = Path(folder).glob("plugins/profile/*/*.xplane.pb")
    profile = jax.profiler.ProfileData.from_file(str(file))
    planes = [plane for plane in profile.planes if plane.name.startswith("/device:GPU")]
    streams = [line for plane in planes for line in plane.lines if line.name.startswith("Stream")]
    return [(e.start_ns, e.start_ns + e.duration_ns, e.name) for stream in streams for e in stream.events]


def busy(events: list[Event]) -> float:
    """Return the nanoseconds in which the device did anything; streams overlap."""
    total = 0.0
    last = 0.0
    for start, end, _ in sorted(events):
        total += max(0.0, end - max(start, last))
        last = max(last, end)
    return total


def by_kernel(events: list[Event]) -> list[tuple[str, list[float]]]:
    """Return the durations of each kernel, the longest sum first."""
    durations: dict[str, list[float]] = defaultdict(list)
    for start, end, name in events:
        durations[name].append(end - start)
    return sorted(durations.items(), key=lambda item: -sum(item[1]))


def kernels(population: Population, num_iterations: int) -> dict[str, Any]:
    """Return times of an iteration, and the name, µs and calls of its kernels; none without a GPU."""
    population.seconds(num_iterations)
    plain = population.seconds(num_iterations)
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    options.host_tracer_level = 1
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            traced = population.seconds(num_iterations)
        events = device_events(folder)
    return {
        "ms": 1e3 * plain / num_iterations,
        "ms, traced": 1e3 * traced / num_iterations,
        "ms, busy": busy(events) / 1e6 / num_iterations,
        "kernels": [(name, sum(d) / 1e3 / num_iterations, len(d) / num_iterations) for name, d in by_kernel(events)],
    }


def print_table(title: str, values: dict[str, float]) -> None:
    print(title)
    for name, value in values.items():
        print(f"    {name:28} {value:12.3f}")


def print_kernels(found: dict[str, Any]) -> None:
    if not found["kernels"]:
        print("Kernels: the profiler saw no GPU.")
        return
    plain, traced, busy = (found[name] for name in ("ms", "ms, traced", "ms, busy"))
    print(f"Iteration: {plain:.2f} ms, of which the device is busy {busy:.2f} ms, {busy / plain:.0%}")
    print(f"While traced: {traced:.2f} ms, {busy / traced:.0%}; its kernels")
    for name, duration, num_calls in found["kernels"][:NUM_KERNELS]:
        print(f"    {duration:10.1f} µs {num_calls:8.1f} ×  {name[:80]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=8, help="members (8)")
    parser.add_argument("--actors", type=int, default=32, help="actors of each member (32)")
    parser.add_argument("--steps", type=int, default=2_048, help="steps of each member, for the host's turn (2,048)")
    parser.add_argument("--iterations", type=int, default=20, help="iterations, for the kernels (20)")
    parser.add_argument("--replay-size", type=int, default=100_000, help="steps in each memory (100,000)")
    parser.add_argument("--output", type=Path, default=Path("bench-results"), help="folder of the JSON file")
    given = parser.parse_args()
    num_iterations = max(1, given.steps // given.actors)
    population = Population(given)
    population.seconds(num_iterations)  # compiles
    found: dict[str, Any] = {
        "options": {name: value for name, value in vars(given).items() if name != "output"},
        "machine": bench.machine() | {"device": jax.devices()[0].device_kind},
        "memory": population.memory(),
    }
    print_table("Memory, MB per member", found["memory"])
    found["turn"] = turn(population, num_iterations)
    print_table("Turn of the host, ms", found["turn"])
    found["kernels"] = kernels(population, given.iterations)
    print_kernels(found["kernels"])
    given.output.mkdir(parents=True, exist_ok=True)
    text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
    (given.output / "atari_profile.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
