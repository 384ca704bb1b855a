"""A trained agent: its values, its actions, and what it earns in an environment."""

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from offtrace.agent import checkpoints
from offtrace.agent.consent import check_saved_env
from offtrace.agent.network import make_network
from offtrace.agent.playing import Evaluation, play, rows_for, shown_name
from offtrace.agent.runs import Result, read_record, read_specs
from offtrace.agent.selection import select, the_only
from offtrace.agent.settings import explain_missing_package
from offtrace.agent.spec import Plan
from offtrace.agent.states import from_arrays, under
from offtrace.environments import Space, on_host, with_options
from offtrace.imports import import_module


class Spaces(NamedTuple):
    """What a policy reads and chooses."""

    observation: Space
    num_actions: int
    raw: tuple[Any, Any] | None = None
    """Gymnasium's spaces of observations and actions before they are encoded; None for other environments."""


@dataclass(frozen=True)
class Policy:
    """A trained agent, from `ot.load_policy("runs/…")` or from the `policy` of a result.

    action = policy.act(observation)
    print(policy.evaluate(episodes=100))
    values = policy.q(observations)  # (N, A)
    """

    spec: Plan
    params: Any
    network: Any
    num_steps: int
    """Environment steps that the network was trained for."""
    spaces: Spaces

    def __repr__(self) -> str:
        return f"Policy({', '.join(self.spec.title.split('  '))}, {self.num_steps:,} steps)"

    @property
    def env(self) -> str:
        """Name of the environment that it was trained on."""
        return self.spec.env

    @property
    def options(self) -> dict[str, Any]:
        """Options of that environment."""
        return dict(self.spec.options)

    def q(self, observations: np.ndarray) -> np.ndarray:
        """Return Q(x, ·) for observations (N, *shape): (N, A)."""
        return np.asarray(self._values(self.params, observations))

    def act(self, observation: Any, *, epsilon: float = 0.0, seed: int | np.random.Generator | None = None) -> Any:
        """Return the action for an observation, or the actions (N,) for observations (N, *shape).

        Observations are as the environment returns them. The action is the first greedy one, or
        with probability `epsilon` a random one, drawn with `seed`. In a loop pass a generator,
        `rng = np.random.default_rng(0)`: the same number would give the same draw in every step.
        """
        _check_epsilon(epsilon)
        observations, is_one = self._batch(observation)
        actions = self._actions(observations, epsilon, np.random.default_rng(seed))
        if self.spaces.raw is not None:
            from offtrace.environments.raw import raw_actions  # loads Gymnasium

            actions = raw_actions(self.spaces.raw[1], actions)
        if not is_one:
            return actions
        return int(actions[0]) if isinstance(actions[0], np.integer) else actions[0]

    def probabilities(self, observations: Any, *, epsilon: float = 0.0) -> np.ndarray:
        """Return the probability of every action, (A,), or (N, A) for observations (N, *shape).

        The first greedy action has 1 − ε + ε/A, every other one ε/A, as `act` draws them. Actions count from 0.
        """
        _check_epsilon(epsilon)
        batch, is_one = self._batch(observations)
        greedy = self._actions(batch, 0.0, np.random.default_rng(0))
        found = np.full((len(greedy), self.spaces.num_actions), epsilon / self.spaces.num_actions)
        found[np.arange(len(greedy)), greedy] += 1 - epsilon
        return found[0] if is_one else found

    def evaluate(
        self,
        env: Any = None,
        episodes: int = 100,
        *,
        epsilon: float = 0.0,
        seed: int = 0,
        max_steps: int = 10_000,
        options: dict[str, Any] | None = None,
    ) -> Evaluation:
        """Play episodes and return their returns and lengths: `print(policy.evaluate())`.

        `env` is by default the environment that the policy was trained on. It may be the name of
        another one, with its `options`, or a Gymnasium environment or vector environment of yours,
        which stays open. Observations and number of actions must be those of the policy.

        Each environment plays one episode after a reset, then the next one, so that short episodes
        do not count more than long ones. Episodes are cut off after `max_steps`.
        """
        _check_epsilon(epsilon)
        if env is None and options is None:
            options = self.options
        rng = np.random.default_rng(seed)
        with rows_for(self.env if env is None else env, options, episodes, seed) as rows:
            self._check_fits(rows)
            return play(rows, lambda obs: self._actions(obs, epsilon, rng), episodes, seed, max_steps)

    def _actions(self, observations: np.ndarray, epsilon: float, rng: np.random.Generator) -> np.ndarray:
        """Return actions (N,), counted from 0."""
        if not len(observations):
            return np.zeros(0, np.int64)
        q = self.q(observations)
        if not np.isfinite(q).all():
            raise ValueError("the policy has values that are not finite numbers. The agent may have diverged.")
        greedy = q.argmax(-1)
        if epsilon == 0:
            return greedy
        explores = rng.random(len(greedy)) < epsilon
        return np.where(explores, rng.integers(self.spaces.num_actions, size=len(greedy)), greedy)

    def _batch(self, observation: Any) -> tuple[np.ndarray, bool]:
        """Return observations (N, *shape) in the network's dtype, and whether a single one was given."""
        shape, dtype = self.spaces.observation
        if self.spaces.raw is not None:
            from offtrace.environments.raw import encoded_observations

            found = encoded_observations(self.spaces.raw[0], observation)
            if found is not None:
                return found
        try:
            array = np.asarray(observation)
        except ValueError as error:  # nested lists of different lengths
            raise self._wrong_observation("something without a shape") from error
        if array.shape != shape and array.shape[1:] != shape:
            raise self._wrong_observation(f"shape {array.shape}")
        if array.dtype.kind not in "biuf" or (dtype.kind != "f" and array.dtype.kind == "f"):
            raise self._wrong_observation(f"{array.dtype}")
        is_one = array.shape == shape
        return array.reshape(-1, *shape).astype(dtype), is_one

    def _wrong_observation(self, got: str) -> ValueError:
        shape, dtype = self.spaces.observation
        several = ", ".join(["N", *map(str, shape)])
        return ValueError(
            f"`observation` must be {dtype} of shape {shape}, or ({several}) for several, as in "
            f"{shown_name(self.env)}; got {got}."
        )

    def _check_fits(self, rows: Any) -> None:
        name = shown_name(rows.name)
        trained_on = f"as in {shown_name(self.env)}, on which the policy was trained"
        shape, dtype = self.spaces.observation
        if (tuple(rows.observation.shape), rows.observation.dtype) != (shape, dtype):
            given = f"{rows.observation.dtype} of shape {tuple(rows.observation.shape)}"
            raise ValueError(
                f"`env` must have observations {dtype} of shape {shape}, {trained_on}; {name} has {given}."
            )
        if rows.num_actions != self.spaces.num_actions:
            raise ValueError(
                f"`env` must have {self.spaces.num_actions} actions, {trained_on}; {name} has {rows.num_actions}."
            )

    @functools.cached_property
    def _values(self) -> Callable[[Any, Any], jax.Array]:
        def values(params: Any, obs: Any) -> jax.Array:
            params = jax.tree.map(lambda leaf: leaf.astype(self.spec.precision), params)
            return eqx.combine(params, self.network)(jnp.asarray(obs)).astype(jnp.float32)

        return jax.jit(values)


