"""A trained agent as a function of what it sees."""

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from offtrace.agent import checkpoints
from offtrace.agent.network import make_network
from offtrace.agent.runs import read_record, read_specs
from offtrace.agent.runtimes import needs_of, state_of
from offtrace.agent.spec import Plan
from offtrace.environments import on_host, with_options


@dataclass(frozen=True)
class Policy:
    """The values of a run's network: `load_policy("runs/…")`.

    `q` takes observations (N, *shape) and gives (N, A); the greedy action is its `argmax`.
    """

    spec: Plan
    params: Any
    network: Any
    num_steps: int
    """Environment steps that it was trained for."""

    @property
    def env(self) -> str:
        return self.spec.env

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.spec.options)

    def q(self, observations: np.ndarray) -> np.ndarray:
        return np.asarray(self._values(self.params, observations))

    @functools.cached_property
    def _values(self) -> Callable[[Any, Any], jax.Array]:
        def values(params: Any, obs: Any) -> jax.Array:
            params = jax.tree.map(lambda leaf: leaf.astype(self.spec.precision), params)
            return eqx.combine(params, self.network)(jnp.asarray(obs)).astype(jnp.float32)

        return jax.jit(values)


def load_policy(
    run: str | Path,
    *,
    member: int = 0,
    allow_import: bool = False,
    warn: Callable[[str], None] | None = None,
) -> Policy:
    """From the newest intact checkpoint of a run; of a population, one member.

    An environment `module:Name-v0` imports that module, which runs its code: only with `allow_import`, whatever the
    run's folder says.
    """
    path = Path(run)
    read_specs(path)  # refuses what is no run
    try:
        found = checkpoints.load(path, warn=warn)
    except FileNotFoundError:
        raise ValueError(f"{str(path)!r} has no checkpoint yet: train it for a while first.") from None
    saved = read_record(found)
    if not 0 <= member < len(saved.specs):
        raise ValueError(f"`member` must be under {len(saved.specs)}; got {member}.")
    spec = _with_consent(saved.specs[member], allow_import)
    hosted = on_host(spec.env)
    prefix = "member.learner.params." if hosted else "learner.params."
    arrays = {
        name.removeprefix(prefix): value if hosted else value[member]
        for name, value in found.arrays.items()
        if name.startswith(prefix) and (hosted or len(np.atleast_1d(value)) == len(saved.specs))
    }
    with needs_of(spec):
        space, num_actions = _spaces(spec)
    net = make_network(
        space.shape, space.dtype, num_actions, jax.random.key(0), spec.network, hidden_sizes=spec.hidden_sizes
    )
    template, skeleton = eqx.partition(net, eqx.is_array)
    return Policy(spec, state_of(template, arrays), skeleton, saved.history[-1][member].num_steps)


def _with_consent(spec: Plan, allow_import: bool) -> Plan:
    """The spec with the caller's word on imports, and not the file's."""
    if ":" in spec.env and not allow_import:
        raise ValueError(
            f"`env` {spec.env!r} of this run imports a module, which runs its code. If you trust it, pass "
            "`--allow-import` (in Python `allow_import=True`)."
        )
    options = {name: value for name, value in spec.options.items() if name != "allow_import"}
    if allow_import and ":" in spec.env:
        options["allow_import"] = True
    return dataclasses.replace(spec, options=options)


def _spaces(spec: Plan) -> tuple[Any, int]:
    env = with_options(spec.env, spec.options)
    if not on_host(spec.env):
        return env.observation, env.num_actions
    with env(num_actors=1, seed=0) as rows:
        return rows.observation, rows.num_actions
