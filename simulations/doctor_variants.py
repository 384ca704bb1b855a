"""Runs the doctor on wrong implementations of Retrace that its list has no entry for, and on
correct ones.

    python simulations/doctor_variants.py                  every function, its mistake and its verdict
    python simulations/doctor_variants.py forward_loop     the full verdict on one of them

The functions use NumPy, PyTorch and JAX; loops, scans and sums; one stream, time-major and
batch-major layouts. WRONG, UNSEEN and LAST map functions to their mistakes. UNSEEN was written
after the doctor had been improved on WRONG, and LAST after it had been improved on UNSEEN. RIGHT
holds correct functions. The verdicts are in docs/doctor.md.
"""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from offtrace import doctor

WRONG: dict[Callable[..., Any], str] = {}
UNSEEN: dict[Callable[..., Any], str] = {}
LAST: dict[Callable[..., Any], str] = {}
RIGHT: list[Callable[..., Any]] = []


Function = Callable[..., Any]
Decorator = Callable[[Function], Function]


def _adds_to(group: dict[Function, str]) -> Callable[[str], Decorator]:
    """Return a decorator factory that adds a function and its mistake to a group."""

    def with_mistake(mistake: str) -> Decorator:
        def keep(fn: Function) -> Function:
            group[fn] = mistake
            return fn

        return keep

    return with_mistake


wrong = _adds_to(WRONG)
unseen = _adds_to(UNSEEN)
last = _adds_to(LAST)


def right(fn: Function) -> Function:
    RIGHT.append(fn)
    return fn


def pick(x, a):
    return np.take_along_axis(x[: len(a)], a[:, None], 1)[:, 0]


def backwards(td, carry):
    """td_t + carry_t (td_{t+1} + …)."""
    for t in reversed(range(len(td) - 1)):
        td[t] += carry[t] * td[t + 1]
    return td


# -- wrong in c ------------------------------------------------------------------------------------


@wrong("min(λ, π/μ): λ inside the clip")
def lambda_inside_the_clip(q, a, r, discount, pi, mu, lam):
    v, q_a = (pi * q).sum(-1), pick(q, a)
    c = np.minimum(lam, pick(pi, a) / pick(mu, a))
    return q_a + backwards(r + discount * v[1:] - q_a, discount[:-1] * c[1:])


@wrong("min(1, π/μ) to the power λ")
def lambda_as_a_power(q, a, r, discount, pi, mu, lam):
    v, q_a = (pi * q).sum(-1), pick(q, a)
    c = np.minimum(1.0, pick(pi, a) / pick(mu, a)) ** lam
    return q_a + backwards(r + discount * v[1:] - q_a, discount[:-1] * c[1:])


@wrong("log π − log μ clamped at 1 and not at 0: the ratio is clipped at e")
def log_clip_at_one(q, actions, rewards, dones, log_pi, log_mu, gamma, lam):
    import torch

    actions = actions.unsqueeze(-1)
    q_a = q[:, :-1].gather(-1, actions).squeeze(-1)
    log_rho = log_pi[:, :-1].gather(-1, actions).squeeze(-1) - log_mu[:, :-1].gather(-1, actions).squeeze(-1)
    c = lam * log_rho.clamp(max=1.0).exp()
    alive = gamma * (1 - dones.float())
    v = (log_pi.exp() * q).sum(-1)
    acc = torch.zeros_like(rewards[:, 0])
    out = []
    for t in reversed(range(rewards.shape[1])):
        td = rewards[:, t] + alive[:, t] * v[:, t + 1] - q_a[:, t]
        acc = td + alive[:, t] * (c[:, t + 1] if t + 1 < rewards.shape[1] else 0.0) * acc
        out.append(acc + q_a[:, t])
    return torch.stack(out[::-1], 1)


@wrong("the ratio clipped to [0.8, 1.2], as in PPO")
def clipped_as_in_ppo(q, a, r, discount, pi, mu, lam):
    v, q_a = (pi * q).sum(-1), pick(q, a)
    c = lam * np.clip(pick(pi, a) / pick(mu, a), 0.8, 1.2)
    return q_a + backwards(r + discount * v[1:] - q_a, discount[:-1] * c[1:])


