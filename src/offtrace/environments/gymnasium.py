"""Any Gymnasium environment with arrays to see and numbered actions, through the vector API: rows on the host.

    rows = GymnasiumRows("CartPole-v1", num_actors=8, seed=0)
    actor = rows.begin()
    actor, row, ended = rows.advance(actions)      # NumPy, (8, …); otherwise as `rows.advance` in JAX

Both autoreset modes keep the contract of a row. *Next step*: the dummy row after an end is Gymnasium's own. *Same
step*: the row after an end is already the next episode's, so the successor of a truncated step is nowhere in the
rows; that step is masked out. Its observation then is the last of an episode that is one step shorter, and the step
before it bootstraps from there: nothing is wrong, one transition is lost. Steps that terminate need no successor, and
stay.
"""

import inspect
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from offtrace.environments import wrong_options
from offtrace.environments.guard import find, gymnasium, takes
from offtrace.environments.interface import Actor, Array, Ended, Row
from offtrace.environments.spaces import MODES, bounds, checked_actions, is_next_step, spaces
from offtrace.environments.vector import Fault, Vector, vector_maker

LARGEST_REWARD = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class GymnasiumFactory:
    """An environment that is still to be made, with its options: call it for the rows."""

    id: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"gymnasium/{self.id}"

    def __call__(self, num_actors: int, seed: int) -> "GymnasiumRows":
        try:
            return GymnasiumRows(self.id, num_actors, seed, **self.options)
        except TypeError as error:
            if not self.options:
                raise
            spec = find(self.id, allow_import=self.options.get("allow_import", False))
            known = [*takes(spec), "max_episode_steps", *own_options()]
            raise wrong_options(self.name, self.options, known, error) from error


def own_options() -> list[str]:
    """Of `GymnasiumRows`; all others are for the environment."""
    parameters = inspect.signature(GymnasiumRows).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]


