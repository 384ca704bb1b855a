"""Learn tabular values from off-policy trajectories, and compare Retrace with Q(λ) for several λ."""

import numpy as np

import offtrace as ot

# A chain with a reward at its left end. The target policy goes right; the behaviour policy is uniform.
mdp = ot.mdp.chain(num_states=6, gamma=0.99, slip=0.02, ends="left", left_reward=1.0)
pi = np.tile([0.02, 0.98], (mdp.num_states, 1))
mu = np.full(mdp.shape, 0.5)
truth = ot.operators.q_pi(mdp, pi)

# Eq. 7 for every λ and ten seeds in one call; the learning curves are arrays with named axes.
sweep = ot.online.sweep(
    mdp,
    traces=["retrace", "tree_backup", "q_lambda"],
    lambdas=[0.0, 0.5, 0.9, 1.0],
    step_sizes=[ot.online.StepSize(power=0.7)],  # visits^-0.7
    seeds=range(10),
    target=pi,
    behaviour=mu,
    truth=truth,
    num_episodes=5000,
)
print(f"largest error of Q after 5,000 trajectories, mean of ten seeds (max |Q^π| is {abs(truth).max():.2f}):")
print(f"{'λ':>14}" + "".join(f"{x:>10g}" for x in sweep.axes["lambda_"]))
for name in sweep.axes["trace"]:
    errors = sweep.select(trace=name, step_size=sweep.axes["step_size"][0]).max_error[..., -1].mean(-1)
    print(f"{name:>14}" + "".join(f"{x:>10.2g}" for x in errors))

# The reason: the spectral radius of the exact operator.
table = ot.analyze(mdp, pi=pi, mu=mu, traces=["retrace", "q_lambda"], lambdas=[0.5, 0.9, 1.0])
print("\nspectral radius of R (above 1 it diverges):")
for row in table:
    print(f"  {row.label:14} {row.radius:8.3f}  {row.verdict}")

# Control: trajectories can be stored and replayed later.
memory = ot.online.collect(mdp, mu=mu, num_episodes=3000, seed=1)
learned = ot.online.control(memory, trace=ot.Retrace(0.9), order="random", num_episodes=20_000)
q_star = ot.operators.q_star(mdp)
print(f"\nQ* from {len(memory):,} stored trajectories: largest error {abs(learned.q - q_star).max():.3f}")