@wrong("max(1, π/μ) and not min")
def maximum_for_minimum(q, a, r, discount, pi, mu, lam):
    v, q_a = (pi * q).sum(-1), pick(q, a)
    c = lam * np.maximum(1.0, pick(pi, a) / pick(mu, a))
    return q_a + backwards(r + discount * v[1:] - q_a, discount[:-1] * c[1:])


@wrong("the ratio divided by its mean over the batch and the window")
def normalised_over_the_batch(q, actions, rewards, discounts, pi, mu, lam):
    n = rewards.shape[1]
    of_taken = lambda x: np.take_along_axis(x[:, :n], actions[..., None], -1)[..., 0]  # noqa: E731
    rho = of_taken(pi) / of_taken(mu)
    c = lam * np.minimum(1.0, rho / rho.mean())
    q_a = of_taken(q)
    td = rewards + discounts * (pi * q).sum(-1)[:, 1:] - q_a
    for t in reversed(range(n - 1)):
        td[:, t] += discounts[:, t] * c[:, t + 1] * td[:, t + 1]
    return q_a + td


@wrong("the square root of the ratio")
def square_root(q_a, v, r, discount, rho, lam):
    td = r + discount * v[1:] - q_a
    return backwards(td, discount[:-1] * lam * np.minimum(1.0, np.sqrt(rho[1:])))


@wrong("μ of the step before under π of this one")
def mu_one_row_early(q, a, r, discount, pi, mu, lam):
    v, q_a, pi_a, mu_a = (pi * q).sum(-1), pick(q, a), pick(pi, a), pick(mu, a)
    c = lam * np.minimum(1.0, pi_a[1:] / mu_a[:-1])
    return q_a + backwards(r + discount * v[1:] - q_a, discount[:-1] * c)


@wrong("λ^t for λ: it decays with the row")
def lambda_decays_with_the_row(q, a, r, discount, pi, mu, lam):
    v, q_a = (pi * q).sum(-1), pick(q, a)
    c = lam ** np.arange(len(r)) * np.minimum(1.0, pick(pi, a) / pick(mu, a))
    return q_a + backwards(r + discount * v[1:] - q_a, discount[:-1] * c[1:])


@wrong("π mixed with 5 % of the uniform policy, in c alone")
def mixed_with_uniform(q, a, r, discount, pi, mu, lam):
    v, q_a = (pi * q).sum(-1), pick(q, a)
    pi = 0.95 * pi + 0.05 / pi.shape[-1]
    c = lam * np.minimum(1.0, pick(pi, a) / pick(mu, a))
    return q_a + backwards(r + discount * v[1:] - q_a, discount[:-1] * c[1:])


@wrong("(π + 0.001) / (μ + 0.001)")
def epsilon_in_both(q, a, r, discount, pi, mu, lam):
    v, q_a = (pi * q).sum(-1), pick(q, a)
    c = lam * np.minimum(1.0, (pick(pi, a) + 1e-3) / (pick(mu, a) + 1e-3))
    return q_a + backwards(r + discount * v[1:] - q_a, discount[:-1] * c[1:])


# -- wrong in how it is carried back ---------------------------------------------------------------


@wrong("γ twice: in c and in the recursion")
def discounted_twice(q, actions, rewards, dones, pi, mu, gamma, lam):
    n = rewards.shape[0]
    of_taken = lambda x: np.take_along_axis(x[:n], actions[..., None], -1)[..., 0]  # noqa: E731
    alive = gamma * (1.0 - dones)
    c = gamma * lam * np.minimum(1.0, of_taken(pi) / of_taken(mu))
    q_a = of_taken(q)
    g = rewards + alive * (pi * q).sum(-1)[1:]
    for t in range(n - 2, -1, -1):
        g[t] += alive[t] * c[t + 1] * (g[t + 1] - q_a[t + 1])
    return g


