"""Sweep over λ with one `vmap`: λ is a leaf of the trace, so the program is compiled once."""

import jax
import jax.numpy as jnp

import offtrace as ot

n, batch, num_actions = 16, 4, 6
keys = jax.random.split(jax.random.key(0), 4)
window = {
    "q": jax.random.normal(keys[0], (n + 1, batch, num_actions)),
    "pi": jax.nn.softmax(jax.random.normal(keys[1], (n + 1, batch, num_actions))),
    "a": jax.random.randint(keys[2], (n, batch), 0, num_actions),
    "mu_a": jnp.full((n, batch), 1 / num_actions),
    "r": jax.random.normal(keys[3], (n, batch)),
    "discount": jnp.full((n, batch), 0.99),
}
lambdas = jnp.array([0.0, 0.5, 0.9, 1.0])


@jax.jit
def sweep(traces: ot.Retrace) -> jax.Array:
    return jax.vmap(lambda trace: ot.targets(**window, trace=trace))(traces)


for lambda_, targets in zip(lambdas, sweep(ot.Retrace(lambdas)), strict=True):
    print(f"λ = {lambda_:.1f}: first target {targets[0, 0]:+.4f}, spread {targets.std():.3f}")
