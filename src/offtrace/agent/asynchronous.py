"""The paper's runtime (App. F): actor-learners in threads, which update shared parameters without waiting.

    thread 0    copy θ │ act │ gradient │ update θ │ copy θ │ act │ …
    thread 1      copy θ │ act │ gradient │ update θ │ copy θ │ …        each with its own environment and replay
    …
    main        waits; at the end of a tick it measures, evaluates and saves, while all threads wait

A thread takes segments from those left of a tick, so a slow one takes fewer. The order in which
updates are applied depends on the machine: with one actor a run is a function of its spec, with
several it is not.
"""

import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from offtrace.agent import memory, segments
from offtrace.agent.actor_learners import ActorLearner, HostActors, PureActors, Stop
from offtrace.agent.actor_records import ActorsRecord
from offtrace.agent.population import TickSummary
from offtrace.agent.program import NUM_PROBE_WINDOWS, Probe
from offtrace.agent.runs import TICK
from offtrace.agent.settings import num_batch_entries, program_spec
from offtrace.agent.shared_parameters import SharedParameters
from offtrace.agent.spec import Plan
from offtrace.agent.states import checked_array, to_arrays, under
from offtrace.environments import on_host

POLL_SECONDS = 0.1
"""Seconds between two calls of `stop`."""
TOTALS = ("num_steps", "num_updates", "num_switches")
"""Columns of the counts of an actor over the run."""
SUMS = (*segments.RECORD, "num_segments", "num_updates", "staleness", "largest_staleness")
"""Columns of the sums of an actor over a tick."""


@dataclass
class AsynchronousState:
    """The shared parameters and the actor-learners."""

    shared: SharedParameters
    actors: list[ActorLearner]
    totals: np.ndarray
    """(num_actors, columns of `TOTALS`) int64; a thread writes to its own row."""
    tick: np.ndarray
    """(num_actors, columns of `SUMS`) float64."""