@wrong("no γ in what is carried back")
def carried_without_gamma(q, a, r, terminated, pi, mu, gamma, lam):
    v, q_a = (pi * q).sum(-1), pick(q, a)
    c = lam * np.minimum(1.0, pick(pi, a) / pick(mu, a))
    return q_a + backwards(r + gamma * (1 - terminated) * v[1:] - q_a, (1 - terminated[:-1]) * c[1:])


@wrong("the product starts at the first row of the window (COBS): row t times γ^t c_1 … c_t")
def product_from_the_start(q, a, r, discount, pi, mu, lam):
    v, q_a = (pi * q).sum(-1), pick(q, a)
    c = lam * np.minimum(1.0, pick(pi, a) / pick(mu, a))
    td = r + discount * v[1:] - q_a
    weight = np.cumprod(np.r_[1.0, discount[:-1] * c[1:]])
    return q_a + np.cumsum((weight * td)[::-1])[::-1]


@wrong("the loop runs forwards, so that only the next TD error arrives")
def forward_loop(q, a, r, discount, pi, mu, lam):
    v, q_a = (pi * q).sum(-1), pick(q, a)
    c = lam * np.minimum(1.0, pick(pi, a) / pick(mu, a))
    td = r + discount * v[1:] - q_a
    for t in range(len(r) - 1):
        td[t] += discount[t] * c[t + 1] * td[t + 1]
    return q_a + td


@wrong("the scan runs forwards: corrections come from the past")
def scan_without_reverse(q_a, v, r, discount, rho, lam):
    import jax
    import jax.numpy as jnp

    td = r + discount * v[1:] - q_a
    c = lam * jnp.minimum(1.0, rho)

    def step(carry, row):
        td, factor = row
        carry = td + factor * carry
        return carry, carry

    return jax.lax.scan(step, jnp.zeros_like(td[0]), (td, discount * c))[1]


@wrong("done of the step after cuts the trace; the bootstrap has the right one")
def trace_cut_by_the_next_done(q, a, r, done, pi, mu, gamma, lam):
    v, q_a = (pi * q).sum(-1), pick(q, a)
    c = lam * np.minimum(1.0, pick(pi, a) / pick(mu, a))
    return q_a + backwards(r + gamma * (1 - done) * v[1:] - q_a, gamma * (1 - done[1:]) * c[1:])


@wrong("the correction divided by the length of the window, without App. F's clamp")
def divided_by_the_length(q, a, r, discount, pi, mu, lam):
    v, q_a = (pi * q).sum(-1), pick(q, a)
    c = lam * np.minimum(1.0, pick(pi, a) / pick(mu, a))
    return q_a + backwards(r + discount * v[1:] - q_a, discount[:-1] * c[1:]) / len(r)


@wrong("the whole correction times λ")
def correction_times_lambda(q, a, r, discount, pi, mu, lam):
    v, q_a = (pi * q).sum(-1), pick(q, a)
    c = lam * np.minimum(1.0, pick(pi, a) / pick(mu, a))
    return q_a + lam * backwards(r + discount * v[1:] - q_a, discount[:-1] * c[1:])


@wrong("the answer is in the order of the backward loop: last step first")
def never_turned_round(q, a, r, discount, pi, mu, lam):
    v, q_a = (pi * q).sum(-1), pick(q, a)
    c, acc, out = lam * np.minimum(1.0, pick(pi, a) / pick(mu, a)), 0.0, []
    for t in reversed(range(len(r))):
        acc = r[t] + discount[t] * (v[t + 1] + acc) - q_a[t]
        out.append(acc + q_a[t])
        acc *= c[t]
    return np.array(out)


@wrong("cumulative products divided by each other: 0/0 where c is 0")
def quotients_of_products(q, a, r, pi, mu, gamma, lam):
    v, q_a = (pi * q).sum(-1), pick(q, a)
    c = lam * np.minimum(1.0, pick(pi, a) / pick(mu, a))
    reach = np.cumprod(np.r_[1.0, gamma * c[1:]])
    td = reach * (r + gamma * v[1:] - q_a)
    return q_a + np.cumsum(td[::-1])[::-1] / reach


