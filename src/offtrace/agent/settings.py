"""From specs to a program and its numbers, and the checks of fields that must fit together.

Plan ──┬─ program_spec ─→ ProgramSpec    static: equal for all members of a population
       └─ settings ─────→ Settings       numbers: one row per member
"""

import dataclasses
import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from offtrace.agent.defaults import DEFAULT_TICK
from offtrace.agent.learner import MARKOV, Batch, Hyper, LearnerSpec, TraceByIndex, batch_targets
from offtrace.agent.own_traces import made
from offtrace.agent.program import Program, ProgramSpec, Settings
from offtrace.agent.runs import TICK
from offtrace.agent.schedules import SwitchingEpsilon
from offtrace.agent.spec import Plan, differences
from offtrace.environments import on_host, program_shape
from offtrace.traces import TRACES, Trace

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
"""Fields in which members of a population may differ."""
WORLDS = ("env", "options")
"""Fields in which they may also differ if their environments have the same shape."""
LONGEST_TICK = 10**7
"""Steps. The records of all updates of a tick stay in memory until its end."""
MOST_TICKS = 999_990
"""Ticks per run. Evaluations are seeded by the number of their tick, and the final one has number 10⁶."""


# -- checks --------------------------------------------------------------------------------------------------


def check_shapes(specs: Sequence[Plan]) -> None:
    """Check that the members of a population can share one program."""
    first = specs[0]
    if len(specs) == 1:
        return
    shape = program_shape(first.env, first.options)
    for spec in specs[1:]:
        allowed = NUMBERS
        if program_shape(spec.env, spec.options) == shape:
            allowed = (*NUMBERS, *WORLDS)
        for name, (one, other) in differences(first, spec).items():
            if name not in allowed or (name == "trace" and "dqn" in (one, other)):
                raise ValueError(
                    f"`{name}` must be the same for all members of a population; got {one!r} and {other!r}. "
                    "Train them separately."
                )
        for one in (first, spec):
            if first.trace != spec.trace and not has_common_trace(one):
                raise ValueError(
                    "`trace` must be a Markov trace of `ot.TRACES`, without `trace_options`, in a population of "
                    f"several traces; got {one.trace!r}. Train them separately."
                )


def has_common_trace(spec: Plan) -> bool:
    """Return whether members with other traces can be in one program with this one."""
    return isinstance(spec.trace, str) and spec.trace in MARKOV and not spec.trace_options


def check_trace(spec: Plan) -> None:
    """Check that a trace can be made, and that a user's own can be compiled.

    It is called as the program will call it, on arrays without numbers, so that an error names the trace.
    """
    trace = _trace(spec)
    if type(trace) in TRACES.values():
        return
    length, num_windows, num_actions = 3, 2, 4
    step: Any = jax.ShapeDtypeStruct((length, num_windows), jnp.float32)
    flag: Any = jax.ShapeDtypeStruct(step.shape, jnp.bool)
    action: Any = jax.ShapeDtypeStruct(step.shape, jnp.int32)
    epsilon: Any = jax.ShapeDtypeStruct((num_windows,), jnp.float32)
    batch = Batch(obs=step, a=action, r=step, continues=step, reset=flag, mask=flag, mu_a=step, epsilon=epsilon)
    q = jax.ShapeDtypeStruct((length + 1, num_windows, num_actions), jnp.float32)

    def call(q: Any, batch: Batch, trace: Trace) -> Any:
        return batch_targets(q, q, batch, LearnerSpec(), Hyper(0.9, 0.1, 0.1, trace))

    try:
        jax.eval_shape(call, q, batch, trace)
    except Exception as error:
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        remedy = ""
        if type(error).__module__.startswith("jax"):
            remedy = " The agent compiles it: use operators, `likelihoods.xp` or `jax.numpy`, and no `if` on values."
        raise ValueError(
            f"`trace` must return c for JAX arrays; {trace.name} raised {type(error).__name__}: {reason}.{remedy}"
        ) from error


def _trace(spec: Plan) -> Trace:
    return made(spec.trace, np.float32(spec.lambda_), spec.trace_options, spec.trace_source)


