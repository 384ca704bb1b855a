"""A population in one program on an accelerator: environment steps per second of all members
together.

Every member is an agent on MinAtar Breakout with 16 actors, batches of 64 transitions, an update
every 4 steps of its actors, and a replay memory of 100,000 transitions. Members differ in trace, λ
and seed. A call is 50 iterations of acting and learning; compilation and filling the memory are not
timed. On a CPU members run one after the other, so only the row with one member is run.
"""

from collections.abc import Callable

from offtrace.bench import Benchmark, LeftOut

ENV = "minatar/breakout"
ITERATIONS = 50
NUM_ACTORS = 16
TRACES = (("retrace", 1.0), ("retrace", 0.9), ("tree_backup", 1.0), ("q_lambda", 0.9))


def population(num_members: int, *, precision: str, optimiser: str = "adam") -> Callable[[], object]:
    import jax

    from offtrace.agent.spec import TrainSpec, resolved
    from offtrace.agent.training import runtime_for

    on_cpu = jax.default_backend() == "cpu"
    if on_cpu and (num_members > 1 or precision != "float32"):
        raise LeftOut("needs an accelerator")
    specs = [
        resolved(
            TrainSpec(
                env=ENV,
                trace=TRACES[i % len(TRACES)][0] if num_members > 1 else "retrace",
                lambda_=TRACES[i % len(TRACES)][1],
                seed=i,
                num_actors=NUM_ACTORS,
                precision=precision,
                optimiser=optimiser,
            )
        )
        for i in range(num_members)
    ]
    runtime = runtime_for(specs)
    state = runtime.start()

    def tick(num_iterations: int, *, learns: bool) -> object:
        nonlocal state
        state, summary = runtime.advance(state, num_iterations, learns=learns)
        runtime.end_tick(state)
        return summary

    tick(runtime.program.fill, learns=False)
    tick(ITERATIONS, learns=True)
    return lambda: tick(ITERATIONS, learns=True)


def megabytes(num_members: int, _: str) -> float:
    """Return the size of one member between two calls, from the shapes of its state."""
    import jax

    from offtrace.agent.spec import TrainSpec, resolved
    from offtrace.agent.training import runtime_for

    spec = resolved(TrainSpec(env=ENV, num_actors=NUM_ACTORS))
    leaves = jax.tree.leaves(jax.eval_shape(lambda: runtime_for([spec]).start().members))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves) / 1e6


BENCHMARK = Benchmark(
    name="population",
    question="How many steps per second does a population make in one program? (members)",
    rows=(1, 88, 440),
    problem=lambda num_members: num_members,
    contenders={
        "bfloat16": lambda num_members: population(num_members, precision="bfloat16"),
        "float32": lambda num_members: population(num_members, precision="float32"),
        "bfloat16, RMSprop": lambda num_members: population(num_members, precision="bfloat16", optimiser="rmsprop"),
    },
    ours=("float32",),
    columns={"million steps/s": lambda num_members, s: num_members * NUM_ACTORS * ITERATIONS / s / 1e6},
    measures={"MB per member": megabytes},
    repeats=7,
    min_time=0.2,
    quick_rows=1,
)