class GymnasiumRows:
    """`num_actors` copies of an environment, or a vector environment of yours, as rows.

    `env` is an id, made with `options` (`"module:Name-v0"` imports the module: only with `allow_import`), or a vector
    environment. Actor i is seeded with `seed` + i. `vectorization` is `"sync"`, one after the other here, or
    `"async"`, each in a process of its own; `autoreset` is `"next_step"` or `"same_step"`, and for a vector
    environment what its metadata say. uint8 and bool observations stay what they are; all others become float32.

    What an environment does wrong ends all of them, with an error that names environment, seed, step and action:
    `TimeoutError` if a call takes longer than `timeout` seconds, else `RuntimeError`. No actor gets a row of that
    step. `check_bounds=False` lets pass what lies outside the bounds that the environment declares.

    >>> with GymnasiumRows("CartPole-v1", num_actors=2, seed=0) as rows:
    ...     actor = rows.begin()
    ...     actor, row, ended = rows.advance(np.array([0, 1]))
    >>> row.reset, row.reward, row.observation.shape
    (array([ True,  True]), array([1., 1.], dtype=float32), (2, 4))
    """

    def __init__(
        self,
        env: Any,
        num_actors: int | None = None,
        seed: int = 0,
        *,
        vectorization: str = "sync",
        autoreset: str | None = None,
        timeout: float | None = 60.0,
        check_bounds: bool = True,
        allow_import: bool = False,
        **options: Any,
    ) -> None:
        if not isinstance(seed, int | np.integer) or seed < 0:
            raise ValueError(f"`seed` must be an integer of at least 0; got {seed!r}.")
        if timeout is not None and not timeout > 0:
            raise ValueError(f"`timeout` must be seconds above 0, or None; got {timeout!r}.")
        if autoreset not in (None, *MODES):
            raise ValueError(f"`autoreset` must be one of {', '.join(MODES)}; got {autoreset!r}.")
        self.seed = int(seed)
        self._num_steps = np.zeros(num_actors or 0, np.int64)
        self._actor: Actor | None = None
        if isinstance(env, str):
            self.name = f"gymnasium/{env}"
            if not isinstance(num_actors, int | np.integer) or num_actors < 1:
                raise ValueError(f"`num_actors` must be an integer of at least 1; got {num_actors!r}.")
            spec = find(env, allow_import=allow_import)
            env = vector_maker(spec, int(num_actors), vectorization, MODES[autoreset or "next_step"], options)
        elif not isinstance(env, gymnasium.vector.VectorEnv):
            raise TypeError(f"`env` must be an id or a vector environment; got {type(env).__name__}.")
        else:
            self.name = f"gymnasium/{env.spec.id if env.spec else type(env.unwrapped).__name__}"
            if options:
                raise TypeError(
                    f"options are for an id; `env` is made, so {', '.join(options)} would have no effect."
                )
            if num_actors not in (None, env.num_envs):
                raise ValueError(f"`num_actors` must be that of `env`, {env.num_envs}, or None; got {num_actors}.")
        try:
            self._vector = Vector(env, timeout=timeout)
        except Fault as fault:
            raise self._error(fault) from fault
        try:
            made = self._vector.env
            self.num_actors, self.max_return = int(made.num_envs), None
            self.observation, self.num_actions, self._first_action = spaces(made, self.name)
            self._is_next_step = is_next_step(made, autoreset)
            self._low, self._high = bounds(made.single_observation_space) if check_bounds else (None, None)
        except BaseException:
            self._vector.close()
            raise

    def begin(self) -> Actor:
        """All actors at the start of their first episodes; called again, of the same ones."""
        none = np.zeros(self.num_actors, bool)
        self._num_steps = np.zeros(self.num_actors, np.int64)
        try:
            observations, _ = self._vector.reset(seed=self.seed)
            observation = self._checked(observations, none)
        except Fault as fault:
            raise self._error(fault) from fault
        total, length = np.zeros(self.num_actors, np.float32), np.zeros(self.num_actors, np.int32)
        self._actor = Actor(None, observation, ~none, none, total, length, None)
        return self._actor

    def advance(self, actions: Array) -> tuple[Actor, Row, Ended]:
        """One row of every actor; where `actor.over`, the action is ignored."""
        actor, actions = self._actor, checked_actions(actions, self.num_actors, self.num_actions)
        if actor is None:
            raise RuntimeError("`begin` must come before the first `advance`.")
        over = actor.over
        try:
            self._num_steps += ~over
            observations, rewards, terminated, truncated, _ = self._vector.step(actions + self._first_action)
            rewards = np.where(over, 0, rewards)
            ends = ~over & (np.asarray(terminated, bool) | np.asarray(truncated, bool))
            observation = self._checked(observations, over if self._is_next_step else ends, rewards)
        except Fault as fault:
            raise self._error(fault, actions) from fault
        terminates = ends & np.asarray(terminated, bool)
        mask = ~over if self._is_next_step else ~ends | terminates
        reward = rewards.astype(np.float32)
        row = Row(actor.observation, actor.first, mask, np.where(mask, reward, np.float32(0)), ~terminates)
        total, length = actor.episode_return + reward, actor.episode_length + np.int32(1)
        ended = Ended(ends, np.where(ends, total, np.float32(0)), np.where(ends, length, np.int32(0)))
        fresh = over if self._is_next_step else ends  # `observation` is the first of an episode
        self._actor = Actor(
            state=None,
            observation=observation,
            first=fresh,
            over=ends & ~fresh,
            episode_return=np.where(fresh, np.float32(0), total),
            episode_length=np.where(fresh, np.int32(0), length),
            key=None,
        )
        return self._actor, row, ended

    def close(self) -> None:
        """Ends the environments and their processes; closing twice is fine."""
        self._vector.close()

    def __enter__(self) -> "GymnasiumRows":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _checked(self, observations: Any, fresh: np.ndarray, rewards: np.ndarray | None = None) -> np.ndarray:
        """A copy in our dtype; whatever is wrong with it, or with the rewards, is a fault of the first such actor."""
        values = np.asarray(observations)
        if values.shape != (self.num_actors, *self.observation.shape):
            self._fault(None, "step", f"the observations have the shape {values.shape}")
        with np.errstate(over="ignore"):  # beyond float32 is infinite, and refused
            copy = values.astype(self.observation.dtype)
        wrong, rule = np.zeros(values.shape, bool), ""
        if copy.dtype.kind == "f" and not np.isfinite(copy).all():
            wrong, rule = ~np.isfinite(copy), "not a finite number"
        elif self._low is not None and ((values < self._low).any() or (values > self._high).any()):
            wrong = (values < self._low) | (values > self._high)
            rule = "outside the bounds of its space (`check_bounds=False` lets it pass)"
        if rule:
            actor = int(wrong.reshape(self.num_actors, -1).any(1).argmax())
            call = "reset" if rewards is None or fresh[actor] else "step"
            self._fault(actor, call, f"the observation has {values[actor][wrong[actor]].flat[0]}, which is {rule}")
        if rewards is not None and not (abs(rewards) <= LARGEST_REWARD).all():
            actor = int((~(abs(rewards) <= LARGEST_REWARD)).argmax())
            rule = "more than float32 can hold" if np.isfinite(rewards[actor]) else "not a finite number"
            self._fault(actor, "step", f"the reward is {rewards[actor]}, which is {rule}")
        return copy

    def _fault(self, actor: int | None, call: str, what: str) -> NoReturn:
        self._vector.close()
        raise Fault(actor, call, what)

    def _error(self, fault: Fault, actions: np.ndarray | None = None) -> Exception:
        """What happened, in one line; the traceback of the environment goes along as a note."""
        actor = fault.actor
        who = f"seeds from {self.seed}" if actor is None else f"actor {actor}, seed {self.seed + actor}"
        where = f"in its {fault.call}"
        if fault.call == "step" and actions is not None:
            at = self._num_steps.max() if actor is None else self._num_steps[actor]
            taken = f"actions {actions.tolist()}" if actor is None else f"action {actions[actor]}"
            where = f"at step {at}, {taken}"
        elif actor is not None and self._num_steps.size:
            where += f" after {self._num_steps[actor]} steps"
        text = f"{self.name} ({who}) broke {where}: {fault.what}."
        error = TimeoutError(text) if fault.hung else RuntimeError(text)
        if fault.trace:
            error.add_note(fault.trace)
        return error
