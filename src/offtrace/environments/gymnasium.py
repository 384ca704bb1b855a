"""Rows from Gymnasium environments. Observations that are not arrays, and several actions at once, are encoded.

    rows = GymnasiumRows("CartPole-v1", num_actors=8, seed=0)
    actor = rows.begin()
    actor, row, ended = rows.advance(actions)      # NumPy, (8, …); otherwise as `rows.advance` in JAX

Both autoreset modes give valid rows. With *next-step* autoreset the dummy row after an end is
Gymnasium's own. With *same-step* autoreset the row after an end already belongs to the next
episode, so the successor of a truncated step is not in the rows, and that step is masked out:

    step          0      1      2 (truncated)   0
    observation   x_0    x_1    x_2             y_0
    mask          True   True   False           True      step 1 bootstraps from x_2; the transition of step 2 is lost

A step that terminates needs no successor, and is kept.
"""

import inspect
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from offtrace.environments import wrong_options
from offtrace.environments.checks import checked_whole
from offtrace.environments.encoding import encoded
from offtrace.environments.finding import find
from offtrace.environments.guard import accepted_options, gymnasium
from offtrace.environments.interface import Actor, Array, Ended, Row
from offtrace.environments.spaces import MODES, bounds, checked_actions, is_next_step, spaces
from offtrace.environments.vector import Fault, Vector, vector_maker

LARGEST_REWARD = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class GymnasiumFactory:
    """Makes rows of one environment, with its options, when called."""

    id: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"gymnasium/{self.id}"

    def __call__(self, num_actors: int, seed: int) -> "GymnasiumRows":
        try:
            return GymnasiumRows(self.id, num_actors, seed, **self.options)
        except TypeError as error:
            if not self.options and "required" not in str(error):
                raise
            known = [*accepted_options(find(self.id)), "max_episode_steps", *own_options()]
            raise wrong_options(self.name, self.options, known, error) from error


def own_options() -> list[str]:
    """Return the options of `GymnasiumRows`; all others are for the environment."""
    parameters = inspect.signature(GymnasiumRows).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]


