"""Compute targets with three algorithms: only the trace changes."""

import numpy as np

import offtrace as ot

rng = np.random.default_rng(0)
n, batch, num_actions = 16, 4, 6  # as in the paper: four windows of sixteen steps

q = rng.normal(size=(n + 1, batch, num_actions)).astype(np.float32)
pi = rng.dirichlet(np.ones(num_actions), size=(n + 1, batch)).astype(np.float32)
a = rng.integers(num_actions, size=(n, batch))
mu_a = np.full((n, batch), 1 / num_actions, np.float32)  # data from a uniform policy
r = rng.normal(size=(n, batch)).astype(np.float32)
terminated = rng.random((n, batch)) < 0.05
discount = np.where(terminated, 0, 0.99).astype(np.float32)
reset = np.zeros((n, batch), bool)
reset[1:] = terminated[:-1]  # a new episode starts in the next row

for trace in (ot.OneStep(), ot.TreeBackup(1.0), ot.Retrace(1.0)):
    targets = ot.targets(q=q, a=a, r=r, discount=discount, pi=pi, mu_a=mu_a, reset=reset, trace=trace)
    q_a = np.take_along_axis(q[:-1], a[..., None], -1)[..., 0]
    print(f"{trace.name:12} mean |target − Q| = {np.abs(targets - q_a).mean():.3f}")