def _check_epsilon(epsilon: float) -> None:
    if not 0 <= epsilon <= 1:
        raise ValueError(f"`epsilon` must be in [0, 1]; got {epsilon!r}.")


# -- loading -------------------------------------------------------------------------------------------------


def load_policy(
    run: str | Path,
    *,
    member: int | None = None,
    allow_import: Collection[str] = (),
    warn: Callable[[str], None] | None = None,
    **fields: Any,
) -> Policy:
    """Load the policy of a run from its newest intact checkpoint.

    In a population, `member` selects one by its number, or `fields` of the spec do:
    `trace="retrace", seed=3`.

    An environment `module:Name-v0` or `module:MyEnv` imports that module, which runs its code. This
    needs `allow_import=["module"]`; the files of the run cannot allow it. Modules that you allow
    are imported also if the run does not name them, as they may register its environment.
    """
    path = Path(run)
    specs = read_specs(path)  # raises unless the folder holds a run
    number = the_only(select(specs, fields, member, where=str(path)), specs, where=str(path))
    return _load_members(path, [number], allow_import, warn)[0]


def load_policies(
    run: str | Path,
    *,
    allow_import: Collection[str] = (),
    warn: Callable[[str], None] | None = None,
    **fields: Any,
) -> list[Policy]:
    """Load the policies of a population's members in their order: all, or those with these `fields` of the spec."""
    path = Path(run)
    return _load_members(path, select(read_specs(path), fields, where=str(path)), allow_import, warn)


