"""Gymnasium's environments, and Atari's, on the CPU, the learner wherever JAX is, the two overlapped.

    learner     … add rows k−1, updates ─────────┐   … add rows k, updates ────
    choice              waits for the updates    └─ a_{k+1} ─┐
    environments  step with a_k ────────┘                    └─ step with a_{k+1} …

The learner's part of an iteration is dispatched first and runs while the environments step, so it learns from rows up
to the iteration before; the order is fixed, and a run is a function of its spec.

Environments cannot be saved. Their actions are: a resumed run makes the environments anew, repeats the actions, and
must see what was seen last, or it is refused.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from offtrace.agent import replay, synchronous
from offtrace.agent.runtimes import arrays_of, evaluation_key, program_spec, settings, state_of
from offtrace.agent.spec import Plan
from offtrace.agent.synchronous import Member, Probe, Tick
from offtrace.environments.interface import Actor, Row


@dataclass
class HostState:
    """What is on the device, and where the environments stand."""

    member: Member
    rows: Any
    actor: Actor
    pending: tuple[Row, np.ndarray, np.ndarray] | None = None
    """Rows that the learner has not seen yet, with a and μ(a): a chunk, time first."""
    actions: list[np.ndarray] = field(default_factory=list)
    """All that were ever taken, to repeat them."""


class Host:
    """One member; the environments are made by `make(num_actors=…, seed=…)`."""

    def __init__(self, make: Callable[..., Any], specs: Sequence[Plan]) -> None:
        if len(specs) != 1:
            raise ValueError(f"`specs` must be one for environments on the host, not {len(specs)}. Train them apart.")
        self.specs = tuple(specs)
        self.spec = specs[0]
        self.program, self.max_return = program_spec(self.spec), None
        self._make = make
        self._open: list[Any] = []
        self._rows = self._made(self.spec.num_actors, self.spec.seed)
        if self._rows.num_actions > 256:
            self.close()
            raise ValueError(
                f"`env` must have at most 256 actions, as the memory keeps a byte of each; {self.spec.env} has "
                f"{self._rows.num_actions}."
            )
        self._prog = synchronous.program(self._rows, self.program)
        self._settings = jax.tree.map(lambda leaf: leaf[0], settings(specs))
        self._key = jax.random.key(self.spec.seed)

    def start(self) -> HostState:
        member = jax.jit(self._init)()
        return HostState(member, self._rows, self._rows.begin())

    def _init(self) -> Member:
        member = synchronous.init_one(self._prog, self._settings, self._key)
        stack = getattr(self._rows, "stack", 1)
        if stack == 1:
            return member
        shape, dtype = self._rows.observation  # of a stack; its rows are single frames, and so is what is kept
        kept = replay.Spec(self.program.capacity, self.program.num_actors, shape[1:], dtype, stack)
        return member._replace(replay=replay.init(kept))

    def advance(self, state: HostState, num_iterations: int, *, learns: bool) -> tuple[HostState, Tick]:
        """What fails in an environment leaves `state` where the last whole iteration left it."""
        progress, ends = [], np.zeros(3)
        for _ in range(num_iterations):
            seen = []
            for turn in range(self.program.rounds):
                chosen = self._choose(state.member, self._settings, state.actor.observation)
                a, mu_a = np.asarray(chosen.a), np.asarray(chosen.mu_a)
                state.member = state.member._replace(key=chosen.key, following=chosen.following)
                if turn == 0 and state.pending is not None:
                    member, news = self._absorb(learns)(state.member, self._settings, *state.pending)
                    state.member, state.pending = member, None
                    progress.append(news)
                state.actor, row, ended = state.rows.advance(a)
                state.actions.append(a.astype(np.uint8))
                seen.append((row, a, mu_a))
                ends += [ended.ended.sum(), ended.episode_return.sum(), ended.episode_length.sum()]
            state.pending = jax.tree.map(lambda *parts: np.stack(parts), *seen)
        return state, _tick(ends, progress if learns else [])

    @functools.cached_property
    def _choose(self) -> Any:
        def choose(params: Any, key: Any, following: Any, num_steps: Any, settings: Any, obs: Any) -> Any:
            learner = synchronous.LearnerState(params, None, None, num_steps)
            member = Member(learner, None, following, self._template.replay, key, num_steps)
            return synchronous.choose(self._prog, member, settings, obs)

        compiled = jax.jit(choose)
        return lambda m, s, obs: compiled(m.learner.params, m.key, m.following, m.num_steps, s, obs)

    @functools.lru_cache  # noqa: B019 (a runtime lives as long as its run)
    def _absorb(self, learns: bool) -> Any:
        def absorb(member: Member, settings: Any, row: Row, a: Any, mu_a: Any) -> Any:
            member = synchronous.remember(self._prog, member, row, a, mu_a)
            return synchronous.learn(self._prog, member, settings) if learns else (member, None)

        return jax.jit(absorb, donate_argnums=0)

    def probe(self, state: HostState, number: int) -> Probe:
        found = self._probe(state.member, self._settings, key=jax.random.key(number))
        return jax.tree.map(lambda leaf: np.asarray(leaf)[None], found)

    @functools.cached_property
    def _probe(self) -> Any:
        return jax.jit(functools.partial(synchronous.probe_one, self._prog))

    def evaluate(self, state: HostState, number: int, num_episodes: int) -> tuple[np.ndarray, np.ndarray]:
        """Each in an environment of its own, so that short episodes do not count more than long ones."""
        key = evaluation_key(self.spec, number)
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        rows = self._made(num_episodes, int(rng.integers(2**31 - num_episodes)))
        try:
            actor = rows.begin()
            returns, done = np.zeros(num_episodes), np.zeros(num_episodes, bool)
            for _ in range(self.spec.evaluation_steps):
                a = np.asarray(self._greedy(state.member.learner.params, actor.observation))
                drawn = rng.random(num_episodes) < self.spec.evaluation_epsilon
                a = np.where(drawn, rng.integers(rows.num_actions, size=num_episodes), a)
                actor, row, ended = rows.advance(a)
                returns += np.where(done, 0, row.reward)
                done |= ended.ended
                if done.all():
                    break
        finally:
            rows.close()
            self._open.remove(rows)
        return returns[None], done[None]

    @functools.cached_property
    def _greedy(self) -> Any:
        return jax.jit(lambda params, obs: self._prog.network(params, obs).argmax(-1))

    def counts(self, state: HostState) -> tuple[int, int]:
        """Steps that the learner has not seen yet count, too."""
        waiting = 0 if state.pending is None else state.pending[1].size
        return int(state.member.num_steps) + waiting, int(state.member.learner.num_updates)

    def arrays(self, state: HostState) -> dict[str, np.ndarray]:
        own = {f"member.{name}": value for name, value in arrays_of(state.member).items()}
        waiting = {} if state.pending is None else arrays_of(state.pending)
        own |= {f"pending.{name}": value for name, value in waiting.items()}
        taken = np.stack(state.actions) if state.actions else np.zeros((0, self.spec.num_actors), np.uint8)
        return own | {"actions": taken, "observation": np.asarray(state.actor.observation)}

    def restored(self, arrays: Mapping[str, np.ndarray]) -> HostState:
        member = state_of(self._template, _under("member.", arrays))
        actor = self._rows.begin()
        taken = list(arrays["actions"])
        for a in taken:
            actor, _, _ = self._rows.advance(a.astype(np.int64))
        if not np.array_equal(actor.observation, arrays["observation"], equal_nan=True):
            raise ValueError(
                f"{self.spec.env} is not where it was after the same {len(taken):,} actions of each actor, so it is "
                "no function of its seed, and this run cannot be resumed exactly."
            )
        waiting = _under("pending.", arrays)
        pending = None
        if waiting:
            row, a, mu_a = Row(*(waiting[f"[0].{name}"] for name in Row._fields)), waiting["[1]"], waiting["[2]"]
            pending = (row, a, mu_a)
        return HostState(member, self._rows, actor, pending, taken)

    @functools.cached_property
    def _template(self) -> Member:
        return jax.eval_shape(self._init)

    def _made(self, num_actors: int, seed: int) -> Any:
        rows = self._make(num_actors=num_actors, seed=seed)
        self._open.append(rows)
        return rows

    def close(self) -> None:
        """Ends the environments."""
        for rows in self._open:
            rows.close()


def _under(prefix: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}


def _tick(ends: np.ndarray, progress: list[Any]) -> Tick:
    """With an axis of one member."""
    num_episodes, total_return, total_length = ends
    known = [news for news in progress if news is not None]
    loss, gradient, refused = (
        np.concatenate([np.asarray(getattr(news, name)) for news in known] or [np.array([np.nan])])
        for name in ("loss", "gradient", "refused")
    )
    values = int(num_episodes), total_return, int(total_length), loss.mean(), gradient.mean()
    num_refused = int(refused.sum()) if known else 0
    return Tick(*(np.asarray([value]) for value in (*values, num_refused)))
