"""One update of the agent (Sec. 5, App. F), as a pure function; Retrace, TB, Q* and DQN differ by one value, `trace`.

For a batch of windows x_t, a_t, r_t, …, x_{t+n} from replay,

    ΔQ(x_t, a_t) = Σ_s γ^{s−t} (Π_{i=t+1..s} c_i) [r_s + γ E_π Q(x_{s+1}, ·) − Q(x_s, a_s)]

is clamped to [−1, 1], divided by n, and taken as the gradient of the loss with respect to Q(x_t, a_t). DQN is that
with windows of one step and a greedy π.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from offtrace import policies
from offtrace.arrays import take_action
from offtrace.returns import targets
from offtrace.traces import TRACES, Trace, TrajectoryAware

TARGET_POLICIES = ("exploration", "greedy", "softmax")
OPTIMISERS = ("adam", "rmsprop")
MARKOV = tuple(name for name, cls in TRACES.items() if cls.markov)
"""Traces that one compiled program can hold side by side, by position."""


@dataclass(frozen=True)
class LearnerSpec:
    """What shapes the compiled update; numbers that may differ within a population are in `Hyper`."""

    target_policy: str = "exploration"
    """π: the current exploration policy (App. F), `greedy` (Watkins, DQN), or `softmax`."""
    double: bool = True
    """π is made of the online network's values, while Q is the target network's (double Q-learning); else both are
    the target network's. The paper is silent (Deviation D12)."""
    optimiser: str = "adam"
    """`adam`, or `rmsprop` as in the paper: not centred, ε inside the root."""
    decay: float = 0.99
    """Of RMSprop (Deviation D13)."""
    clamp: float | None = 1.0
    """ΔQ is clamped to ± this; None leaves it."""
    target_period: int = 250
    """Updates between copies of the online network to the target network (Deviation D14)."""
    max_gradient: float | None = None
    """The gradient's norm is scaled down to this; None leaves it."""

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("target_policy", self.target_policy, TARGET_POLICIES),
            ("optimiser", self.optimiser, OPTIMISERS),
        ):
            if value not in allowed:
                raise ValueError(f"`{name}` must be one of {', '.join(allowed)}; got {value!r}.")
        if self.target_period < 1:
            raise ValueError(f"`target_period` must be at least 1 update; got {self.target_period}.")


class Hyper(NamedTuple):
    """Numbers of one member; a population has a leading axis."""

    gamma: Any
    step_size: Any
    regularisation: Any
    """ε of the optimiser."""
    trace: Any
    """A `Trace`, whose λ is a leaf, or a `Choice`."""
    beta: Any = 1.0
    """Of a softmax target policy."""


class Choice(NamedTuple):
    """A Markov trace by its position in `MARKOV`: members of one program may differ in it."""

    kind: Any
    lambda_: Any

    def __call__(self, *, pi_a: Any, mu_a: Any, q: Any, pi: Any, a: Any) -> Any:
        every = []
        for name in MARKOV:
            trace = TRACES[name](1.0)
            given = {"q": q, "pi": pi, "a": a} if trace.needs_q else {}
            every.append(trace(pi_a=pi_a, mu_a=mu_a, **given))
        kept = jnp.where(jnp.asarray(self.kind) == MARKOV.index("one_step"), 0.0, self.lambda_)
        return kept * jnp.stack(every)[self.kind]


class LearnerState(NamedTuple):
    params: Any
    target_params: Any
    optimiser: Any
    num_updates: jax.Array


class Batch(NamedTuple):
    """Windows from replay: obs (n+1, B, …), the rest (n, B), epsilon (B,)."""

    obs: jax.Array
    a: jax.Array
    r: jax.Array
    continues: jax.Array
    reset: jax.Array
    mask: jax.Array
    mu_a: jax.Array
    epsilon: jax.Array
    """ε of the target policy: that of each window's actor, now, or the learner's own."""


