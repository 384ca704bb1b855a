"""Use targets in your own training loop: learn the values of one policy from windows of another."""

import torch

import offtrace as ot

torch.manual_seed(0)
num_states, num_actions, n, batch, gamma = 8, 2, 16, 32, 0.9


def collect() -> dict[str, torch.Tensor]:
    """Collect windows on a ring of states: action 1 moves, action 0 stays, a full round gives 1. μ is uniform."""
    x = torch.randint(num_states, (batch,))
    states, actions, rewards = [x], [], []
    for _ in range(n):
        a = torch.randint(num_actions, (batch,))
        rewards.append(((x == num_states - 1) & (a == 1)).float())
        x = (x + a) % num_states
        actions.append(a)
        states.append(x)
    return {"x": torch.stack(states), "a": torch.stack(actions), "r": torch.stack(rewards)}


q_table = torch.nn.Embedding(num_states, num_actions)
optimiser = torch.optim.Adam(q_table.parameters(), lr=0.05)
pi = torch.tensor([0.1, 0.9]).expand(n + 1, batch, num_actions)  # moves most of the time
for _ in range(300):
    window = collect()
    q = q_table(window["x"])
    q_a = q[:-1].gather(-1, window["a"].unsqueeze(-1)).squeeze(-1)
    target = ot.targets(
        q=q,
        pi=pi,
        a=window["a"],
        r=window["r"],
        discount=torch.full((n, batch), gamma),
        mu_a=torch.full((n, batch), 1 / num_actions),
        trace=ot.Retrace(1.0),
    )  # has no gradient
    loss = ((target - q_a) ** 2).mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()

# V^π in closed form: (I − γ P^π)^{-1} r^π
transition = 0.9 * torch.roll(torch.eye(num_states), 1, 1) + 0.1 * torch.eye(num_states)
reward = torch.zeros(num_states)
reward[-1] = 0.9
exact = torch.linalg.solve(torch.eye(num_states) - gamma * transition, reward)
learned = (q_table.weight * pi[0, :1]).sum(-1).detach()
print(f"largest error of V^π after 300 updates: {(learned - exact).abs().max():.4f} of {exact.max():.2f}")