# -- wrong in values -------------------------------------------------------------------------------


@wrong("the mean of Q over actions, not E_π Q")
def plain_mean(q, a, r, discount, pi, mu, lam):
    v, q_a = q.mean(-1), pick(q, a)
    c = lam * np.minimum(1.0, pick(pi, a) / pick(mu, a))
    return q_a + backwards(r + discount * v[1:] - q_a, discount[:-1] * c[1:])


@wrong("(π Q).mean() for .sum()")
def mean_for_sum(q, actions, rewards, dones, pi, mu, gamma, lam):
    actions = actions[..., None]
    q_a, pi_a, mu_a = (x[:, :-1].gather(-1, actions)[..., 0] for x in (q, pi, mu))
    c = lam * (pi_a / mu_a).clamp(max=1)
    alive = gamma * (1.0 - dones.float())
    td = rewards + alive * (pi * q).mean(-1)[:, 1:] - q_a
    for t in reversed(range(td.shape[1] - 1)):
        td[:, t] += alive[:, t] * c[:, t + 1] * td[:, t + 1]
    return (q_a + td).detach()


@wrong("Q of π's likeliest action for the expectation")
def mode_of_the_policy(q, a, r, discount, pi, mu, lam):
    v, q_a = q[np.arange(len(q)), pi.argmax(-1)], pick(q, a)
    c = lam * np.minimum(1.0, pick(pi, a) / pick(mu, a))
    return q_a + backwards(r + discount * v[1:] - q_a, discount[:-1] * c[1:])


@wrong("softmax(Q) in place of π in the expectation")
def softmax_of_q(q, a, r, discount, pi, mu, lam):
    w = np.exp(q - q.max(-1, keepdims=True))
    v, q_a = (w / w.sum(-1, keepdims=True) * q).sum(-1), pick(q, a)
    c = lam * np.minimum(1.0, pick(pi, a) / pick(mu, a))
    return q_a + backwards(r + discount * v[1:] - q_a, discount[:-1] * c[1:])


@wrong("Q(x_{t+1}, a_t) is subtracted: the action of the step before")
def baseline_of_the_last_action(q, a, r, discount, pi, mu, lam):
    v = (pi * q).sum(-1)
    c = lam * np.minimum(1.0, pick(pi, a) / pick(mu, a))
    g = r + discount * v[1:]
    for t in reversed(range(len(r) - 1)):
        g[t] += discount[t] * c[t + 1] * (g[t + 1] - q[t + 1, a[t]])
    return g


@wrong("the last bootstrap is counted twice")
def last_bootstrap_twice(q, a, r, discount, pi, mu, lam):
    v, q_a = (pi * q).sum(-1), pick(q, a)
    c = lam * np.minimum(1.0, pick(pi, a) / pick(mu, a))
    td = r + discount * v[1:] - q_a
    td[-1] += discount[-1] * v[-1]
    return q_a + backwards(td, discount[:-1] * c[1:])


@wrong("done cuts the trace, but the bootstrap goes on through it")
def bootstrap_through_the_end(q, a, r, done, pi, mu, gamma, lam):
    v, q_a = (pi * q).sum(-1), pick(q, a)
    c = lam * np.minimum(1.0, pick(pi, a) / pick(mu, a))
    return q_a + backwards(r + gamma * v[1:] - q_a, gamma * (1 - done[:-1]) * c[1:])


@wrong("state values throughout: G_t = V(x_t) + Σ γ^k c (r + γ V′ − V)")
def state_values_throughout(q, a, r, discount, pi, mu, lam):
    v = (pi * q).sum(-1)
    c = lam * np.minimum(1.0, pick(pi, a) / pick(mu, a))
    return v[:-1] + backwards(r + discount * v[1:] - v[:-1], discount[:-1] * c[1:])


@wrong("three at once: c_t for c_{t+1}, λ², and the expectation under μ")
def three_at_once(q, a, r, discount, pi, mu, lam):
    v, q_a = (mu * q).sum(-1), pick(q, a)
    c = lam**2 * np.minimum(1.0, pick(pi, a) / pick(mu, a))
    return q_a + backwards(r + discount * v[1:] - q_a, discount[:-1] * c[:-1])


