"""A complete DQN with Retrace in PyTorch: it learns CartPole in about a minute on one core.

    python examples/06_dqn_in_torch.py --seed 0

Retrace learns from windows of steps. The target of a step contains the TD errors of the steps after it, each weighted
by the product of γ·min(1, π/μ) over the actions in between. μ is the policy that acted, π the one that is learned.

Which π? With a fixed π you learn Q^π. For control, π must become greedy in the current Q (Theorems 2 and 3). It need
not be greedy from the start: a greedy π gives exploratory actions probability 0, so each of them cuts the trace. The
paper takes the current exploration policy (Appendix F), and so does this script: π is ε-greedy in the current Q, with
the current ε. Traces stay long, and π becomes greedier as ε falls, here to 0.05. The evaluation is greedy.
"""

import argparse
import copy
from typing import Any

import gymnasium
import numpy as np
import torch

import offtrace as ot

NUM_ENVS = 8
WINDOW, NUM_WINDOWS = 16, 16  # steps of a window, and windows of an update
TARGET_PERIOD = 100  # updates between two copies of the network to the target network
STEP_SIZE, GAMMA = 2e-3, 0.99

# One row per environment and step. μ(a|x) is stored when a is drawn: later the network is another one.
ROW = [("observation", "f4", 4), ("a", "i8"), ("mu_a", "f4"), ("r", "f4"), ("terminated", "?"), ("truncated", "?")]


def sample(rows: np.ndarray, t: int, autoreset: Any, rng: np.random.Generator) -> tuple[np.ndarray, dict]:
    """Return windows of the rows before t: observations (n + 1, B, …), and arguments of `ot.targets`, (n, B)."""
    env = rng.integers(NUM_ENVS, size=NUM_WINDOWS)
    start = rng.integers(1, t - WINDOW + 1, size=NUM_WINDOWS)
    window = rows[start + np.arange(-1, WINDOW + 1)[:, None], env]  # the row before, n steps, the last state
    before, steps = window[0], window[1:-1]
    flags = ot.flags_from_gymnasium(
        terminated=steps["terminated"],
        truncated=steps["truncated"],
        ended_before=before["terminated"] | before["truncated"],  # then the first row of the window is a dummy row
        gamma=np.float32(GAMMA),
        autoreset=autoreset,
    )
    return window["observation"][1:], {name: steps[name] for name in ("a", "r", "mu_a")} | flags._asdict()


def loss(network: torch.nn.Module, target_network: torch.nn.Module, epsilon: float, obs: Any, steps: dict) -> Any:
    """Return the Huber loss between Q(x, a) and its Retrace target, over the real steps."""
    obs = torch.tensor(obs)
    steps = {name: torch.tensor(values) for name, values in steps.items()}
    q = network(obs)
    with torch.no_grad():
        pi = ot.policies.epsilon_greedy(q, epsilon)
        target = ot.targets(q=target_network(obs), pi=pi, **steps, trace=ot.Retrace(1.0))
    q_a = q[:-1].gather(-1, steps["a"].unsqueeze(-1)).squeeze(-1)
    return torch.nn.functional.smooth_l1_loss(q_a[steps["mask"]], target[steps["mask"]])


@torch.no_grad()
def greedy_actions(network: torch.nn.Module, observation: np.ndarray) -> np.ndarray:
    return network(torch.tensor(observation)).argmax(-1).numpy()


def evaluate(network: torch.nn.Module, seed: int, num_episodes: int = 100) -> float:
    """Return the mean return of greedy episodes, one in each environment."""
    envs = gymnasium.make_vec("CartPole-v1", num_envs=num_episodes)
    observation, _ = envs.reset(seed=seed)
    returns, running = np.zeros(num_episodes), np.ones(num_episodes, bool)
    while running.any():
        observation, reward, terminated, truncated, _ = envs.step(greedy_actions(network, observation))
        returns += running * reward
        running &= ~(terminated | truncated)
    return returns.mean()


def main(seed: int, num_steps: int) -> None:
    torch.set_num_threads(1)  # for a network of this size, more threads are slower
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    envs = gymnasium.make_vec("CartPole-v1", num_envs=NUM_ENVS)
    hidden = [torch.nn.Linear(4, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.ReLU()]
    network = torch.nn.Sequential(*hidden, torch.nn.Linear(64, 2))
    target_network = copy.deepcopy(network)
    optimiser = torch.optim.Adam(network.parameters(), lr=STEP_SIZE, fused=True)
    rows = np.zeros((num_steps // NUM_ENVS + 1, NUM_ENVS), np.dtype(ROW, align=True))  # the whole run
    rows["observation"][0], _ = envs.reset(seed=seed)
    returns, finished = np.zeros(NUM_ENVS), []  # of the episodes that run, and of those that ended
    for t in range(len(rows) - 1):
        left = 1 - t / len(rows)  # of the run: from 1 to 0, and the step size with it
        epsilon = max(0.05, 1 - 5 * (1 - left))  # falls from 1 during a fifth of the run
        greedy = greedy_actions(network, rows["observation"][t])
        action = np.where(rng.random(NUM_ENVS) < epsilon, rng.integers(2, size=NUM_ENVS), greedy)
        rows["a"][t] = action
        rows["mu_a"][t] = epsilon / 2 + (1 - epsilon) * (action == greedy)
        rows["observation"][t + 1], reward, terminated, truncated, _ = envs.step(action)
        rows["r"][t], rows["terminated"][t], rows["truncated"][t] = reward, terminated, truncated
        returns += reward
        finished.extend(returns[terminated | truncated])
        returns[terminated | truncated] = 0
        if t >= 100:  # one update per step of all environments
            window = sample(rows, t + 1, envs.metadata["autoreset_mode"], rng)
            optimiser.param_groups[0]["lr"] = STEP_SIZE * left
            optimiser.zero_grad()
            loss(network, target_network, epsilon, *window).backward()
            optimiser.step()
        if t % TARGET_PERIOD == 0:
            target_network.load_state_dict(network.state_dict())
        if t % 1875 == 1874:
            print(f"step {(t + 1) * NUM_ENVS:,}: mean return of recent episodes {np.mean(finished[-20:]):.0f}")
    print(f"mean return of 100 greedy episodes: {evaluate(network, seed + 1):.1f} (500 is the maximum)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--num-steps", type=int, default=150_000, help="environment steps")
    main(**vars(parser.parse_args()))
