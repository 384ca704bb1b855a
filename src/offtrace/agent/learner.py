"""One update of the agent (Sec. 5, App. F), as a pure function. Retrace, TB and Q* differ only in `trace`.

For a batch of windows x_t, a_t, r_t, …, x_{t+n} from replay,

    ΔQ(x_t, a_t) = Σ_s γ^{s−t} (Π_{i=t+1..s} c_i) [r_s + γ E_π Q(x_{s+1}, ·) − Q(x_s, a_s)]

is clamped to [−1, 1], divided by n, and used as the gradient of the loss with respect to Q(x_t,
a_t). DQN is the same with windows of one step and a greedy π.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from offtrace import policies
from offtrace.agent.field_rules import CHOICES
from offtrace.arrays import take_action
from offtrace.returns import targets
from offtrace.traces import TRACES, FunctionTrace, Trace, TrajectoryAware

jax.tree_util.register_static(FunctionTrace)  # a function is a part of the program, while λ is an input
MARKOV = tuple(name for name, cls in TRACES.items() if cls.markov)
"""Traces that can share one compiled program; `TraceByIndex` counts them in this order."""


@dataclass(frozen=True)
class LearnerSpec:
    """The static part of the update; numbers that may differ within a population are in `Hyper`.

    Fields are those of `TrainSpec` with the same name, except where they say otherwise.
    """

    target_policy: str = "exploration"
    double: bool = True
    """True: π from the online network, Q from the target network. False: both from the target
    network (Deviation D12)."""
    optimiser: str = "adam"
    """RMSprop is not centred, with ε inside the root."""
    decay: float = 0.99
    """Decay of RMSprop; not a field of `TrainSpec` (Deviation D13)."""
    clamp: float | None = 1.0
    target_period: int = 250
    max_gradient: float | None = None

    def __post_init__(self) -> None:
        for name in ("target_policy", "optimiser"):
            value = getattr(self, name)
            if value not in CHOICES[name]:
                raise ValueError(f"`{name}` must be one of {', '.join(CHOICES[name])}; got {value!r}.")
        if self.target_period < 1:
            raise ValueError(f"`target_period` must be at least 1 update; got {self.target_period}.")


class Hyper(NamedTuple):
    """The numbers of the update of one member, as in `TrainSpec`; in a population they have a leading axis."""

    gamma: Any
    step_size: Any
    """The current step size."""
    regularisation: Any
    trace: Any
    """A `Trace`, whose λ is a leaf, or a `TraceByIndex`."""
    beta: Any = 1.0


class TraceByIndex(NamedTuple):
    """A Markov trace by its position in `MARKOV`, so that members of one program may have different traces.

    It computes the coefficients of all of them and selects one.
    """

    kind: Any
    """Position in `MARKOV`."""
    lambda_: Any

    def __call__(self, *, pi_a: Any, mu_a: Any, q: Any, pi: Any, a: Any) -> Any:
        every = []
        for name in MARKOV:
            trace = TRACES[name](1.0)
            given = {"q": q, "pi": pi, "a": a} if trace.needs_q else {}
            every.append(trace(pi_a=pi_a, mu_a=mu_a, **given))
        lambda_ = jnp.where(jnp.asarray(self.kind) == MARKOV.index("one_step"), 0.0, self.lambda_)
        return lambda_ * jnp.stack(every)[self.kind]


class LearnerState(NamedTuple):
    """The networks and the optimiser between two updates."""

    params: Any
    target_params: Any
    optimiser: Any
    num_updates: jax.Array


class Batch(NamedTuple):
    """Windows from replay, as the update needs them: obs (n+1, B, …), epsilon (B,), the others (n, B)."""

    obs: jax.Array
    a: jax.Array
    r: jax.Array
    continues: jax.Array
    reset: jax.Array
    mask: jax.Array
    mu_a: jax.Array
    epsilon: jax.Array
    """ε of the target policy."""


class UpdateRecord(NamedTuple):
    """Measurements of one update."""

    loss: Any
    """Mean |ΔQ| before the clamp, over the real steps of the batch."""
    gradient: Any
    """Norm of the gradient, before it is scaled down to `max_gradient`."""
    refused: Any
    """True if the loss or the gradient was not finite, and so nothing was changed."""


class Metrics(NamedTuple):
    """Means over the real steps of a batch. Those of c are nan for traces that are not Markov."""

    q: jax.Array
    """Mean Q(x_t, a_t)."""
    largest_q: jax.Array
    """Max |Q(x_t, ·)|."""
    c: jax.Array
    """Mean coefficient of the steps that a trace could pass: not the first of a window, nor one after an end."""
    cut: jax.Array
    """Share of these steps with c < 0.05."""
    effective_length: jax.Array
    """Mean of Σ_s Π c from the start of a window to the first end of an episode or a life: the
    number of TD errors that reach the start. Windows that begin on a dummy row do not count."""
    off_policy: jax.Array
    """E_μ|1 − π/μ|, which is ‖π − μ‖₁."""


Network = Callable[[Any, Any], Any]
"""A function from parameters and observations (…, *shape) to values (…, A)."""


def optimiser(spec: LearnerSpec, hyper: Hyper) -> optax.GradientTransformation:
    """Return the optimiser without its step size, which `step` applies."""
    if spec.optimiser == "adam":
        scale = optax.scale_by_adam(eps=hyper.regularisation)
    else:
        scale = optax.scale_by_rms(decay=spec.decay, eps=hyper.regularisation, eps_in_sqrt=True)
    if spec.max_gradient is None:
        return scale
    return optax.chain(optax.clip_by_global_norm(spec.max_gradient), scale)


def init(params: Any, spec: LearnerSpec, hyper: Hyper) -> LearnerState:
    """Return the state before the first update; the target network is a copy of the online network."""
    copy = jax.tree.map(jnp.array, params)
    return LearnerState(params, copy, optimiser(spec, hyper).init(params), jnp.zeros((), jnp.int32))


def target_policy(q: jax.Array, epsilon: jax.Array, spec: LearnerSpec, hyper: Hyper) -> jax.Array:
    """Return π(·|x), (n+1, B, A), from values of the same shape."""
    if spec.target_policy == "greedy":
        return policies.greedy(q)
    if spec.target_policy == "softmax":
        return policies.softmax(q, hyper.beta)
    return policies.epsilon_greedy(q, jnp.broadcast_to(epsilon, q.shape[:-1]))


def batch_targets(
    q_policy: jax.Array, q_target: jax.Array, batch: Batch, spec: LearnerSpec, hyper: Hyper
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the targets Q(x_t, a_t) + ΔQ, the coefficients c, and π(a_t|x_t), each (n, B).

    Values are (n+1, B, A): `q_policy` defines π, `q_target` is Q inside ΔQ.
    """
    pi = target_policy(q_policy, batch.epsilon, spec, hyper)
    # π(a_t|x_t) of the n actions; the last of the n+1 states has no action.
    pi_a = take_action(pi[:-1], batch.a)
    mu_a = jnp.where(batch.mask, batch.mu_a, 1)  # masked rows may hold anything
    common: dict[str, Any] = {
        "q": q_target,
        "pi": pi,
        "a": batch.a,
        "r": batch.r,
        "discount": hyper.gamma * batch.continues,
        "mu_a": mu_a,
        "reset": batch.reset,
        "mask": batch.mask,
        "validate": False,
    }
    if isinstance(hyper.trace, TrajectoryAware):
        target = targets(**common, trace=hyper.trace)
        c = jnp.full_like(batch.r, jnp.nan)  # such a trace has no coefficient of a single step
        return target, c, pi_a
    given = {}
    if isinstance(hyper.trace, TraceByIndex) or (isinstance(hyper.trace, Trace) and hyper.trace.reads_q):
        given = {"q": q_policy, "pi": pi, "a": batch.a}
    c = hyper.trace(pi_a=pi_a, mu_a=mu_a, **given)
    target = targets(**common, trace=lambda **_: c)  # computed once, and returned for the metrics
    return target, c, pi_a