# -- written after the doctor had been improved on those above -------------------------------------


@unseen("min(λ, π/μ), λ = 0.9 inside the function")
def hidden_lambda_inside_the_clip(q, a, r, discount, pi, mu):
    return lambda_inside_the_clip(q, a, r, discount, pi, mu, 0.9)


@unseen("min(λ, π/μ), and only a loss is given back")
def loss_with_lambda_inside_the_clip(q, a, r, discount, pi, mu, lam):
    return np.mean((lambda_inside_the_clip(q, a, r, discount, pi, mu, lam) - pick(q, a)) ** 2)


@unseen("the lower of two networks' Q in the expectation")
def lower_of_two_networks(q_online, q_target, a, r, discount, pi, mu, lam):
    v, q_a = (pi * np.minimum(q_online, q_target)).sum(-1), pick(q_target, a)
    c = lam * np.minimum(1.0, pick(pi, a) / pick(mu, a))
    return q_a + backwards(r + discount * v[1:] - q_a, discount[:-1] * c[1:])


@unseen("the expectation leaves out the action taken")
def expectation_without_the_action(q, a, r, discount, pi, mu, next_a, lam):
    q_a = pick(q, a)
    others = pi[1:] * (np.arange(q.shape[-1]) != next_a[:, None])
    c = lam * np.minimum(1.0, pick(pi, a) / pick(mu, a))
    return q_a + backwards(r + discount * (others * q[1:]).sum(-1) - q_a, discount[:-1] * c[1:])


@unseen("the ratio of the greedy action, not of the one taken")
def ratio_of_the_greedy_action(q, a, r, discount, pi, mu, lam):
    v, q_a, best = (pi * q).sum(-1), pick(q, a), q.argmax(-1)[: len(r)]
    c = lam * np.minimum(1.0, pick(pi, best) / pick(mu, best))
    return q_a + backwards(r + discount * v[1:] - q_a, discount[:-1] * c[1:])


@unseen("c is the clipped product of all ratios since the first row")
def running_product_as_c(q, a, r, discount, pi, mu, lam):
    v, q_a = (pi * q).sum(-1), pick(q, a)
    c = lam * np.minimum(1.0, np.cumprod(pick(pi, a) / pick(mu, a)))
    return q_a + backwards(r + discount * v[1:] - q_a, discount[:-1] * c[1:])


@unseen("rewards of last steps are masked as well")
def masked_reward(q, a, r, done, pi, mu, gamma, lam):
    v, q_a, alive = (pi * q).sum(-1), pick(q, a), 1.0 - done
    c = lam * np.minimum(1.0, pick(pi, a) / pick(mu, a))
    return q_a + backwards(alive * (r + gamma * v[1:]) - q_a, gamma * alive[:-1] * c[1:])


@unseen("γ² in the bootstrap, γ in the trace")
def bootstrap_discounted_twice(q, a, r, discount, pi, mu, lam):
    v, q_a = (pi * q).sum(-1), pick(q, a)
    c = lam * np.minimum(1.0, pick(pi, a) / pick(mu, a))
    return q_a + backwards(r + discount**2 * v[1:] - q_a, discount[:-1] * c[1:])


@unseen("targets with their mean over the window taken off")
def targets_centred(q, a, r, discount, pi, mu, lam):
    g = double_sum(q, a, r, discount, pi, mu, lam)
    return g - g.mean()


@unseen("(1 − λ) of the one-step target and λ of Retrace, which has λ already")
def mixed_with_one_step(q, a, r, discount, pi, mu, lam):
    one_step = r + discount * (pi * q).sum(-1)[1:]
    return (1 - lam) * one_step + lam * double_sum(q, a, r, discount, pi, mu, lam)