def _check_sizes(spec: Plan, fill: int) -> None:
    """Check the counts of a plan against each other; `fill` is per actor."""
    num_filled = fill * spec.num_actors
    before = "before the first update: `fill`, and at least `window` + 1 for each of `num_actors`"
    if spec.replay_size // spec.num_actors < fill:
        raise ValueError(f"`replay_size` must hold the {num_filled:,} steps {before}; got {spec.replay_size}.")
    if spec.num_steps <= num_filled:
        raise ValueError(f"`num_steps` must be more than the {num_filled:,} steps {before}; got {spec.num_steps}.")
    most = max(min(spec.num_steps, LONGEST_TICK), DEFAULT_TICK)
    if spec.tick_steps > most:
        raise ValueError(
            f"`tick_steps` must be at most {most:,} in a run of {spec.num_steps:,} steps; got {spec.tick_steps:,}."
        )
    if spec.num_steps // spec.tick_steps >= MOST_TICKS:
        least = spec.num_steps // MOST_TICKS + 1
        raise ValueError(
            f"`tick_steps` must be at least {least} for {spec.num_steps:,} steps; got {spec.tick_steps}."
        )
    # Checkpoints within a tick are numbered below TICK: two numbers for each of two groups per step of an actor.
    most = TICK * spec.num_actors // 4
    for name, num_steps in (("tick_steps", spec.tick_steps), ("fill", spec.fill)):
        if num_steps >= most:
            raise ValueError(f"`{name}` must be under {most:,} with {spec.num_actors} actors; got {num_steps:,}.")


@contextmanager
def explain_missing_package(spec: Plan) -> Generator[None, None, None]:
    """Turn a missing package into an error about `env`, with the remedy."""
    try:
        yield
    except ImportError as error:
        raise ValueError(f"`env` {spec.env!r} cannot be made here: {error}") from error


# -- the program ---------------------------------------------------------------------------------------------


def program_spec(spec: Plan) -> ProgramSpec:
    """Return the static part of a plan. Counts of all actors together become counts per actor."""
    fill = max(math.ceil(spec.fill / spec.num_actors), spec.window + 1)
    _check_sizes(spec, fill)
    switching = None
    if spec.exploration == "switching":
        # App. F in the proportions of the run: a schedule lasts `epsilon_steps`, five times the switching period.
        duration = max(1, spec.epsilon_steps // spec.num_actors)
        switching = SwitchingEpsilon(duration=duration, period=max(1, duration // 5))
    return ProgramSpec(
        **_same_fields(ProgramSpec, spec, but="fill"),
        capacity=spec.replay_size // spec.num_actors,
        fill=fill,
        switching=switching,
        learner=LearnerSpec(**_same_fields(LearnerSpec, spec)),
    )


def _same_fields(cls: Any, spec: Plan, but: str = "") -> dict[str, Any]:
    """Return the values of the plan for the fields of `cls` that have the same name."""
    names = {field.name for field in dataclasses.fields(cls)} & vars(spec).keys() - {but}
    return {name: getattr(spec, name) for name in names}


def settings(specs: Sequence[Plan]) -> Settings:
    """Return the numbers of plans, with a leading axis of members."""
    one_trace = all(spec.trace == specs[0].trace for spec in specs)
    check_trace(specs[0])
    every = [_settings(spec, one_trace=one_trace) for spec in specs]
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *every)


def _settings(spec: Plan, *, one_trace: bool) -> Settings:
    if not one_trace:
        trace = TraceByIndex(np.int32(MARKOV.index(spec.trace)), np.float32(spec.lambda_))
    else:
        trace = _trace(spec)
    hyper = Hyper(
        gamma=np.float32(spec.gamma),
        step_size=np.float32(spec.step_size),
        regularisation=np.float32(spec.regularisation),
        trace=trace,
        beta=np.float32(spec.beta),
    )
    return Settings(
        hyper=hyper,
        epsilon_start=np.float32(1.0),
        epsilon_end=np.float32(spec.epsilon),
        epsilon_steps=np.float32(spec.epsilon_steps),
        annealing_steps=np.float32(_annealing_steps(spec)),
        target_epsilon=np.float32(np.nan if spec.target_epsilon is None else spec.target_epsilon),
    )


def _annealing_steps(spec: Plan) -> float:
    """Return the steps over which the step size decreases to 0."""
    if not spec.anneal:
        return math.inf
    if spec.annealing_steps is None:
        return spec.num_steps
    return spec.annealing_steps


def num_batch_entries(prog: Program, spec: Plan) -> int:
    """Return how many numbers the network sees at once: observations, and about as many of its first layer."""
    num_rows = prog.spec.updates * prog.spec.num_windows * (prog.spec.window + 1)
    if not on_host(spec.env):
        num_rows = max(num_rows, spec.evaluation_episodes)
    return 2 * num_rows * math.prod(prog.env.observation.shape)


def evaluation_key(spec: Plan, number: int) -> jax.Array:
    """Return the random key of a member's evaluation: from its seed, independent of the keys of training."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(spec.seed), 1), number)