def gradient(
    params: Any, batch: Batch, q_target: jax.Array, hyper: Hyper, *, network: Network, spec: LearnerSpec
) -> tuple[Any, jax.Array]:
    """Return the gradient of the loss, and the mean |ΔQ| before the clamp.

    `q_target` (n+1, B, A) are the target network's values.
    """
    length, num_windows = batch.a.shape

    def loss(params: Any) -> tuple[jax.Array, jax.Array]:
        # One pass: with double Q-learning, π and Q(x_t, a_t) come from the same values. Without it, π comes from the
        # target network, and the last observation of a window is not needed.
        if spec.double:
            q = network(params, batch.obs)
            q_policy = jax.lax.stop_gradient(q)
        else:
            q = network(params, batch.obs[:-1])
            q_policy = q_target
        target, _, _ = batch_targets(q_policy, q_target, batch, spec, hyper)
        q_a = take_action(q[:length], batch.a)
        delta = jnp.where(batch.mask, target - jax.lax.stop_gradient(q_a), 0)
        change = delta
        if spec.clamp is not None:
            change = jnp.clip(delta, -spec.clamp, spec.clamp)
        # Its gradient with respect to Q(x_t, a_t) is −change / n, averaged over windows; 0 where masked.
        surrogate = -(change * q_a).sum() / (length * num_windows)
        return surrogate, abs(delta).sum() / jnp.maximum(batch.mask.sum(), 1)

    return jax.grad(loss, has_aux=True)(params)