@unseen("π at temperature 2 in c")
def tempered_ratio(q, a, r, discount, pi, mu, lam):
    v, q_a = (pi * q).sum(-1), pick(q, a)
    soft = np.sqrt(pi) / np.sqrt(pi).sum(-1, keepdims=True)
    c = lam * np.minimum(1.0, pick(soft, a) / pick(mu, a))
    return q_a + backwards(r + discount * v[1:] - q_a, discount[:-1] * c[1:])


@unseen("reshaped where it should be transposed: streams and steps are mixed")
def reshaped_for_transposed(q, actions, rewards, discounts, pi, mu, lam):
    batch, n = rewards.shape
    of_taken = lambda x: np.take_along_axis(x[:, :n], actions[..., None], -1)[..., 0]  # noqa: E731
    td = (rewards + discounts * (pi * q).sum(-1)[:, 1:] - of_taken(q)).reshape(n, batch)
    c = (lam * np.minimum(1.0, of_taken(pi) / of_taken(mu))).reshape(n, batch)
    carried = discounts.reshape(n, batch)
    for t in reversed(range(n - 1)):
        td[t] += carried[t] * c[t + 1] * td[t + 1]
    return of_taken(q) + td.reshape(batch, n)


# -- written last ----------------------------------------------------------------------------------


@last("rewards times 1 − γ")
def rewards_scaled(q, a, r, discount, pi, mu, gamma, lam):
    return double_sum(q, a, (1 - gamma) * r, discount, pi, mu, lam)


@last("only the window's end bootstraps: E_π Q is missing inside")
def values_missing_inside(q, a, r, discount, pi, mu, lam):
    v, q_a = (pi * q).sum(-1), pick(q, a)
    v[:-1] = 0.0
    c = lam * np.minimum(1.0, pick(pi, a) / pick(mu, a))
    return q_a + backwards(r + discount * v[1:] - q_a, discount[:-1] * c[1:])


@last("the ratio is never below 0.1")
def ratio_from_below(q, a, r, discount, pi, mu, lam):
    v, q_a = (pi * q).sum(-1), pick(q, a)
    c = lam * np.clip(pick(pi, a) / pick(mu, a), 0.1, 1.0)
    return q_a + backwards(r + discount * v[1:] - q_a, discount[:-1] * c[1:])


@last("Q(x_t, a_t) is subtracted from G_{t+1}: the row before")
def baseline_of_the_row_before(q, a, r, discount, pi, mu, lam):
    v = (pi * q).sum(-1)
    c = lam * np.minimum(1.0, pick(pi, a) / pick(mu, a))
    g = r + discount * v[1:]
    for t in reversed(range(len(r) - 1)):
        g[t] += discount[t] * c[t + 1] * (g[t + 1] - q[t, a[t]])
    return g


@last("γ to the power of the row")
def discount_by_row(q, a, r, terminated, pi, mu, gamma, lam):
    return double_sum(q, a, r, gamma ** np.arange(1, len(r) + 1) * (1 - terminated), pi, mu, lam)


@last("tree backup with π of the greedy action: max π for π(a)")
def largest_probability(q, a, r, discount, pi, lam):
    v, q_a = (pi * q).sum(-1), pick(q, a)
    return q_a + backwards(r + discount * v[1:] - q_a, discount[:-1] * lam * pi.max(-1)[1 : len(r)])


# -- right -----------------------------------------------------------------------------------------


@right
def double_sum(q, a, r, discount, pi, mu, lam):
    """The paper's own line."""
    n, v, q_a = len(r), (pi * q).sum(-1), pick(q, a)
    c = lam * np.minimum(1.0, pick(pi, a) / pick(mu, a))
    out = np.zeros(n)
    for t in range(n):
        reach = 1.0
        for s in range(t, n):
            reach *= c[s] if s > t else 1.0
            out[t] += reach * (r[s] + discount[s] * v[s + 1] - q_a[s])
            reach *= discount[s]
    return q_a + out


@right
def matrix_inverse(q, a, r, discount, pi, mu, lam):
    """(I − N)^-1 δ, N one step up."""
    q_a = pick(q, a)
    carry = discount[:-1] * lam * np.minimum(1.0, pick(pi, a) / pick(mu, a))[1:]
    return q_a + np.linalg.solve(np.eye(len(r)) - np.diag(carry, 1), r + discount * (pi * q).sum(-1)[1:] - q_a)


