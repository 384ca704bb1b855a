"""Analyse which traces are safe for a target policy and a behaviour policy, and how large their variance is."""

import numpy as np

import offtrace as ot

# A chain of ten states; leaving it on the right gives 1. π goes right, μ is uniform.
mdp = ot.mdp.chain(num_states=10, gamma=0.9, slip=0.1)
pi = ot.policies.epsilon_greedy(ot.operators.q_star(mdp), 0.1)
mu = np.full(mdp.shape, 0.5)

analysis = ot.analyze(mdp, pi=pi, mu=mu, lambdas=[0.5, 1.0])
print(analysis)

# The table shows that Q(λ) diverges and Retrace does not. Apply both operators repeatedly to confirm it.
q_pi = ot.operators.q_pi(mdp, pi)
print("\nlargest error after k applications of R:")
for trace in (ot.QLambda(1.0), ot.Retrace(1.0)):
    row = analysis.row(trace.name, trace.lambda_)
    q = np.zeros(mdp.shape)
    errors = []
    for _ in range(30):
        q = ot.operators.general_operator(mdp, q, pi=pi, mu=mu, trace=trace)
        errors.append(abs(q - q_pi).max())
    shown = ", ".join(f"{k}: {errors[k - 1]:.2g}" for k in (1, 10, 20, 30))
    print(f"  {row.label:12} {row.verdict:10} ρ(A) = {row.radius:.3f}   {shown}")

# The variance of a sampled target, computed exactly.
for trace in (ot.Retrace(1.0), ot.ImportanceSampling(1.0)):
    moments = ot.operators.correction_moments(mdp, np.zeros(mdp.shape), pi=pi, mu=mu, trace=trace)
    print(f"  {trace.name:20} γ²P^(c²μ) has radius {moments.radius:.3f}, variance {moments.variance.mean():.3g}")
