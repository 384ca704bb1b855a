"""The runtime of pure environments: everything is one compiled program, for a whole population."""

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from offtrace.agent import memory, population
from offtrace.agent.population import Iterations, TickSummary
from offtrace.agent.program import Member, Probe, make_program
from offtrace.agent.settings import check_shapes, evaluation_key, num_batch_entries, program_spec, settings
from offtrace.agent.spec import Plan
from offtrace.agent.states import from_arrays, members_of, to_arrays, under
from offtrace.environments import Environment, program_shape, with_options

PIECE_SECONDS = 1.0
"""Approximate seconds of a tick between two calls of `stop`."""
EVALUATION_PIECE = 256
"""Steps of an evaluation between two calls of `stop`."""

# A `Program` is compared by its values, so a second run of the same kind finds these compiled.
_init = jax.jit(population.init, static_argnums=0)
_iterate = jax.jit(
    population.iterate, static_argnums=0, static_argnames=("block", "learns"), donate_argnames=("members", "table")
)
_probe = jax.jit(population.probe, static_argnums=0)
_exact_returns = jax.jit(population.exact_returns, static_argnums=0, static_argnames="epsilon")
_start_episodes = jax.jit(population.start_episodes, static_argnums=0, static_argnames="num_episodes")
_play_until = jax.jit(population.play_until, static_argnums=0, static_argnames="epsilon")


@dataclass
class Population:
    """The members, and the table of their current tick."""

    members: Member
    table: Iterations | None = None
    """None between ticks."""
    num_done: int = 0
    """Finished iterations of the tick."""