@right
def lower_triangle(q, a, r, discount, pi, mu, lam):
    """A triangle of products, without any division."""
    n, q_a = len(r), pick(q, a)
    step = np.r_[1.0, discount[:-1] * lam * np.minimum(1.0, pick(pi, a) / pick(mu, a))[1:]]
    reach = np.array([[np.prod(step[t + 1 : s + 1]) if s >= t else 0.0 for s in range(n)] for t in range(n)])
    return q_a + reach @ (r + discount * (pi * q).sum(-1)[1:] - q_a)


@right
def torch_batch_major(q, actions, rewards, dones, log_pi, log_mu, gamma, lam):
    import torch

    def of_taken(x):
        return x[:, :-1].gather(-1, actions.unsqueeze(-1)).squeeze(-1)

    c = lam * torch.exp(torch.clamp(of_taken(log_pi) - of_taken(log_mu), max=0.0))
    alive = gamma * torch.logical_not(dones)
    q_a, v = of_taken(q), (log_pi.exp() * q).sum(-1)
    g = torch.empty_like(rewards)
    carried = torch.zeros_like(rewards[:, 0])
    for t in range(rewards.shape[1] - 1, -1, -1):
        g[:, t] = rewards[:, t] + alive[:, t] * (v[:, t + 1] + carried)
        carried = c[:, t] * (g[:, t] - q_a[:, t])
    return g


@right
def torch_module_loss(q_values, target_q_values, actions, rewards, dones, pi_logits, mu_logits, gamma, lam):
    """Two networks, logits, a Huber loss."""
    import torch
    import torch.nn.functional as F

    pi, mu = F.softmax(pi_logits, -1), F.softmax(mu_logits, -1)
    index = actions.unsqueeze(-1)
    of_taken = lambda x: x[:, :-1].gather(-1, index).squeeze(-1)  # noqa: E731
    with torch.no_grad():
        q_a = of_taken(target_q_values)
        td = rewards + gamma * (1 - dones.float()) * (pi * target_q_values).sum(-1)[:, 1:] - q_a
        c = lam * torch.minimum(of_taken(pi) / of_taken(mu), torch.ones_like(q_a))
        for t in reversed(range(td.shape[1] - 1)):
            td[:, t] += gamma * (1 - dones[:, t].float()) * c[:, t + 1] * td[:, t + 1]
    return F.smooth_l1_loss(of_taken(q_values), q_a + td)


@right
def jax_scan(q_tm1, q_t, a_tm1, a_t, r_t, discount_t, pi_t, mu_t, lambda_):
    """rlax's names, a reverse scan."""
    import jax
    import jax.numpy as jnp

    of = lambda x, a: jnp.take_along_axis(x, a[:, None], -1)[:, 0]  # noqa: E731
    n = r_t.shape[0]
    c = lambda_ * jnp.minimum(1.0, of(pi_t[: n - 1], a_t[: n - 1]) / of(mu_t[: n - 1], a_t[: n - 1]))
    following = of(q_t[: n - 1], a_t[: n - 1])
    value = (pi_t * q_t).sum(-1)

    def step(carried, row):
        r, discount, v, c, q_a = row
        g = r + discount * (v + carried)
        return c * (g - q_a), (g,)

    last = r_t[-1] + discount_t[-1] * value[-1]
    rows = (r_t[:-1], discount_t[:-1], value[:-1], c, following)

    def whole(g, row):
        r, discount, v, c, q_a = row
        g = r + discount * (v + c * (g - q_a))
        return g, g

    g = jnp.append(jax.lax.scan(whole, last, rows, reverse=True)[1], last)
    return g - of(q_tm1, a_tm1)


@right
def jax_associative_scan(q_a, v, r, discount, rho, lam):
    import jax
    import jax.numpy as jnp

    td = r + discount * v[1:] - q_a
    carry = jnp.append(discount[:-1] * lam * jnp.minimum(1.0, rho[1:]), 0.0)
    join = lambda x, y: (x[0] * y[0], y[1] + y[0] * x[1])  # noqa: E731
    return q_a + jax.lax.associative_scan(join, (carry, td), reverse=True)[1]