class Progress(NamedTuple):
    """What one update did."""

    loss: Any
    """Mean |ΔQ| before the clamp, over the real steps of the batch."""
    gradient: Any
    """Norm of the gradient, before it is scaled down to `max_gradient`."""
    refused: Any
    """bool: the loss or the gradient was not finite, so nothing was changed."""


class Metrics(NamedTuple):
    """The paper's own subject, averaged over the real steps of a batch."""

    q: jax.Array
    """Mean Q(x_t, a_t)."""
    largest_q: jax.Array
    """Max |Q(x_t, ·)|."""
    c: jax.Array
    """Mean coefficient of steps that a trace could pass; NaN for traces that are not Markov, as are the next two."""
    cut: jax.Array
    """Share of them with c < 0.05."""
    effective_length: jax.Array
    """Mean of Σ_s Π c from the start of a window to its first end of an episode or a life: how many TD errors reach
    it. Windows that begin on a dummy row do not count."""
    off_policy: jax.Array
    """E_μ|1 − π/μ|, which is ‖π − μ‖₁."""


Network = Callable[[Any, Any], Any]
"""Values (…, A) from parameters and observations (…, *shape)."""


def optimiser(spec: LearnerSpec, hyper: Hyper) -> optax.GradientTransformation:
    """Scaled by −step size; the step size may be a traced number."""
    if spec.optimiser == "adam":
        shape = optax.scale_by_adam(eps=hyper.regularisation)
    else:
        shape = optax.scale_by_rms(decay=spec.decay, eps=hyper.regularisation, eps_in_sqrt=True)
    return shape if spec.max_gradient is None else optax.chain(optax.clip_by_global_norm(spec.max_gradient), shape)


def init(params: Any, spec: LearnerSpec, hyper: Hyper) -> LearnerState:
    """Before the first update; the target network starts as the online one."""
    copy = jax.tree.map(jnp.array, params)
    return LearnerState(params, copy, optimiser(spec, hyper).init(params), jnp.zeros((), jnp.int32))


def target_policy(q: jax.Array, epsilon: jax.Array, spec: LearnerSpec, hyper: Hyper) -> jax.Array:
    """π(·|x), (n+1, B, A), from values of the same shape."""
    if spec.target_policy == "greedy":
        return policies.greedy(q)
    if spec.target_policy == "softmax":
        return policies.softmax(q, hyper.beta)
    return policies.epsilon_greedy(q, jnp.broadcast_to(epsilon, q.shape[:-1]))


