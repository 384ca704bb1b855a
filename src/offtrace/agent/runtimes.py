"""What drives a learner: the two runtimes, with one face for the training loop.

`Synchronous` runs pure environments inside one compiled program, a whole population at once; `Host` (in its own
module) steps Gymnasium's on the CPU while the learner is at work.

    state = runtime.start()
    state, tick = runtime.advance(state, num_iterations, learns=True)
    runtime.arrays(state)                                   # everything that an exact resume needs, by name
    state = runtime.restored(arrays)
"""

import functools
import math
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from offtrace.agent import memory, synchronous
from offtrace.agent.learner import MARKOV, Choice, Hyper, LearnerSpec
from offtrace.agent.runs import TICK
from offtrace.agent.schedules import SwitchingEpsilon
from offtrace.agent.spec import DEFAULT_TICK, Plan, differences
from offtrace.agent.synchronous import Exploration, Iterations, Member, Probe, ProgramSpec, Settings, Tick
from offtrace.environments import Environment, on_host, program_shape, with_options
from offtrace.traces import as_trace


def never() -> bool:
    """Nobody asks for a stop."""
    return False


class Runtime(Protocol):
    """One or more members that are trained together; whatever it returns has a leading axis of members."""

    specs: tuple[Plan, ...]
    program: ProgramSpec
    max_return: float | None

    def start(self) -> Any: ...

    def advance(
        self, state: Any, num_iterations: int, *, learns: bool, stop: Callable[[], bool] = never
    ) -> tuple[Any, Tick | None]:
        """Run what is left of a tick of so many iterations; no `Tick` if `stop` returned True before its end.

        The state that was given is used up. A tick that was stopped can be saved, restored and continued.
        """
        ...

    def over(self, state: Any) -> None:
        """Forget the tick, which has been reported; the next one starts."""
        ...

    def num_done(self, state: Any) -> int:
        """A count that rises within a tick, and is 0 between two ticks."""
        ...

    def probe(self, state: Any, number: int) -> Probe: ...

    def evaluate(
        self, state: Any, number: int, num_episodes: int, *, stop: Callable[[], bool] = never
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Returns, and whether each episode ended: (members, num_episodes). None if it was asked to stop."""
        ...

    def counts(self, state: Any) -> tuple[int, int]:
        """Environment steps and updates so far."""
        ...

    def arrays(self, state: Any) -> dict[str, np.ndarray]: ...

    def restored(self, arrays: Mapping[str, np.ndarray], *, stop: Callable[[], bool] = never) -> Any:
        """None if it was asked to stop on the way."""
        ...

    def close(self) -> None: ...


_init = jax.jit(synchronous.init, static_argnums=0)
_iterate = jax.jit(
    synchronous.iterate, static_argnums=0, static_argnames=("block", "learns"), donate_argnames=("members", "table")
)
_probe = jax.jit(synchronous.probe, static_argnums=0)
_expect = jax.jit(synchronous.expect, static_argnums=0, static_argnames="epsilon")
_begin_episodes = jax.jit(synchronous.begin_episodes, static_argnums=0, static_argnames="num_episodes")
_play_on = jax.jit(synchronous.play_on, static_argnums=0, static_argnames="epsilon")
"""Programs are compared by what they are: a second run of the same kind finds them compiled."""


@dataclass
class Population:
    """Members, and the table of the tick that they are in."""

    members: Member
    table: Iterations | None = None
    """None between two ticks."""
    num_done: int = 0
    """Iterations of the tick that are done."""


class Synchronous:
    """Members that differ in trace, λ, seed and other numbers, but not in a shape, as one program.

    An MDP is numbers, too: members may have different ones of one shape. Where there are several devices and the
    members can be shared out evenly, each device has its share.
    """

    def __init__(self, env: Environment, specs: Sequence[Plan]) -> None:
        self.specs = tuple(specs)
        refuse_shapes(self.specs)
        self.program, self.max_return = program_spec(specs[0]), env.max_return
        self._settings = settings(specs)
        if specs[0].env.startswith("mdp/"):
            worlds = [with_options(spec.env, spec.options).world for spec in specs]
            world = jax.tree.map(lambda *leaves: jnp.stack(leaves), *worlds)
            self._settings = self._settings._replace(world=world)
            env = program_shape(specs[0].env, specs[0].options)
        self._prog = synchronous.program(env, self.program)
        self._keys = jnp.stack([jax.random.key(spec.seed) for spec in specs])
        self._template = jax.eval_shape(lambda: synchronous.init(self._prog, self._settings, self._keys))
        memory.refuse_too_large(self._template, num_batch_entries(self._prog, self.specs), self.specs)
        num_devices = math.gcd(len(jax.devices()), len(specs))
        self._mesh = Mesh(np.array(jax.devices()[:num_devices]), ("members",)) if num_devices > 1 else None
        self._pieces = {True: 0, False: 0}
        """Blocks per piece of a tick, with learning and without; 0 before the first one."""

    def start(self) -> Population:
        return Population(_init(self._prog, self._settings, self._keys))

    def advance(
        self, state: Population, num_iterations: int, *, learns: bool, stop: Callable[[], bool] = never
    ) -> tuple[Population, Tick | None]:
        """A tick of more than a second is run in pieces of about a second, and `stop` is asked between them.

        How long the pieces are does not change a number: all are run by one program.
        """
        if state.table is None or len(state.table.loss[0]) < num_iterations:
            state.table = self._table(state, num_iterations, learns)
        block = block_length(math.gcd(num_iterations, state.num_done))
        if not self._pieces[learns]:
            if block < num_iterations:
                # No iterations: this only compiles, which does not count as time.
                self._run(state, state.num_done, block, learns)
            self._pieces[learns] = 1
        asked = time.monotonic()
        while state.num_done < num_iterations:
            if time.monotonic() - asked > PIECE_SECONDS:
                if stop():
                    return state, None
                asked = time.monotonic()
            self._run_piece(state, num_iterations, block, learns)
        return state, synchronous.summary(state.table)

    def _run_piece(self, state: Population, num_iterations: int, block: int, learns: bool) -> None:
        """Run one piece of a tick, and choose the length of the next one by the time that this one took."""
        length = min(self._pieces[learns], (num_iterations - state.num_done) // block)
        started = time.monotonic()
        self._run(state, state.num_done + length * block, block, learns)
        seconds = time.monotonic() - started
        if length == self._pieces[learns]:  # not the rest of a tick
            if seconds < PIECE_SECONDS / 2:
                self._pieces[learns] = 2 * length
            elif seconds > 2 * PIECE_SECONDS:
                self._pieces[learns] = max(1, length // 2)

    def _table(self, state: Population, num_iterations: int, learns: bool) -> Iterations:
        """A table for the tick, with the rows that are done already."""
        table = synchronous.no_iterations(self._prog, len(self.specs), num_iterations, learns=learns)
        if state.table is not None:
            for column, done in zip(table, state.table, strict=True):
                column[:, : state.num_done] = done
        return table

    def _run(self, state: Population, until: int, block: int, learns: bool) -> None:
        given = {"table": state.table, "start": np.int32(state.num_done), "until": np.int32(until)}
        run = functools.partial(_iterate, self._prog, block=block, learns=learns)
        if self._mesh is not None:
            run = self._shared_out(block, learns)
        state.members, state.table = run(members=state.members, settings=self._settings, **given)
        state.num_done = until
        jax.block_until_ready(state.table)

    @functools.lru_cache  # noqa: B019 (a runtime lives as long as its run)
    def _shared_out(self, block: int, learns: bool) -> Any:
        run = functools.partial(synchronous.iterate, self._prog, block=block, learns=learns)
        clocks = synchronous.clocks(self._template)
        spread = jax.tree.map(lambda is_clock: PartitionSpec() if is_clock else PartitionSpec("members"), clocks)
        own, shared = PartitionSpec("members"), PartitionSpec()
        run = jax.shard_map(
            run,
            mesh=self._mesh,
            in_specs=(spread, own, own, shared, shared),
            out_specs=(spread, own),
            check_vma=False,
        )
        return jax.jit(
            lambda *, members, settings, table, start, until: run(members, settings, table, start, until),
            donate_argnames=("members", "table"),
        )

    def over(self, state: Population) -> None:
        state.table = None
        state.num_done = 0

    def num_done(self, state: Population) -> int:
        return state.num_done

    def probe(self, state: Population, number: int) -> Probe:
        return jax.tree.map(np.asarray, _probe(self._prog, state.members, self._settings, jax.random.key(number)))

    def evaluate(
        self, state: Population, number: int, num_episodes: int, *, stop: Callable[[], bool] = never
    ) -> tuple[np.ndarray, np.ndarray] | None:
        params, spec = state.members.learner.params, self.specs[0]
        epsilon = spec.evaluation_epsilon
        if self._settings.world is not None:
            returns, ended = _expect(self._prog, params, self._settings, epsilon=epsilon)
            return np.asarray(returns), np.asarray(ended)
        keys = jnp.stack([evaluation_key(spec, number) for spec in self.specs])
        episodes = _begin_episodes(self._prog, self._settings, keys, num_episodes=num_episodes)
        for done in range(0, spec.evaluation_steps, PART):
            if stop():
                return None
            until = min(done + PART, spec.evaluation_steps)
            episodes = _play_on(self._prog, params, self._settings, episodes, until, epsilon=epsilon)
            if np.asarray(episodes.done).all():
                break
        return np.asarray(episodes.returns), np.asarray(episodes.done)

    def counts(self, state: Population) -> tuple[int, int]:
        return int(state.members.num_steps), int(state.members.learner.num_updates)

    def arrays(self, state: Population) -> dict[str, np.ndarray]:
        found = arrays_of(state.members)
        if state.num_done:
            rows = jax.tree.map(lambda column: np.asarray(column)[:, : state.num_done], state.table)
            found |= {f"tick.{name}": column for name, column in arrays_of(rows).items()}
        return found

    def restored(self, arrays: Mapping[str, np.ndarray], *, stop: Callable[[], bool] = never) -> Population:
        members = state_of(self._template, arrays)
        rows = {name.removeprefix("tick."): rows for name, rows in arrays.items() if name.startswith("tick.")}
        if not rows:
            return Population(members)
        num_done = rows["loss"].shape[1] if "loss" in rows and rows["loss"].ndim == 3 else 0
        learns = bool(num_done and rows["loss"].size)
        expected = synchronous.no_iterations(self._prog, len(self.specs), num_done, learns=learns)
        return Population(members, state_of(expected, rows), num_done)

    def close(self) -> None:
        """Nothing is held outside of the program."""


def block_length(num_iterations: int) -> int:
    """Return how many iterations of a tick are run as one block, within which nothing is asked.

    It is the largest divisor up to a limit. Blocks cost nothing on a CPU; on a GPU short ones take 7 % longer.
    """
    most = 8 if jax.default_backend() == "cpu" else 256
    return max(length for length in range(1, most + 1) if num_iterations % length == 0)


PIECE_SECONDS = 1.0
"""Seconds of a tick between two looks at whether to stop, about."""
PART = 256
"""Steps of an evaluation between two looks at whether to stop."""
LONGEST_TICK = 10**7
"""Steps; what every update did is in memory until its tick is over."""
MOST_TICKS = 999_990
"""Reports of a run. Evaluations are drawn by the number of their tick, and that at the end has number 10⁶."""

# -- from specs to programs ----------------------------------------------------------------------------------

NUMBERS = (
    "trace",
    "lambda_",
    "seed",
    "gamma",
    "step_size",
    "regularisation",
    "beta",
    "epsilon",
    "epsilon_steps",
    "target_epsilon",
)
"""Fields in which members of one program may differ."""
WORLDS = ("env", "options")
"""Fields in which they may differ where the environments have one shape."""


def refuse_shapes(specs: Sequence[Plan]) -> None:
    """Members of one program must have the same shapes."""
    shape = program_shape(specs[0].env, specs[0].options)
    for spec in specs[1:]:
        allowed = NUMBERS
        if program_shape(spec.env, spec.options) == shape:
            allowed = (*NUMBERS, *WORLDS)
        for name, (one, other) in differences(specs[0], spec).items():
            if name not in allowed or (name == "trace" and "dqn" in (one, other)):
                raise ValueError(
                    f"`{name}` must be the same for all members of a population; got {one!r} and {other!r}. "
                    "Train them apart."
                )
        for name in (specs[0].trace, spec.trace):
            if specs[0].trace != spec.trace and name not in MARKOV:
                raise ValueError(
                    f"`trace` {name!r} is not Markov, and cannot share a program with others. Train them apart."
                )


def program_spec(spec: Plan) -> ProgramSpec:
    """Of a resolved spec: counts are of each actor there."""
    fill = max(-(-spec.fill // spec.num_actors), spec.window + 1)
    need = "that come before the first update: `fill`, and for each of `num_actors` at least `window` + 1"
    if spec.replay_size // spec.num_actors < fill:
        raise ValueError(f"`replay_size` must hold the {fill * spec.num_actors:,} {need}; got {spec.replay_size}.")
    if spec.num_steps <= fill * spec.num_actors:
        raise ValueError(
            f"`num_steps` must be more than the {fill * spec.num_actors:,} {need}; got {spec.num_steps}."
        )
    most = max(min(spec.num_steps, LONGEST_TICK), DEFAULT_TICK)
    if spec.tick_steps > most:
        raise ValueError(
            f"`tick_steps` must be at most {most:,} in a run of {spec.num_steps:,} steps, made of whole ticks; got "
            f"{spec.tick_steps:,}."
        )
    if spec.num_steps // spec.tick_steps >= MOST_TICKS:
        least = spec.num_steps // MOST_TICKS + 1
        raise ValueError(
            f"`tick_steps` must be at least {least} for {spec.num_steps:,} steps; got {spec.tick_steps}."
        )
    for name, num_steps in (("tick_steps", spec.tick_steps), ("fill", spec.fill)):
        most = TICK * spec.num_actors // 2
        if num_steps >= most:  # checkpoints within a tick are numbered below TICK, two per step of an actor
            raise ValueError(f"`{name}` must be under {most:,} with {spec.num_actors} actors; got {num_steps:,}.")
    return ProgramSpec(
        num_actors=spec.num_actors,
        window=spec.window,
        num_windows=spec.num_windows,
        steps_per_update=spec.steps_per_update,
        capacity=spec.replay_size // spec.num_actors,
        fill=fill,
        reward_clamp=spec.reward_clamp,
        hidden_sizes=spec.hidden_sizes,
        network=spec.network,
        precision=spec.precision,
        switching=_switching(spec) if spec.exploration == "switching" else None,
        learner=LearnerSpec(
            target_policy=spec.target_policy,
            double=spec.double,
            optimiser=spec.optimiser,
            clamp=spec.clamp,
            target_period=spec.target_period,
            max_gradient=spec.max_gradient,
        ),
    )


def _switching(spec: Plan) -> SwitchingEpsilon:
    """App. F in the proportions of the run: a schedule lasts for `epsilon_steps`, five times as long as its turns."""
    duration = max(1, spec.epsilon_steps // spec.num_actors)
    return SwitchingEpsilon(duration=duration, period=max(1, duration // 5))


def settings(specs: Sequence[Plan]) -> Settings:
    """Of resolved specs, with a leading axis of members."""
    same = len({spec.trace for spec in specs}) == 1
    every = [_settings(spec, by_name=same) for spec in specs]
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *every)


def _settings(spec: Plan, *, by_name: bool) -> Settings:
    name = "one_step" if spec.trace == "dqn" else spec.trace
    if not by_name:
        trace = Choice(np.int32(MARKOV.index(name)), np.float32(spec.lambda_))
    else:
        trace = as_trace(name, np.float32(spec.lambda_))
    numbers = (np.float32(value) for value in (spec.gamma, spec.step_size, spec.regularisation))
    hyper = Hyper(*numbers, trace, np.float32(spec.beta))
    exploration = Exploration(np.float32(1.0), np.float32(spec.epsilon), np.float32(spec.epsilon_steps))
    annealing = np.float32(spec.num_steps if spec.anneal else np.inf)
    target_epsilon = np.float32(np.nan if spec.target_epsilon is None else spec.target_epsilon)
    return Settings(hyper, exploration, annealing, target_epsilon)


def num_batch_entries(prog: synchronous.Program, specs: Sequence[Plan]) -> int:
    """Numbers in the observations that the network sees at once, and about as many again of its first layer."""
    spec, program = specs[0], prog.spec
    num_rows = program.updates * program.num_windows * (program.window + 1)
    if not on_host(spec.env):
        num_rows = max(num_rows, spec.evaluation_episodes)
    return 2 * num_rows * math.prod(prog.env.observation.shape)


def evaluation_key(spec: Plan, number: int) -> jax.Array:
    """Of a member's own seed, apart from what it was trained with."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(spec.seed), 1), number)


@contextmanager
def needs_of(spec: Plan) -> Generator[None, None, None]:
    """Around what makes an environment: a package that it does not find is a wrong `env`, with a remedy."""
    try:
        yield
    except ImportError as error:
        raise ValueError(f"`env` {spec.env!r} cannot be made here: {error}") from error


# -- states as named arrays ----------------------------------------------------------------------------------


def arrays_of(state: Any) -> dict[str, np.ndarray]:
    """Every leaf by its path; keys as the numbers behind them."""
    return {name: np.asarray(_plain(leaf)) for name, leaf in _named(state)}


def state_of(template: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """A state of the template's shapes from its arrays."""
    leaves = []
    for name, shape in _named(template):
        is_key = jnp.issubdtype(shape.dtype, jax.dtypes.prng_key)
        expected = jax.eval_shape(_plain, shape)
        found = arrays.get(name)
        if found is None or found.shape != expected.shape or found.dtype != expected.dtype:
            has = "nothing" if found is None else f"{found.dtype}{list(found.shape)}"
            raise ValueError(
                f"the checkpoint has {has} for {name}, where this version needs {expected.dtype}"
                f"{list(expected.shape)}: it was written by another version."
            )
        leaf = jnp.array(found)
        leaves.append(jax.random.wrap_key_data(leaf) if is_key else leaf)
    return jax.tree.unflatten(jax.tree.structure(template), leaves)


def _named(tree: Any) -> list[tuple[str, Any]]:
    return [
        (jax.tree_util.keystr(path).lstrip("."), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]


def _plain(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