def _load_members(
    path: Path, numbers: Sequence[int], allow_import: Collection[str], warn: Callable[[str], None] | None
) -> list[Policy]:
    try:
        found = checkpoints.load(path, warn=warn)
    except FileNotFoundError:
        raise ValueError(f"{str(path)!r} has no checkpoint yet. Train it for a while first.") from None
    saved = read_record(found)
    policies = []
    where = f"the run {str(path)!r}"
    for i in numbers:
        spec = saved.specs[i]
        allow(spec, allow_import, where=where)
        parameters = _parameters(found.arrays, spec, i, len(saved.specs))
        policies.append(make_policy(spec, parameters, saved.history[-1][i].num_steps))
    return policies


def allow(spec: Plan, allow_import: Collection[str], *, where: str) -> None:
    """Raise if a spec from a file names a module that the user did not allow; import those that are allowed."""
    check_saved_env(spec, allow_import, where=where)
    for module in allow_import:
        import_module(module)


def policy_of(result: Result) -> Policy:
    """Return the policy of a result."""
    parameters = result.parameters
    if parameters is None:
        if result.folder is None:
            raise ValueError("the run was stopped, so its result has no `policy`. Give it an `output` to resume it.")
        parameters = saved_parameters(result.folder, result.spec)
    return make_policy(result.spec, parameters, result.num_steps)


def saved_parameters(run: Path, spec: Plan) -> dict[str, np.ndarray]:
    """Return the parameters of the member with this spec in the newest checkpoint of a run."""
    found = checkpoints.load(run)
    specs = read_record(found).specs
    return _parameters(found.arrays, spec, specs.index(spec), len(specs))


def make_policy(spec: Plan, parameters: Mapping[str, np.ndarray], num_steps: int) -> Policy:
    """Return a policy from the parameters of its network. A module that `spec` names must be allowed already."""
    with explain_missing_package(spec):
        spaces = _spaces(spec)
    shape, dtype = spaces.observation
    net = make_network(
        shape,
        dtype,
        spaces.num_actions,
        jax.random.key(0),
        spec.network,
        hidden_sizes=spec.hidden_sizes,
        observation_scale=spec.observation_scale,
    )
    template, skeleton = eqx.partition(net, eqx.is_array)
    return Policy(spec, from_arrays(template, parameters), skeleton, num_steps, spaces)


def _parameters(arrays: dict[str, np.ndarray], spec: Plan, member: int, num_members: int) -> dict[str, np.ndarray]:
    """Return a member's parameters by name. Only states of a population have an axis of members."""
    if spec.runtime == "asynchronous":
        return under("shared.params.", arrays)
    found = under("members.learner.params." if on_host(spec.env) else "learner.params.", arrays)
    if on_host(spec.env) and not found:  # the first version had one member, without an axis
        return under("member.learner.params.", arrays)
    return {name: value[member] for name, value in found.items() if len(np.atleast_1d(value)) == num_members}


def _spaces(spec: Plan) -> Spaces:
    env = with_options(spec.env, spec.options)
    if not on_host(spec.env):
        return Spaces(env.observation, env.num_actions)
    with env(num_actors=1, seed=0) as rows:
        return Spaces(rows.observation, rows.num_actions, getattr(rows, "raw_spaces", None))