class GymnasiumRows:
    """Rows of `num_actors` copies of an environment, or of your own vector environment.

    `env` is a name, made with `options`, or a vector environment. A name is an id, `module:Name-v0`
    or `module:MyEnv`; the last two import the module. Actor i is seeded with `seed` + i; `seed` may
    also be an array with one seed per actor.
    `vectorization` is `"sync"` (one after the other in this process) or `"async"` (each in its own
    process). `autoreset` is `"next_step"` or `"same_step"`; for a vector environment it defaults to
    the mode in its metadata. uint8 and bool observations keep their dtype; all others become
    float32. Discrete, Dict and other observations, and MultiDiscrete actions, are encoded as in
    `encoding`; `notes` says how.

    A fault in one environment closes all of them, with an error that names environment, seed, step
    and action: `TimeoutError` if a call takes longer than `timeout` seconds, else `RuntimeError`.
    No actor gets a row of that step. With `timeout=math.inf` there is no limit, and environments in
    this process need no second thread. `check_bounds=False` accepts observations outside the
    declared bounds.

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
        seed: int | np.ndarray = 0,
        *,
        vectorization: str = "sync",
        autoreset: str | None = None,
        timeout: float | None = 60.0,
        check_bounds: bool = True,
        **options: Any,
    ) -> None:
        if timeout is not None and not timeout > 0:
            raise ValueError(f"`timeout` must be a positive number of seconds, or None; got {timeout!r}.")
        if autoreset not in (None, *MODES):
            raise ValueError(f"`autoreset` must be one of {', '.join(MODES)}; got {autoreset!r}.")
        self.seed = seed
        if not isinstance(seed, np.ndarray):
            self.seed = checked_whole("seed", seed, least=0)
        self._num_steps = np.zeros(0, np.int64)
        self._actor: Actor | None = None
        self._sent: np.ndarray | None = None
        if isinstance(env, str):
            self.name = f"gymnasium/{env}"
            copies = checked_whole("num_actors", num_actors)
            self._num_steps = np.zeros(copies, np.int64)
            spec = find(env)
            env = vector_maker(spec, self.name, copies, vectorization, MODES[autoreset or "next_step"], options)
        else:
            _check_vector(env, num_actors, options)
            self.name = _name_of(env)
        try:
            self._vector = Vector(env, timeout=timeout)
        except Fault as fault:
            raise self._error(fault) from fault
        try:
            made = self._vector.env
            self.num_actors = int(made.num_envs)
            self.max_return = None
            self.notes: tuple[str, ...] = ()
            self.raw_spaces = (made.single_observation_space, made.single_action_space)
            if callable(env):  # made here, so it has a guard
                self.notes = made.get_attr("notes")[0]
                self.raw_spaces = made.get_attr("raw_spaces")[0]
            self.observation, self.num_actions, self.first_action = spaces(made, self.name)
            self._is_next_step = is_next_step(made, autoreset)
            self._low, self._high = None, None
            if check_bounds:
                self._low, self._high = bounds(made.single_observation_space)
        except BaseException:
            self._vector.close()
            raise

    def begin(self) -> Actor:
        """Return all actors at the start of their first episodes. A second call starts the same episodes again."""
        none = np.zeros(self.num_actors, bool)
        self._num_steps = np.zeros(self.num_actors, np.int64)
        try:
            observations, _ = self._vector.reset(seed=self._reset_seed())
            observation = self._checked(observations, none)
        except Fault as fault:
            raise self._error(fault) from fault
        self._actor = Actor(
            state=None,
            observation=observation,
            first=~none,
            over=none,
            episode_return=np.zeros(self.num_actors, np.float32),
            episode_length=np.zeros(self.num_actors, np.int32),
            key=None,
        )
        return self._actor

    def _reset_seed(self) -> Any:
        """Return the seed, or the seeds, in the form that the vector environment takes."""
        return self.seed.tolist() if isinstance(self.seed, np.ndarray) else self.seed

    def advance(self, actions: Array) -> tuple[Actor, Row, Ended]:
        """Return one row of every actor. The action is ignored where `actor.over`."""
        self.send(actions)
        return self.receive()

    def send(self, actions: Array) -> None:
        """Start a step. ALE's threads work on it while the caller does something else."""
        actions = checked_actions(actions, self.num_actors, self.num_actions)
        if self._actor is None:
            raise RuntimeError("`begin` must be called before the first step.")
        self._sent = actions
        try:
            self._vector.send(actions + self.first_action)
        except Fault as fault:
            raise self._error(fault, actions) from fault

    def receive(self) -> tuple[Actor, Row, Ended]:
        """Return one row of every actor, from the step that `send` started."""
        actor = self._actor
        actions = self._sent
        if actor is None or actions is None:
            raise RuntimeError("`send` must be called before `receive`.")
        over = actor.over
        try:
            self._num_steps += ~over
            observations, rewards, terminated, truncated, _ = self._vector.receive()
            rewards = np.where(over, 0, rewards)
            ends = ~over & (np.asarray(terminated, bool) | np.asarray(truncated, bool))
            observation = self._checked(observations, over if self._is_next_step else ends, rewards)
        except Fault as fault:
            raise self._error(fault, actions) from fault
        terminates = ends & np.asarray(terminated, bool)
        mask = ~over if self._is_next_step else ~ends | terminates
        reward = rewards.astype(np.float32)
        row = Row(actor.observation, actor.first, mask, np.where(mask, reward, np.float32(0)), ~terminates)
        total = actor.episode_return + reward
        length = actor.episode_length + np.int32(1)
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
        """Close the environments and end their processes. Closing twice is allowed."""
        self._vector.close()

    def __enter__(self) -> "GymnasiumRows":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _checked(self, observations: Any, fresh: np.ndarray, rewards: np.ndarray | None = None) -> np.ndarray:
        """Return a copy in our dtype; raise a fault of the first actor with a wrong observation or reward."""
        values = np.asarray(observations)
        if values.shape != (self.num_actors, *self.observation.shape):
            self._fault(None, "step", f"the observations have the shape {values.shape}")
        with np.errstate(over="ignore"):  # values beyond float32 become infinite, and are refused below
            copy = values.astype(self.observation.dtype)
        wrong = np.zeros(0, bool)
        rule = ""
        if copy.dtype.kind == "f" and not np.isfinite(copy).all():
            wrong = ~np.isfinite(copy)
            rule = "not a finite number"
        elif self._low is not None and ((values < self._low).any() or (values > self._high).any()):
            wrong = (values < self._low) | (values > self._high)
            rule = "outside the bounds of its space (`check_bounds=False` accepts it)"
        if rule:
            actor = int(wrong.reshape(self.num_actors, -1).any(1).argmax())
            call = "reset" if rewards is None or fresh[actor] else "step"
            self._fault(actor, call, f"the observation has {values[actor][wrong[actor]].flat[0]}, which is {rule}")
        if rewards is not None and not (abs(rewards) <= LARGEST_REWARD).all():
            actor = int((~(abs(rewards) <= LARGEST_REWARD)).argmax())
            rule = "larger than float32 can hold" if np.isfinite(rewards[actor]) else "not a finite number"
            self._fault(actor, "step", f"the reward is {rewards[actor]}, which is {rule}")
        return copy

    def _fault(self, actor: int | None, call: str, what: str) -> NoReturn:
        self._vector.close()
        raise Fault(actor, call, what)

    def _error(self, fault: Fault, actions: np.ndarray | None = None) -> Exception:
        """Return an error of one line, with the traceback of the environment as a note."""
        actor = fault.actor
        stepped = fault.call == "step" and actions is not None
        where = f"in its {fault.call}"
        if actor is None:
            who = f"seeds from {self._seed_of(0)}"
            if stepped:
                where = f"at step {self._num_steps.max()}, actions {actions.tolist()}"
        else:
            who = f"actor {actor}, seed {self._seed_of(actor)}"
            if stepped:
                where = f"at step {self._num_steps[actor]}, action {actions[actor]}"
            elif self._num_steps.size:
                where += f" after {self._num_steps[actor]} steps"
        text = f"{self.name} ({who}) failed {where}: {fault.what}."
        error = TimeoutError(text) if fault.hung else RuntimeError(text)
        if fault.trace:
            error.add_note(fault.trace)
        return error

    def _seed_of(self, actor: int) -> int:
        if isinstance(self.seed, np.ndarray):
            return int(self.seed[actor])
        return self.seed + actor