@right
def time_major_with_ends(q, actions, rewards, terminated, truncated, pi, mu_a, next_q, next_pi, gamma, lam):
    """Truncations: the bootstrap is that of the true last state, and the trace is cut."""
    q_a = np.take_along_axis(q[: len(rewards)], actions[..., None], -1)[..., 0]
    pi_a = np.take_along_axis(pi[: len(rewards)], actions[..., None], -1)[..., 0]
    td = rewards + gamma * ~terminated * (next_pi * next_q).sum(-1) - q_a
    going_on = ~(terminated | truncated)
    c = lam * np.minimum(1.0, pi_a / mu_a)
    for t in reversed(range(len(rewards) - 1)):
        td[t] += gamma * going_on[t] * c[t + 1] * td[t + 1]
    return {"targets": q_a + td, "td": td}


@right
def float32_inside(q, a, r, discount, pi, mu, lam):
    q, r, discount, pi, mu = (x.astype(np.float32) for x in (q, r, discount, pi, mu))
    g = double_sum(q, a, r, discount, pi, mu, np.float32(lam))
    return g.astype(np.float64)


@right
def gamma_inside(q, a, r, done, pi, mu):
    """γ and λ are constants of the module."""
    return double_sum(q, a, r, 0.99 * (1.0 - done), pi, mu, 0.95)


@right
def einsum_and_where(q, actions, rewards, dones, pi, mu, gamma, lam):
    """Batch-major; a mask by `where`; one-hot actions."""
    taken = np.eye(q.shape[-1])[actions]
    q_a, pi_a, mu_a = (np.einsum("bta,bta->bt", x[:, :-1], taken) for x in (q, pi, mu))
    v = np.einsum("bta,bta->bt", pi, q)[:, 1:]
    g, ahead = np.zeros_like(rewards), np.zeros(len(rewards))
    for t in reversed(range(rewards.shape[1])):
        g[:, t] = rewards[:, t] + gamma * np.where(dones[:, t], 0.0, v[:, t] + ahead)
        ahead = lam * np.where(pi_a[:, t] < mu_a[:, t], pi_a[:, t] / mu_a[:, t], 1.0) * (g[:, t] - q_a[:, t])
    return 0.5 * np.mean((g - q_a) ** 2)


@right
def lists_of_numbers(q, a, r, discount, pi, mu, lam):
    """Plain Python."""
    g, out = None, []
    for t in range(len(r) - 1, -1, -1):
        value = sum(p * x for p, x in zip(pi[t + 1], q[t + 1], strict=True))
        if g is not None:
            b = a[t + 1]
            value += lam * min(1.0, pi[t + 1][b] / mu[t + 1][b]) * (g - q[t + 1][b])
        g = r[t] + discount[t] * value
        out.insert(0, float(g))
    return out


def name_of(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__name__", "")


def verdict_on(fn: Function) -> doctor.Verdict | str:
    """Return the verdict, or the error."""
    try:
        return doctor.check(fn)
    except ValueError as error:
        return str(error)


def summary(verdict: doctor.Verdict | str) -> str:
    """Return the headline on one line."""
    return " ".join(str(verdict).split("\n\n")[0].split())


def main(names: list[str]) -> None:
    for name in names:
        print(verdict_on(next(fn for fn in (*WRONG, *UNSEEN, *LAST, *RIGHT) if name_of(fn) == name)))
    if names:
        return
    for functions in (WRONG, UNSEEN, LAST):
        print("\n| mistake | verdict |\n|---|---|")
        for fn, mistake in functions.items():
            print(f"| {mistake} | {summary(verdict_on(fn))} |".replace("(·|", "(·\\|"), flush=True)
    print("\n| correct function | verdict |\n|---|---|")
    for fn in RIGHT:
        print(f"| `{name_of(fn)}` | {summary(verdict_on(fn))} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
