"""A trained agent as a function from observations to values."""

import functools
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from offtrace.agent import checkpoints
from offtrace.agent.consent import check_saved
from offtrace.agent.network import make_network
from offtrace.agent.runs import read_record, read_specs
from offtrace.agent.settings import explain_missing_package
from offtrace.agent.spec import Plan
from offtrace.agent.states import from_arrays, under
from offtrace.environments import on_host, with_options
from offtrace.imports import import_module


@dataclass(frozen=True)
class Policy:
    """The network of a trained run, from `load_policy("runs/…")`.

    `q` takes observations (N, *shape) and returns values (N, A); the greedy action is their
    `argmax`.
    """

    spec: Plan
    params: Any
    network: Any
    num_steps: int
    """Environment steps that the network was trained for."""

    @property
    def env(self) -> str:
        return self.spec.env

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.spec.options)

    def q(self, observations: np.ndarray) -> np.ndarray:
        """Return Q(x, ·) for observations (N, *shape): (N, A)."""
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
    allow_import: Collection[str] = (),
    warn: Callable[[str], None] | None = None,
) -> Policy:
    """Load the policy of a run from its newest intact checkpoint; `member` selects one of a population.

    An environment `module:Name-v0` or `module:MyEnv` imports that module, which runs its code. This
    needs `allow_import=["module"]`; the files of the run cannot allow it. Modules that you allow
    are imported also if the run does not name them, as they may register its environment.
    """
    path = Path(run)
    read_specs(path)  # raises unless the folder holds a run
    try:
        found = checkpoints.load(path, warn=warn)
    except FileNotFoundError:
        raise ValueError(f"{str(path)!r} has no checkpoint yet. Train it for a while first.") from None
    saved = read_record(found)
    if not 0 <= member < len(saved.specs):
        raise ValueError(f"`member` must be at least 0 and under {len(saved.specs)}; got {member}.")
    spec = saved.specs[member]
    check_saved([spec], allow_import, where=f"the run {str(path)!r}")
    for module in allow_import:
        import_module(module)
    with explain_missing_package(spec):
        space, num_actions = _spaces(spec)
    net = make_network(
        space.shape, space.dtype, num_actions, jax.random.key(0), spec.network, hidden_sizes=spec.hidden_sizes
    )
    template, skeleton = eqx.partition(net, eqx.is_array)
    params = from_arrays(template, _parameters(found.arrays, spec, member, len(saved.specs)))
    return Policy(spec, params, skeleton, saved.history[-1][member].num_steps)


def _parameters(arrays: dict[str, np.ndarray], spec: Plan, member: int, num_members: int) -> dict[str, np.ndarray]:
    """Return a member's parameters by name. Only states of a population have an axis of members."""
    if on_host(spec.env):
        return under("member.learner.params.", arrays)
    found = under("learner.params.", arrays)
    return {name: value[member] for name, value in found.items() if len(np.atleast_1d(value)) == num_members}


def _spaces(spec: Plan) -> tuple[Any, int]:
    env = with_options(spec.env, spec.options)
    if not on_host(spec.env):
        return env.observation, env.num_actions
    with env(num_actors=1, seed=0) as rows:
        return rows.observation, rows.num_actions