@contextmanager
def borrowed_rows(env: Any, seed: int) -> Generator[GymnasiumRows]:
    """Yield rows of an environment that the user has made: one, or a vector. It stays open."""
    if isinstance(env, gymnasium.vector.VectorEnv):
        yield GymnasiumRows(env, seed=seed)
        return
    if not isinstance(env, gymnasium.Env):
        raise ValueError(
            "`env` must be the name of an environment, or a Gymnasium environment or vector environment; got "
            f"{type(env).__name__}."
        )
    inner = encoded(env, _name_of(env))
    vector = gymnasium.vector.SyncVectorEnv([lambda: inner], autoreset_mode=MODES["next_step"])
    try:
        rows = GymnasiumRows(vector, seed=seed)
        rows.name = _name_of(env)
        yield rows
    finally:
        vector.closed = True  # otherwise it closes the user's environment when it is collected


def _name_of(env: Any) -> str:
    """Return the name of an environment that was made by the user: its id, or else its class."""
    return f"gymnasium/{env.spec.id if env.spec else type(env.unwrapped).__name__}"


def _check_vector(env: Any, num_actors: int | None, options: dict[str, Any]) -> None:
    if not isinstance(env, gymnasium.vector.VectorEnv):
        raise TypeError(f"`env` must be an id or a vector environment; got {type(env).__name__}.")
    if options:
        raise TypeError(
            f"options require an id; `env` is an environment already, so {', '.join(options)} would have no effect."
        )
    if num_actors not in (None, env.num_envs):
        raise ValueError(f"`num_actors` must be that of `env`, {env.num_envs}, or None; got {num_actors}.")
