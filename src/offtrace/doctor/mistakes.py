"""The known mistakes: what each one is called, how to correct it, and how to reproduce it.

Each entry names changes to the switches of the reference recursion (`offtrace.doctor.recursion`).
To add a mistake, add an entry here. If no switch reaches the term it is made at, add a switch there
and the line that reads it.
"""

from typing import Any, NamedTuple


class Mistake(NamedTuple):
    """One known mistake, and the settings of the reference recursion that make it."""

    name: str
    title: str
    sentence: str
    where: str
    """The term of `EQUATION` that is wrong."""
    remedy: str
    variants: tuple[dict[str, Any], ...]
    """Changes to `Switches`, one per way to make this mistake."""
    published: bool = True
    """True if it was found in published code; the others are similar mistakes that were not."""
    harmless: bool = False
    """True if the result is still right when the effect is small."""
    choice: bool = False
    """True if it may be intended: not Retrace as in the paper, but not an oversight either."""
    needs: str = ""
    """The argument that this mistake requires: "lambda", "two_networks" or nothing."""


EPSILONS = (1e-8, 1e-6, 1e-5, 1e-10, 1e-7, 1e-9, 1e-4, 1e-3, 1e-2, 1e-12)

_ENTRIES = (
    Mistake(
        "c_one_step_early",
        "c is used one step early",
        "The correction of step t+1 is multiplied by c_t, the coefficient of an action already taken.",
        "c_{t+1}",
        "Shift c by one row: step t needs the coefficient of a_{t+1}. The first row of c is not used.",
        ({"c_row": 0},),
    ),
    Mistake(
        "c_one_step_late",
        "c is used one step late",
        "The correction of step t+1 is multiplied by c_{t+2}, the coefficient of the action after it.",
        "c_{t+1}",
        "Shift c back by one row: step t needs the coefficient of a_{t+1}.",
        tuple({"c_row": 2, "c_beyond": edge} for edge in ("drawn", "zero", "one", "last")),
    ),
    Mistake(
        "first_ratio_used",
        "the first action's ratio is used",
        "The product of the traces starts at i = t, so the correction of step t is multiplied by its own c_t.",
        "c_{t+1}",
        "Start the product at i = t+1: a_t was taken already, and its own TD error counts in full.",
        ({"own_ratio": True},),
    ),
    Mistake(
        "policy_of_wrong_state",
        "π of the wrong state weights Q",
        "π(·|x_t) weights Q(x_{t+1}, ·): the policy of one state is applied to the values of the next.",
        "E_π Q(x_{t+1},·)",
        "Weight Q(x_{t+1}, ·) with π(·|x_{t+1}). The function then also needs π in the state after the window.",
        ({"policy_row": 0},),
    ),
    Mistake(
        "expectation_missing",
        "the expectation over π is missing",
        "Q(x_{t+1}, a_{t+1}) is used in place of the expectation over π, as in Sarsa.",
        "E_π Q(x_{t+1},·)",
        "Use Σ_a π(a|x_{t+1}) Q(x_{t+1}, a). The action a_{t+1} was drawn from μ, not from π.",
        ({"backup": "taken"}, {"backup": "taken_inside"}),
    ),
    Mistake(
        "expectation_is_max",
        "a maximum replaces the expectation over π",
        "max_a Q(x_{t+1}, a) is used in place of the expectation over π.",
        "E_π Q(x_{t+1},·)",
        "Use Σ_a π(a|x_{t+1}) Q(x_{t+1}, a). The maximum is right only if π is greedy in this same Q.",
        ({"backup": "max"},),
    ),
    Mistake(
        "expectation_under_mu",
        "the expectation is under μ, not under π",
        "μ(·|x_{t+1}) weights Q(x_{t+1}, ·), so the target evaluates the behaviour policy, not π.",
        "E_π Q(x_{t+1},·)",
        "Use Σ_a π(a|x_{t+1}) Q(x_{t+1}, a).",
        ({"backup": "under_mu"},),
        published=False,
    ),
    Mistake(
        "baseline_is_expectation",
        "the wrong value is subtracted from G_{t+1}",
        "The correction passed to step t is G_{t+1} − E_π Q(x_{t+1}, ·), not G_{t+1} − Q(x_{t+1}, a_{t+1}).",
        "Q(x_{t+1},a_{t+1})",
        "Subtract the value of the action that was taken.",
        ({"baseline": "expected"},),
        published=False,
    ),
    Mistake(
        "baseline_missing",
        "nothing is subtracted from G_{t+1}",
        "Nothing is subtracted from G_{t+1}, so the bootstrap and the later return are both counted.",
        "Q(x_{t+1},a_{t+1})",
        "Pass back the correction G_{t+1} − Q(x_{t+1}, a_{t+1}), not the return itself.",
        ({"baseline": "nothing"},),
        published=False,
    ),
    Mistake(
        "ratio_inverted",
        "the ratio is inverted",
        "The ratio is μ/π, not π/μ: traces are cut where π takes the action more often than μ, "
        "and kept where it takes it less often.",
        "c_{t+1}",
        "Divide π by μ (with log-probabilities: log π − log μ).",
        ({"ratio": "inverted"},),
        published=False,
    ),
    Mistake(
        "ratio_normalised",
        "the ratio is normalised",
        "π/μ is divided by its mean, sum or maximum over the window before it is clipped, as in "
        "weighted importance sampling. c can then exceed π/μ, which Theorem 1 does not cover.",
        "c_{t+1}",
        "Clip π/μ itself, without normalising it.",
        tuple({"ratio": over} for over in ("mean", "sum", "largest")),
        published=False,
    ),
    Mistake(
        "clip_not_at_one",
        "the ratio is not clipped at 1",
        "The ratio is clipped at a c̄ other than 1. Theorem 1 still holds, since c ≤ π/μ, but "
        "Retrace clips at 1: with a larger c̄ the variance grows with each step of the product, "
        "with a smaller one traces fade even on-policy.",
        "c_{t+1}",
        "Use min(1, π/μ), unless this is intended.",
        tuple({"clip": clip} for clip in (2.0, 10.0, 5.0, 1.5, 3.0, 0.5, 1.2, 4.0)),
        published=False,
        choice=True,
    ),
    Mistake(
        "lambda_twice",
        "λ is applied twice",
        "λ is applied twice, so the trace decays with λ².",
        "c_{t+1}",
        "Multiply by λ in c or in the recursion, not in both.",
        ({"lambda_power": 2},),
        needs="lambda",
    ),
    Mistake(
        "lambda_left_out",
        "λ is left out",
        "The function takes λ as an argument and does not use it.",
        "c_{t+1}",
        "Multiply c by λ.",
        ({"lambda_power": 0},),
        needs="lambda",
    ),
    Mistake(
        "epsilon_added_to_mu",
        "an epsilon is added to μ",
        "A small number is added to μ, which biases the ratio where μ is small.",
        "c_{t+1}",
        "Divide by μ itself. μ of an action that was taken is above 0; if it is 0, the logged data are wrong.",
        tuple({"epsilon": epsilon} for epsilon in EPSILONS),
        harmless=True,
    ),
    Mistake(
        "truncation_is_termination",
        "truncation is treated as termination",
        "A truncated step is treated as a terminated one, so the value of the last state is lost.",
        "γ_t",
        "Set the discount to 0 only where the step terminated. At a truncated step, only cut the trace.",
        ({"truncation_terminates": True},),
    ),
    Mistake(
        "bootstrap_from_next_episode",
        "the bootstrap comes from the next episode",
        "At a truncated step the value comes from row t+1, the first state of the next episode.",
        "E_π Q(x_{t+1},·)",
        "Use the value of the state that the truncated step led to (Gymnasium: `final_obs`).",
        ({"true_next": False},),
    ),
    Mistake(
        "trace_not_cut",
        "the trace is not cut at the end of an episode",
        "The trace is not cut where an episode ends, so corrections of the next episode reach back into it.",
        "c_{t+1}",
        "Set c to 0 in the first row of an episode, or multiply the correction passed to step t by 1 − done_t.",
        ({"cut": "terminations"}, {"cut": "nowhere"}),
    ),
    Mistake(
        "reward_one_step_early",
        "rewards are read one step early",
        "Step t gets r_{t+1}, the reward of the step after it.",
        "r_t",
        "Shift the rewards by one row: r_t is the reward for a_t.",
        tuple({"reward_row": 1, "beyond": edge} for edge in ("zero", "wrap", "repeat")),
    ),
    Mistake(
        "reward_one_step_late",
        "rewards are read one step late",
        "Step t gets r_{t−1}, the reward of the step before it.",
        "r_t",
        "Shift the rewards by one row: r_t is the reward for a_t.",
        tuple({"reward_row": -1, "beyond": edge} for edge in ("zero", "wrap", "repeat")),
        published=False,
    ),
    Mistake(
        "discount_one_step_early",
        "discounts are read one step early",
        "Step t is discounted by γ_{t+1}, so an end takes effect one step before it happens.",
        "γ_t",
        "Shift the discounts (or the done flags) by one row: γ_t is 0 where step t itself terminated.",
        tuple({"discount_row": 1, "beyond": edge} for edge in ("gamma", "zero", "wrap", "repeat")),
    ),
    Mistake(
        "discount_one_step_late",
        "discounts are read one step late",
        "Step t is discounted by γ_{t−1}, so an end takes effect one step after it happened.",
        "γ_t",
        "Shift the discounts (or the done flags) by one row: γ_t is 0 where step t itself terminated.",
        tuple({"discount_row": -1, "beyond": edge} for edge in ("gamma", "zero", "wrap", "repeat")),
        published=False,
    ),
    Mistake(
        "last_done_ignored",
        "the last step's done is never applied",
        "The window's last step bootstraps even where it terminated.",
        "γ_t",
        "Apply the last step's done flag to the bootstrap of the whole window.",
        ({"last_done": False},),
    ),
    Mistake(
        "seed_of_wrong_state",
        "the backward pass starts from the wrong value",
        "The backward pass starts from the wrong value: the window's last step must bootstrap from E_π Q(x_n, ·).",
        "E_π Q(x_{t+1},·)",
        "Start with r_{n−1} + γ_{n−1} E_π Q(x_n, ·), where x_n is the state after the last action.",
        ({"seed": "previous"}, {"seed": "taken"}, {"seed": "previous_taken"}, {"seed": "extra"}),
    ),
    Mistake(
        "no_bootstrap",
        "the end of the window has no bootstrap",
        "The window's last step does not bootstrap at all, as if every window ended an episode.",
        "E_π Q(x_{t+1},·)",
        "Add γ_{n−1} E_π Q(x_n, ·) to the last reward, unless the step terminated.",
        ({"seed": "zero"},),
        published=False,
    ),
    Mistake(
        "td_errors_clamped",
        "each TD error is clamped",
        "Each TD error is clamped to [−1, 1] before the sum. The paper clamps the sum, which is "
        "the whole correction of a step (App. F). For a one-step target the two are the same.",
        "r_t",
        "Clamp the correction G_t − Q(x_t, a_t), after the recursion.",
        ({"clamp_td": True},),
        published=False,
    ),
    Mistake(
        "rewards_clamped",
        "rewards are clamped",
        "Rewards are clamped to [−1, 1] inside the function. The paper clamps rewards too (App. "
        "F), but that belongs in the environment: a return function should not change the rewards "
        "it is given.",
        "r_t",
        "Clamp rewards in the environment, unless this is intended.",
        ({"clamp_reward": True},),
        published=False,
        choice=True,
    ),
    Mistake(
        "networks_swapped",
        "the online and the target network are swapped",
        "The value of x_{t+1} comes from the online network. It must come from the target "
        "network; the error is taken against the online network's Q(x_t, a_t).",
        "E_π Q(x_{t+1},·)",
        "Use E_π Q(x_{t+1}, ·) of the target network and Q(x_t, a_t) of the online network.",
        tuple(
            {"backup_online": True, "baseline_online": baseline, "error_online": error}
            for error in (True, False)
            for baseline in (True, False)
        ),
        published=False,
        needs="two_networks",
    ),
    Mistake(
        "error_of_target_network",
        "the error uses the target network",
        "The error is G_t minus the target network's Q(x_t, a_t), which is not the value being learned.",
        "r_t",
        "Subtract the online network's Q(x_t, a_t).",
        ({"error_online": False},),
        published=False,
        needs="two_networks",
    ),
)

MISTAKES: dict[str, Mistake] = {entry.name: entry for entry in _ENTRIES}
"""The known mistakes by name."""
