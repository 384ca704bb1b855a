"""Is it safe to learn about one policy from another's data, and which trace gets there with the fewest samples?"""

import numpy as np

import offtrace as ot

# A corridor of ten rooms; walking off its right end pays 1. π walks right, μ does not care.
mdp = ot.mdp.chain(num_states=10, gamma=0.9, slip=0.1)
pi = ot.policies.epsilon_greedy(ot.operators.q_star(mdp), 0.1)
mu = np.full(mdp.shape, 0.5)

analysis = ot.analyze(mdp, pi=pi, mu=mu, lambdas=[0.5, 1.0])
print(analysis)

# The table says that Q(λ) diverges and that Retrace does not. Iterate both, exactly, and see.
q_pi = ot.operators.q_pi(mdp, pi)
print("\nlargest error after so many steps of R:")
for trace in (ot.QLambda(1.0), ot.Retrace(1.0)):
    row = analysis.row(trace.name, trace.lambda_)
    q, errors = np.zeros(mdp.shape), []
    for _ in range(30):
        q = ot.operators.general_operator(mdp, q, pi=pi, mu=mu, trace=trace)
        errors.append(abs(q - q_pi).max())
    shown = ", ".join(f"{k}: {errors[k - 1]:.2g}" for k in (1, 10, 20, 30))
    print(f"  {row.label:12} {row.verdict:10} ρ(A) = {row.radius:.3f}   {shown}")

# And how sure can a sampled target be? Its variance is known without drawing a sample.
for trace in (ot.Retrace(1.0), ot.ImportanceSampling(1.0)):
    moments = ot.operators.correction_moments(mdp, np.zeros(mdp.shape), pi=pi, mu=mu, trace=trace)
    print(f"  {trace.name:20} γ²P^(c²μ) has radius {moments.radius:.3f}, variance {moments.variance.mean():.3g}")