def batch_targets(
    q_policy: jax.Array, q_target: jax.Array, batch: Batch, spec: LearnerSpec, hyper: Hyper
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Q(x_t, a_t) + ΔQ (n, B), the coefficients c and π(a_t|x_t), from values (n+1, B, A).

    `q_policy` are the values that π is made of, `q_target` those inside ΔQ.
    """
    pi = target_policy(q_policy, batch.epsilon, spec, hyper)
    pi_a = take_action(pi[:-1], batch.a)
    mu_a = jnp.where(batch.mask, batch.mu_a, 1)  # what a masked row holds is never read
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
        c = jnp.full_like(batch.r, jnp.nan)  # it has no coefficient of a single step
    else:
        needs = isinstance(hyper.trace, Choice) or (isinstance(hyper.trace, Trace) and hyper.trace.needs_q)
        c = hyper.trace(pi_a=pi_a, mu_a=mu_a, **({"q": q_policy, "pi": pi, "a": batch.a} if needs else {}))
        target = targets(**common, trace=lambda **_: c)
    return target, c, pi_a


def step(
    state: LearnerState, batch: Batch, q_target: jax.Array, hyper: Hyper, *, network: Network, spec: LearnerSpec
) -> tuple[LearnerState, Progress]:
    """One step of the optimiser; `q_target` (n+1, B, A) are the target network's values. It is not renewed here."""
    length, num_windows = batch.a.shape

    def loss(params: Any) -> tuple[jax.Array, jax.Array]:
        # once: π and Q(x_t, a_t) come from the same values; without π, the last observation is not needed
        q = network(params, batch.obs if spec.double else batch.obs[:-1])
        q_policy = jax.lax.stop_gradient(q) if spec.double else q_target
        target, _, _ = batch_targets(q_policy, q_target, batch, spec, hyper)
        q_a = take_action(q[:length], batch.a)
        delta = jnp.where(batch.mask, target - jax.lax.stop_gradient(q_a), 0)
        change = delta if spec.clamp is None else jnp.clip(delta, -spec.clamp, spec.clamp)
        # its gradient with respect to Q(x_t, a_t) is −change / n, averaged over windows; 0 where masked
        return -(change * q_a).sum() / (length * num_windows), abs(delta).sum() / jnp.maximum(batch.mask.sum(), 1)

    gradient, size = jax.grad(loss, has_aux=True)(state.params)
    norm = optax.tree.norm(gradient)
    finite = jnp.isfinite(norm) & jnp.isfinite(size)
    direction, moments = optimiser(spec, hyper).update(gradient, state.optimiser, state.params)
    params = jax.tree.map(lambda p, d: p - (hyper.step_size * d).astype(p.dtype), state.params, direction)
    params, moments = jax.tree.map(
        lambda new, old: jnp.where(finite, new, old), (params, moments), (state.params, state.optimiser)
    )
    after = LearnerState(params, state.target_params, moments, state.num_updates + 1)
    return after, Progress(size, norm, ~finite)


def renewed(state: LearnerState, spec: LearnerSpec, num_updates: int = 1) -> LearnerState:
    """The target network, a copy of the online one if a period ended within the last `num_updates`."""
    since = state.num_updates % spec.target_period
    due = since < num_updates
    copy = jax.tree.map(lambda new, old: jnp.where(due, new, old), state.params, state.target_params)
    return state._replace(target_params=copy)


@functools.partial(jax.jit, static_argnames=("network", "spec"))
def update(
    state: LearnerState, batch: Batch, hyper: Hyper, *, network: Network, spec: LearnerSpec
) -> tuple[LearnerState, Progress]:
    """One step of the optimiser; the target network follows every `target_period` updates."""
    q_target = network(state.target_params, batch.obs)
    state, progress = step(state, batch, q_target, hyper, network=network, spec=spec)
    return renewed(state, spec), progress


def metrics(
    state: LearnerState, batch: Batch, hyper: Hyper, *, network: Network, spec: LearnerSpec
) -> tuple[Metrics, jax.Array]:
    """Of a batch, with |1 − π/μ| of each of its steps (n, B)."""
    q, q_target = network(state.params, batch.obs), network(state.target_params, batch.obs)
    _, c, pi_a = batch_targets(q if spec.double else q_target, q_target, batch, spec, hyper)
    real = batch.mask.astype(batch.r.dtype)
    count = jnp.maximum(real.sum(), 1)
    # Rows whose c is read: not the first, and none after an end. A lost life is an end without a reset.
    before = jnp.concatenate([jnp.zeros_like(batch.continues[:1]), batch.continues[:-1]])
    passes = jnp.where(batch.mask & ~batch.reset & (before > 0), 1.0, 0.0)
    num_passes = jnp.maximum(passes.sum(), 1)
    away = abs(1 - jnp.where(batch.mask, pi_a / jnp.where(batch.mask, batch.mu_a, 1), 1))
    reach = jnp.cumprod((c * passes).at[0].set(1.0 + 0 * c[0]), axis=0)
    begins = real[0]
    seen = Metrics(
        q=(take_action(q[:-1], batch.a) * real).sum() / count,
        largest_q=abs(q).max(),
        c=(c * passes).sum() / num_passes,
        cut=jnp.where(jnp.isnan(c), jnp.nan, (c < 0.05) * passes).sum() / num_passes,
        effective_length=(reach.sum(0) * begins).sum() / jnp.maximum(begins.sum(), 1),
        off_policy=(away * real).sum() / count,
    )
    return seen, away