def step(
    state: LearnerState, batch: Batch, q_target: jax.Array, hyper: Hyper, *, network: Network, spec: LearnerSpec
) -> tuple[LearnerState, UpdateRecord]:
    """Take one step of the optimiser; `q_target` (n+1, B, A) are the target network's values.

    The target network stays as it is: `refresh_target` copies it.
    """
    found, mean_delta = gradient(state.params, batch, q_target, hyper, network=network, spec=spec)
    norm = optax.tree.norm(found)
    finite = jnp.isfinite(norm) & jnp.isfinite(mean_delta)
    direction, moments = optimiser(spec, hyper).update(found, state.optimiser, state.params)
    params = jax.tree.map(lambda p, d: p - (hyper.step_size * d).astype(p.dtype), state.params, direction)
    # An update that is not finite changes nothing, so that one bad batch does not destroy the agent.
    params, moments = jax.tree.map(
        lambda new, old: jnp.where(finite, new, old), (params, moments), (state.params, state.optimiser)
    )
    after = LearnerState(params, state.target_params, moments, state.num_updates + 1)
    return after, UpdateRecord(mean_delta, norm, ~finite)


def refresh_target(state: LearnerState, spec: LearnerSpec, num_updates: int = 1) -> LearnerState:
    """Copy the online network to the target network if a period ended within the last `num_updates` updates."""
    # A period may end inside the group: with a period of 10 and groups of 4 updates, after update 12
    # two updates have passed since the end of the period, fewer than 4.
    since = state.num_updates % spec.target_period
    due = since < num_updates
    copy = jax.tree.map(lambda new, old: jnp.where(due, new, old), state.params, state.target_params)
    return state._replace(target_params=copy)


@functools.partial(jax.jit, static_argnames=("network", "spec"))
def update(
    state: LearnerState, batch: Batch, hyper: Hyper, *, network: Network, spec: LearnerSpec
) -> tuple[LearnerState, UpdateRecord]:
    """Run one update: a step of the optimiser, and every `target_period` updates a new target network."""
    q_target = network(state.target_params, batch.obs)
    state, record = step(state, batch, q_target, hyper, network=network, spec=spec)
    return refresh_target(state, spec), record


def metrics(
    state: LearnerState, batch: Batch, hyper: Hyper, *, network: Network, spec: LearnerSpec
) -> tuple[Metrics, jax.Array]:
    """Return the metrics of a batch, and |1 − π/μ| of each of its steps (n, B)."""
    q = network(state.params, batch.obs)
    q_target = network(state.target_params, batch.obs)
    _, c, pi_a = batch_targets(q if spec.double else q_target, q_target, batch, spec, hyper)
    real = batch.mask.astype(batch.r.dtype)
    count = jnp.maximum(real.sum(), 1)
    # Rows whose c is read: not the first, and not one after an end. A lost life is an end without a reset.
    #
    #     row          0    1    2    3    4    5        row 3: the episode ended in row 2, so row 3 is its dummy row
    #     continues    1    1    0    1    1    1
    #     mask         1    1    1    0    1    1
    #     reset        .    .    .    .   yes   .
    #     passes       0    1    1    0    0    1
    before = jnp.concatenate([jnp.zeros_like(batch.continues[:1]), batch.continues[:-1]])
    passes = jnp.where(batch.mask & ~batch.reset & (before > 0), 1.0, 0.0)
    num_passes = jnp.maximum(passes.sum(), 1)
    away = abs(1 - jnp.where(batch.mask, pi_a / jnp.where(batch.mask, batch.mu_a, 1), 1))
    reach = jnp.cumprod((c * passes).at[0].set(1.0 + 0 * c[0]), axis=0)
    begins = real[0]
    means = Metrics(
        q=(take_action(q[:-1], batch.a) * real).sum() / count,
        largest_q=abs(q).max(),
        c=(c * passes).sum() / num_passes,
        cut=jnp.where(jnp.isnan(c), jnp.nan, (c < 0.05) * passes).sum() / num_passes,
        effective_length=(reach.sum(0) * begins).sum() / jnp.maximum(begins.sum(), 1),
        off_policy=(away * real).sum() / count,
    )
    return means, away