class Synchronous:
    """A population whose members differ in trace, λ, seed and other numbers, but not in shapes.

    An MDP is numbers, too: members may have different ones of the same shape. With several devices
    and a number of members that divides evenly, each device runs its share.
    """

    def __init__(self, env: Environment, specs: Sequence[Plan]) -> None:
        check_shapes(specs)
        first = specs[0]
        self.specs = tuple(specs)
        self.program = program_spec(first)
        self.max_return = env.max_return
        self.notes: tuple[str, ...] = ()
        self._settings = settings(specs)
        if first.env.startswith("mdp/"):
            worlds = [with_options(spec.env, spec.options).world for spec in specs]
            self._settings = self._settings._replace(world=jax.tree.map(lambda *leaves: jnp.stack(leaves), *worlds))
            env = program_shape(first.env, first.options)
        self._prog = make_program(env, self.program)
        self._keys = jnp.stack([jax.random.key(spec.seed) for spec in specs])
        self._template = jax.eval_shape(lambda: population.init(self._prog, self._settings, self._keys))
        memory.check_fits(self._template, num_batch_entries(self._prog, first), self.specs)
        self._mesh = None
        num_devices = math.gcd(len(jax.devices()), len(specs))
        if num_devices > 1:
            self._mesh = Mesh(np.array(jax.devices()[:num_devices]), ("members",))
        self._piece_length = {True: 0, False: 0}
        """Blocks per piece of a tick, with learning and without; 0 before the first piece."""

    def start(self) -> Population:
        return Population(_init(self._prog, self._settings, self._keys))

    # -- a tick ----------------------------------------------------------------------------------------------

    def advance(
        self, state: Population, num_iterations: int, *, learns: bool, stop: Callable[[], bool] = lambda: False
    ) -> tuple[Population, TickSummary | None]:
        """Run the rest of a tick, in pieces of about a second with a call of `stop` between them.

            tick     │ b b │ b b b b │ b b b b │ b b │     b: a block of iterations, without a look at the clock
            pieces      1       2         3       4

        The length of the pieces does not change a number: one program runs them all.
        """
        if state.table is None or len(state.table.loss[0]) < num_iterations:
            state.table = self._table(state, num_iterations, learns)
        block = block_length(math.gcd(num_iterations, state.num_done))
        if not self._piece_length[learns]:
            if block < num_iterations:
                # Runs no iteration and only compiles, so that compiling does not count as time of the first piece.
                self._run(state, state.num_done, block, learns)
            self._piece_length[learns] = 1
        last_call = time.monotonic()
        while state.num_done < num_iterations:
            if time.monotonic() - last_call > PIECE_SECONDS:
                if stop():
                    return state, None
                last_call = time.monotonic()
            self._run_piece(state, num_iterations, block, learns)
        return state, population.summarize(state.table)

    def _run_piece(self, state: Population, num_iterations: int, block: int, learns: bool) -> None:
        """Run one piece of a tick, and adapt the length of the next one to the time that it took."""
        length = min(self._piece_length[learns], (num_iterations - state.num_done) // block)
        started = time.monotonic()
        self._run(state, state.num_done + length * block, block, learns)
        seconds = time.monotonic() - started
        if length < self._piece_length[learns]:  # the end of a tick, shorter than a piece
            return
        if seconds < PIECE_SECONDS / 2:
            self._piece_length[learns] = 2 * length
        elif seconds > 2 * PIECE_SECONDS:
            self._piece_length[learns] = max(1, length // 2)

    def _table(self, state: Population, num_iterations: int, learns: bool) -> Iterations:
        """Return a table for the tick, with the rows of the iterations that are done."""
        table = population.empty_table(self._prog, len(self.specs), num_iterations, learns=learns)
        if state.table is not None:
            for column, done in zip(table, state.table, strict=True):
                column[:, : state.num_done] = done
        return table

    def _run(self, state: Population, until: int, block: int, learns: bool) -> None:
        """Run the iterations up to `until` and wait for them."""
        given = {"table": state.table, "start": np.int32(state.num_done), "until": np.int32(until)}
        run = functools.partial(_iterate, self._prog, block=block, learns=learns)
        if self._mesh is not None:
            run = self._iterate_on_devices(block, learns)
        state.members, state.table = run(members=state.members, settings=self._settings, **given)
        state.num_done = until
        jax.block_until_ready(state.table)

    @functools.lru_cache  # noqa: B019 (a runtime lives as long as its run)
    def _iterate_on_devices(self, block: int, learns: bool) -> Any:
        """Return `iterate`, compiled to run on several devices with a share of the members on each."""
        own = PartitionSpec("members")
        shared = PartitionSpec()
        state = jax.tree.map(lambda is_clock: shared if is_clock else own, population.clocks(self._template))
        run = jax.shard_map(
            functools.partial(population.iterate, self._prog, block=block, learns=learns),
            mesh=self._mesh,
            in_specs=(state, own, own, shared, shared),
            out_specs=(state, own),
            check_vma=False,
        )
        return jax.jit(
            lambda *, members, settings, table, start, until: run(members, settings, table, start, until),
            donate_argnames=("members", "table"),
        )

    def end_tick(self, state: Population) -> None:
        state.table = None
        state.num_done = 0

    def num_done(self, state: Population) -> int:
        return state.num_done

    def counts(self, state: Population) -> tuple[int, int]:
        return int(state.members.num_steps), int(state.members.learner.num_updates)

    # -- measuring -------------------------------------------------------------------------------------------

    def probe(self, state: Population, number: int) -> Probe:
        return jax.tree.map(np.asarray, _probe(self._prog, state.members, self._settings, jax.random.key(number)))

    def evaluate(
        self, state: Population, number: int, num_episodes: int, *, stop: Callable[[], bool] = lambda: False
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Play evaluation episodes; for an MDP, return the exact expected return as the only episode."""
        params = state.members.learner.params
        epsilon = self.specs[0].evaluation_epsilon
        max_steps = self.specs[0].evaluation_steps
        if self._settings.world is not None:
            returns, ended = _exact_returns(self._prog, params, self._settings, epsilon=epsilon)
            return np.asarray(returns), np.asarray(ended)
        keys = jnp.stack([evaluation_key(spec, number) for spec in self.specs])
        episodes = _start_episodes(self._prog, self._settings, keys, num_episodes=num_episodes)
        for done in range(0, max_steps, EVALUATION_PIECE):
            if stop():
                return None
            until = min(done + EVALUATION_PIECE, max_steps)
            episodes = _play_until(self._prog, params, self._settings, episodes, until, epsilon=epsilon)
            if np.asarray(episodes.done).all():
                break
        return np.asarray(episodes.returns), np.asarray(episodes.done)

    # -- saving ----------------------------------------------------------------------------------------------

    def parameters(self, state: Population) -> list[dict[str, np.ndarray]]:
        return members_of(to_arrays(state.members.learner.params), len(self.specs))

    def arrays(self, state: Population) -> dict[str, np.ndarray]:
        found = to_arrays(state.members)
        if state.num_done:
            rows = jax.tree.map(lambda column: np.asarray(column)[:, : state.num_done], state.table)
            found |= to_arrays(rows, prefix="tick.")
        return found

    def restore(
        self,
        arrays: Mapping[str, np.ndarray],
        *,
        new_episodes: bool = False,
        stop: Callable[[], bool] = lambda: False,
    ) -> Population | None:
        state = Population(from_arrays(self._template, arrays))
        rows = under("tick.", arrays)
        if rows:
            loss = rows.get("loss", np.zeros(0))
            if loss.ndim == 3:  # of any other shape, it is refused below
                state.num_done = loss.shape[1]
            learns = bool(state.num_done and loss.size)
            expected = population.empty_table(self._prog, len(self.specs), state.num_done, learns=learns)
            state.table = from_arrays(expected, rows)
        return state

    def close(self) -> None:
        """Do nothing: the program holds nothing outside of itself."""


def block_length(num_iterations: int) -> int:
    """Return how many iterations run as one block: the largest divisor up to a limit.

    The length costs nothing on a CPU; on a GPU short blocks take 7 % longer.
    """
    most = 8 if jax.default_backend() == "cpu" else 256
    return max(length for length in range(1, most + 1) if num_iterations % length == 0)