class Asynchronous:
    """One run on CPUs; `env` is a pure environment, or makes environments on the host."""

    def __init__(self, env: Any, specs: Sequence[Plan]) -> None:
        if len(specs) != 1:
            raise ValueError(
                f"`specs` must have one entry with `runtime='asynchronous'`; got {len(specs)}. Train them separately."
            )
        self.specs = tuple(specs)
        self.spec = specs[0]
        num_actors = self.spec.num_actors
        # Seen from outside, an iteration is a segment of every actor.
        self.program = program_spec(
            dataclasses.replace(self.spec, steps_per_update=self.spec.steps_per_update * num_actors)
        )
        self._check_tick()
        own = dataclasses.replace(self.program, num_actors=1, steps_per_update=self.spec.steps_per_update)
        self._cpu = jax.devices("cpu")[0]
        self._pool = ThreadPoolExecutor(num_actors, thread_name_prefix="actor-learner")
        with jax.default_device(self._cpu):
            kind = HostActors if on_host(self.spec.env) else PureActors
            self._actors = kind(env, self.spec, own)
            self._prog = self._actors.prog
            self._settings = self._actors.settings
            size = segments.init_params.eval_shape(self._prog, self._settings, jax.random.key(0)).size
            copies: list[Any] = [self._actors.template] * num_actors
            copies += [jax.ShapeDtypeStruct((size,), jnp.float32)] * (3 + 2 * num_actors)
            memory.check_fits(copies, num_batch_entries(self._prog, self.spec) * num_actors, self.specs)
        self.max_return = self._actors.max_return
        self.notes = self._actors.notes
        if num_actors > 1:
            self.notes += (
                f"{num_actors} actor-learners update shared parameters without locks: the same spec will give "
                "another run.",
            )

    def _check_tick(self) -> None:
        """Check the number of segments of a tick: checkpoints within it are numbered by them."""
        most = (TICK - 1) * self.spec.steps_per_update
        if self.spec.tick_steps > most:
            raise ValueError(
                f"`tick_steps` must be at most {most:,} with `steps_per_update` {self.spec.steps_per_update} and "
                f"`runtime='asynchronous'`; got {self.spec.tick_steps:,}."
            )

    def start(self) -> AsynchronousState:
        with jax.default_device(self._cpu):
            params = np.asarray(segments.init_params(self._prog, self._settings, jax.random.key(self.spec.seed)))
            actors = [self._actors.start(index) for index in range(self.spec.num_actors)]
            return self._state(self._shared(params), actors)

    def _shared(self, params: np.ndarray) -> SharedParameters:
        return SharedParameters(
            params,
            step_size=self.spec.step_size,
            annealing_steps=float(self._settings.annealing_steps),
            decay=self.program.learner.decay,
            regularisation=self.spec.regularisation,
            target_period=self.spec.target_period,
        )

    def _state(self, shared: SharedParameters, actors: list[ActorLearner]) -> AsynchronousState:
        totals = np.zeros((len(actors), len(TOTALS)), np.int64)
        return AsynchronousState(shared, actors, totals, np.zeros((len(actors), len(SUMS))))

    # -- a tick ----------------------------------------------------------------------------------------------

    def advance(
        self, state: AsynchronousState, num_iterations: int, *, learns: bool, stop: Stop = lambda: False
    ) -> tuple[AsynchronousState, TickSummary | None]:
        """Run the rest of a tick: `num_iterations` segments per actor, on average.

        Without learning each actor runs its own share, since its memory has to be filled. An error
        of one thread stops all others after their segments, and is raised here.
        """
        left = _SegmentsLeft(state.tick[:, SUMS.index("num_segments")], num_iterations, shared=learns)

        def work(index: int, is_halted: Stop) -> None:
            while not is_halted() and left.take(index):
                self._segment(state, index, learns)

        self._run(work, stop)
        if left.any():
            return state, None
        return state, _summary(state.tick)

    def _segment(self, state: AsynchronousState, index: int, learns: bool) -> None:
        """Run a segment of one actor, and apply its gradient."""
        shared = state.shared
        params, seen = shared.copy()
        found = self._actors.segment(state.actors[index], params, shared.target, shared.num_steps, learns=learns)
        num_steps = self.spec.steps_per_update
        shared.count_steps(num_steps)
        staleness = 0
        if found.gradient is not None:
            staleness = shared.apply(found.gradient, seen=seen, refused=bool(found.record[-1]))
        record = found.record.astype(np.float64)
        switches = record[segments.RECORD.index("num_switches")]
        state.totals[index] += np.array([num_steps, learns, switches], np.int64)
        sums = state.tick[index]
        sums[: len(record)] += record
        sums[len(segments.RECORD) :] += [1, learns, staleness, 0]
        sums[-1] = max(sums[-1], staleness)

    def _run(self, work: Callable[[int, Stop], Any], stop: Stop) -> list[Any] | None:
        """Call `work(index, is_halted)` in a thread per actor and return the results; None if `stop` returned True.

        All threads have ended when this returns or raises.
        """
        halted = threading.Event()

        def one(index: int) -> Any:
            with jax.default_device(self._cpu):
                return work(index, halted.is_set)

        futures = [self._pool.submit(one, index) for index in range(self.spec.num_actors)]
        try:
            while True:
                done, running = wait(futures, POLL_SECONDS, FIRST_EXCEPTION)
                if not running or any(future.exception() for future in done):
                    break
                if stop():
                    halted.set()
        finally:
            was_halted = halted.is_set()
            halted.set()
            wait(futures)
        results = [future.result() for future in _failed_first(futures)]
        return None if was_halted else results

    def end_tick(self, state: AsynchronousState) -> None:
        state.tick[:] = 0

    def num_done(self, state: AsynchronousState) -> int:
        """Return the finished segments of the tick."""
        return int(state.tick[:, SUMS.index("num_segments")].sum())

    def counts(self, state: AsynchronousState) -> tuple[int, int]:
        return state.shared.num_steps, state.shared.num_updates

    # -- measuring -------------------------------------------------------------------------------------------

    def probe(self, state: AsynchronousState, number: int) -> Probe:
        """Measure every actor-learner on windows of its own memory: as many in all as in other runtimes."""
        num_windows = max(1, NUM_PROBE_WINDOWS // self.spec.num_actors)
        params, _ = state.shared.copy()
        now = np.int32(state.shared.num_steps)

        def measure(index: int, _: Stop) -> Probe:
            key = jax.random.fold_in(jax.random.key(number), index)
            member = state.actors[index].member
            found = segments.probe(
                self._prog, member, self._settings, params, state.shared.target, now, key, num_windows=num_windows
            )
            return jax.tree.map(np.asarray, found)

        found = self._run(measure, lambda: False)
        assert found is not None
        return _combined(found)

    def actors_record(self, state: AsynchronousState) -> ActorsRecord:
        """Return the schedules and counts of every actor, and the staleness of the tick's updates."""
        now = np.int32(state.shared.num_steps)
        members = [segments.without(actor.member, "replay", "actors") for actor in state.actors]
        with jax.default_device(self._cpu):
            epsilons = [float(segments.epsilon(self._prog, one, self._settings, now)) for one in members]
        schedules = [int(one.following.current[0]) for one in members if one.following is not None]
        sums = dict(zip(SUMS, state.tick.T, strict=True))
        num_updates = sums["num_updates"].sum()
        staleness = float("nan")
        if num_updates:
            staleness = float(sums["staleness"].sum() / num_updates)
        num_steps, own_updates, switches = (tuple(column.tolist()) for column in state.totals.T)
        return ActorsRecord(
            epsilon=tuple(epsilons),
            schedule=tuple(schedules),
            num_switches=switches,
            num_steps=num_steps,
            num_updates=own_updates,
            staleness=staleness,
            largest_staleness=int(sums["largest_staleness"].max()),
        )

    def evaluate(
        self, state: AsynchronousState, number: int, num_episodes: int, *, stop: Stop = lambda: False
    ) -> tuple[np.ndarray, np.ndarray] | None:
        with jax.default_device(self._cpu):
            return self._actors.evaluate(state.shared.params.copy(), number, num_episodes, stop)

    # -- saving ----------------------------------------------------------------------------------------------

    def parameters(self, state: AsynchronousState) -> list[dict[str, np.ndarray]]:
        return [self._named(state.shared.params)]

    def _named(self, params: np.ndarray) -> dict[str, np.ndarray]:
        with jax.default_device(self._cpu):
            return to_arrays(segments.as_tree(self._prog, self._settings, jnp.array(params)))

    def arrays(self, state: AsynchronousState) -> dict[str, np.ndarray]:
        found = {f"shared.params.{name}": value for name, value in self._named(state.shared.params).items()}
        found |= {f"shared.{name}": value for name, value in state.shared.arrays().items()}
        found |= {"actors.totals": state.totals.copy(), "actors.tick": state.tick.copy()}
        for index, actor in enumerate(state.actors):
            found |= {f"actor.{index}.{name}": value for name, value in self._actors.arrays(actor).items()}
        return found

    def restore(
        self, arrays: Mapping[str, np.ndarray], *, new_episodes: bool = False, stop: Stop = lambda: False
    ) -> AsynchronousState | None:
        """Return the saved state; None if `stop` returned True while actions were repeated on the host."""
        with jax.default_device(self._cpu):
            untrained = np.asarray(segments.init_params(self._prog, self._settings, jax.random.key(0)))
        own = under("shared.", arrays)
        named = {
            name: checked_array(own, f"params.{name}", value.dtype, value.shape)
            for name, value in self._named(untrained).items()
        }
        for name, dtype, shape in (
            ("moments", np.float32, untrained.shape),
            ("target", np.float32, untrained.shape),
            ("counts", np.int64, (2,)),
        ):
            checked_array(own, name, dtype, shape)
        num_actors = self.spec.num_actors
        totals = checked_array(arrays, "actors.totals", np.int64, (num_actors, len(TOTALS)))
        tick = checked_array(arrays, "actors.tick", np.float64, (num_actors, len(SUMS)))
        actors = self._run(
            lambda index, is_halted: self._actors.restore(index, under(f"actor.{index}.", arrays), is_halted), stop
        )
        if actors is None:
            return None
        with jax.default_device(self._cpu):
            shared = self._shared(untrained)
            shared.restore(np.concatenate([value.ravel() for value in named.values()]), own)
        return AsynchronousState(shared, actors, totals.copy(), tick.copy())

    def close(self) -> None:
        """End the threads and close the environments."""
        self._pool.shutdown()
        self._actors.close()


class _SegmentsLeft:
    """The segments that are left of a tick: a share per actor, or all of them for whoever is first."""

    def __init__(self, num_done: np.ndarray, num_iterations: int, *, shared: bool) -> None:
        self._shared = shared
        self._left = [num_iterations - int(done) for done in num_done]
        if shared:
            self._left = [sum(self._left)]
        self._lock = threading.Lock()

    def take(self, index: int) -> bool:
        """Take one segment; False if none is left."""
        place = 0 if self._shared else index
        with self._lock:
            if self._left[place] <= 0:
                return False
            self._left[place] -= 1
            return True

    def any(self) -> bool:
        """Return whether segments are left."""
        return any(left > 0 for left in self._left)


def _failed_first(futures: Sequence[Any]) -> list[Any]:
    """Return the futures in their order; if one has failed, only that one."""
    failed = [future for future in futures if future.exception() is not None]
    return failed[:1] or list(futures)


def _summary(tick: np.ndarray) -> TickSummary:
    """Return the summary of a finished tick, with an axis of one member."""
    sums = dict(zip(SUMS, tick.sum(0), strict=True))
    with np.errstate(invalid="ignore", divide="ignore"):
        means = [sums[name] / np.float64(sums["num_updates"]) for name in ("loss", "gradient")]
    values = (sums["num_episodes"], sums["total_return"], sums["total_length"], *means, int(sums["refused"]))
    return TickSummary(*(np.asarray([value]) for value in values))


def _combined(probes: Sequence[Probe]) -> Probe:
    """Return the probes of all actors as one: means, and the largest of what is largest."""
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *probes)
    means = jax.tree.map(_mean_of_known, stacked)
    metrics = means.metrics._replace(largest_q=stacked.metrics.largest_q.max(0, keepdims=True))
    return means._replace(metrics=metrics, largest_reward=stacked.largest_reward.max(0, keepdims=True))


def _mean_of_known(values: np.ndarray) -> np.ndarray:
    """Return the mean over actors, with an axis of one member; nan counts only where all are nan."""
    is_known = ~np.isnan(values)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(is_known, values, 0).sum(0, keepdims=True) / is_known.sum(0, keepdims=True)
