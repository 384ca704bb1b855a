"""The quantities of a window that functions take, by kind, and the kinds that a parameter's name may mean."""

import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from offtrace.doctor.recursion import coefficients
from offtrace.doctor.windows import GoldenWindow


def _log(rows: Any) -> Any:
    """Return logarithms. That of 0 is finite, as from a network: e^-80 is 0 in any sum."""
    if isinstance(rows, tuple):
        return tuple(_log(row) for row in rows)
    return math.log(rows) if rows else -80.0


def _logits(rows: Any) -> Any:
    """Return logarithms up to a constant per row, as a network gives them."""
    return tuple(tuple(x + 0.25 * (t + 1) for x in row) for t, row in enumerate(_log(rows)))


def _ratio(w: GoldenWindow) -> Any:
    return tuple(p / m for p, m in zip(w.pi_a, w.mu_a, strict=True))


def _ratio_all(w: GoldenWindow) -> Any:
    return tuple(tuple(p / m for p, m in zip(x, y, strict=True)) for x, y in zip(w.pi, w.mu, strict=True))


def _done(w: GoldenWindow) -> Any:
    return tuple(a or b for a, b in zip(w.terminated, w.truncated, strict=True))


def _discount(w: GoldenWindow) -> Any:
    return tuple(0.0 if end else w.gamma for end in w.terminated)


def _not_done(w: GoldenWindow) -> Any:
    return tuple(0.0 if end else 1.0 for end in w.terminated)


class Quantity(NamedTuple):
    """One kind of argument: its rows in a window, their number, and its title."""

    rows: Callable[[GoldenWindow], Any]
    group: str
    """"scalar"; "state", "policy", "taken" with n+1 rows; "step", "flag" with n rows; "next" with n
    rows, of the true successor; "last", the state after the window."""
    title: str


QUANTITIES: dict[str, Quantity] = {
    "q": Quantity(lambda w: w.q, "state", "Q(x_t, ·)"),
    "v": Quantity(lambda w: w.v, "state", "E_π Q(x_t, ·)"),
    "pi": Quantity(lambda w: w.pi, "policy", "π(·|x_t)"),
    "mu": Quantity(lambda w: w.mu, "policy", "μ(·|x_t)"),
    "log_pi": Quantity(lambda w: _log(w.pi), "policy", "log π(·|x_t)"),
    "log_mu": Quantity(lambda w: _log(w.mu), "policy", "log μ(·|x_t)"),
    "logits_pi": Quantity(lambda w: _logits(w.pi), "policy", "logits of π(·|x_t)"),
    "logits_mu": Quantity(lambda w: _logits(w.mu), "policy", "logits of μ(·|x_t)"),
    "ratio_all": Quantity(_ratio_all, "policy", "π(·|x_t) / μ(·|x_t)"),
    "a": Quantity(lambda w: w.a, "taken", "a_t"),
    "q_a": Quantity(lambda w: w.q_a, "taken", "Q(x_t, a_t)"),
    "pi_a": Quantity(lambda w: w.pi_a, "taken", "π(a_t|x_t)"),
    "mu_a": Quantity(lambda w: w.mu_a, "taken", "μ(a_t|x_t)"),
    "log_pi_a": Quantity(lambda w: _log(w.pi_a), "taken", "log π(a_t|x_t)"),
    "log_mu_a": Quantity(lambda w: _log(w.mu_a), "taken", "log μ(a_t|x_t)"),
    "ratio": Quantity(_ratio, "taken", "π(a_t|x_t) / μ(a_t|x_t)"),
    "log_ratio": Quantity(lambda w: _log(_ratio(w)), "taken", "log π(a_t|x_t) / μ(a_t|x_t)"),
    "c": Quantity(lambda w: coefficients(w, "retrace", w.lambda_), "taken", "c_t of Retrace"),
    "r": Quantity(lambda w: w.r, "step", "r_t"),
    "discount": Quantity(_discount, "step", "γ, 0 where terminated"),
    "not_done": Quantity(_not_done, "step", "1 − terminated"),
    "terminated": Quantity(lambda w: w.terminated, "flag", "terminated"),
    "truncated": Quantity(lambda w: w.truncated, "flag", "truncated"),
    "done": Quantity(_done, "flag", "end of an episode"),
    "reset": Quantity(lambda w: w.starts, "flag", "row t starts an episode"),
    "mask": Quantity(lambda w: w.real, "flag", "row t is a real step"),
    "next_q": Quantity(lambda w: w.next_q, "next", "Q(x_{t+1}, ·)"),
    "next_pi": Quantity(lambda w: w.next_pi, "next", "π(·|x_{t+1})"),
    "next_v": Quantity(lambda w: w.next_v, "next", "E_π Q(x_{t+1}, ·)"),
    "next_a": Quantity(lambda w: w.a[1:], "next", "a_{t+1}"),
    "last_v": Quantity(lambda w: w.next_v[-1], "last", "E_π Q(x_n, ·)"),
    "last_q": Quantity(lambda w: w.next_q[-1], "last", "Q(x_n, ·)"),
    "q_online": Quantity(lambda w: w.online.q, "state", "Q(x_t, ·) of the online network"),
    "q_a_online": Quantity(lambda w: w.online.q_a, "taken", "Q(x_t, a_t) of the online network"),
    "next_q_online": Quantity(lambda w: w.online.next_q, "next", "Q(x_{t+1}, ·) of the online network"),
    "v_online": Quantity(lambda w: w.online.v, "state", "E_π Q(x_t, ·) of the online network"),
    "next_v_online": Quantity(lambda w: w.online.next_v, "next", "E_π Q(x_{t+1}, ·) of the online network"),
    "gamma": Quantity(lambda w: w.gamma, "scalar", "γ"),
    "lambda_": Quantity(lambda w: w.lambda_, "scalar", "λ"),
}

WITH_ACTIONS = {"q", "next_q", "last_q", "next_pi", "ratio_all", "q_online", "next_q_online"} | {
    k for k in QUANTITIES if QUANTITIES[k].group == "policy"
}
ENDS = frozenset({"discount", "not_done", "terminated", "done"})
"""The kinds that tell where an episode ends."""
CUTS = frozenset({"truncated", "done", "reset", "mask"})
"""The kinds that tell that row t+1 does not continue row t."""
TRUE_NEXT = frozenset({"next_q", "next_v"})
"""The kinds that hold the value of a step's true successor."""
ONLINE = {kind for kind in QUANTITIES if kind.endswith("_online")}
"""The kinds that come from the online network, in a function of two; the others come from the target network."""
OF_MU = {"mu", "mu_a", "log_mu", "log_mu_a", "logits_mu", "ratio", "ratio_all", "log_ratio"}


# -- names -----------------------------------------------------------------------------------------

_TARGET = r"(pi|target|policy|new|current|tgt)"
_BEHAVIOUR = r"(mu|behaviou?r|beh|old|actor|sampling|bhv)"
_PROBS = r"(probs?|probabilit(y|ies)|policy|pi|dist)"
_ROLES = ("(online|current|learner|local|live|main)", "(target|tgt|frozen|old|lagged|ema)")
"""Names of the two networks: the one that learns, and the one that lags behind it."""
_NETWORK = rf"({'|'.join(_ROLES)})(_?net(work)?)?"
_A_VALUE = r"((next|expected|chosen|taken)_)*(qs?|q_\w+|q(vals?|values?|a|sa)|vs?|v_\w+|((action|state)_)?values?)"
_LOG = r"(log_?probs?|logps?|logpi|log_?pi|log_?mu|lps?)"

_NAMES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"lambda|lambda_|lam|lmbda|lambd|lamda|lambdas|trace_decay|td_lambda|trace_lambda|retrace_lambda", ("lambda_",)),
    (r"gamma|discount_factor|gam", ("gamma",)),
    (r"discounts?|gammas|pcont|discount_array", ("discount", "gamma")),
    (r"r|rew|rews|rewards?", ("r",)),
    (r"a|acts?|actions?|action_indices|actions_taken", ("a",)),
    (r"next_(a|acts?|actions?)", ("next_a",)),
    (r"terminat(ed|eds|ions?)|terminals?|terms?|is_terminal", ("terminated",)),
    (r"truncat(ed|eds|ions?)|truncs?|time_?outs?|time_limits?", ("truncated",)),
    (r"dones?|d|is_done|episode_ends?|ends?", ("done",)),
    (r"masks?|valid|is_valid", ("not_done", "mask")),
    (
        r"not_?dones?|weights?|continues?|conts?|non_?terminals?|not_?terminals?|alive|not_terminated",
        ("not_done",),
    ),
    (r"resets?|is_first|first|starts?|episode_starts?|begins?", ("reset",)),
    (rf"{_TARGET}(_\w+)?_logits?|logits?_{_TARGET}|logits?|{_TARGET}_(outputs?)", ("logits_pi",)),
    (rf"{_BEHAVIOUR}(_\w+)?_logits?|logits?_{_BEHAVIOUR}|{_BEHAVIOUR}_(outputs?)", ("logits_mu",)),
    (r"log_?rhos?|log_?ratios?|log_is_weights?|log_importance_weights?", ("log_ratio",)),
    (rf"log_?mu_a|{_BEHAVIOUR}_log_?probs?_a", ("log_mu_a",)),
    (r"log_?pi_a", ("log_pi_a",)),
    (rf"log_?mu|{_BEHAVIOUR}(_\w+)?_{_LOG}|{_LOG}_{_BEHAVIOUR}", ("log_mu_a", "log_mu")),
    (rf"log_?pi|{_TARGET}(_\w+)?_{_LOG}|{_LOG}_{_TARGET}|log_?probs?", ("log_pi_a", "log_pi")),
    (r"rhos?|ratios?|is_ratios?|is_weights?|importance_(weights?|ratios?)|iw|isw", ("ratio", "ratio_all")),
    (r"c|cs|c_s|traces?|coefficients?|coefs?|trace_coefficients?", ("c",)),
    (r"pi_a|pi_taken|target_probs?_a|pi_actions?", ("pi_a",)),
    (r"mu_a|mu_taken|behaviou?r_probs?_a|mu_actions?", ("mu_a",)),
    (rf"next_{_TARGET}(_{_PROBS})?|{_TARGET}_next|next_{_PROBS}", ("next_pi",)),
    (rf"mus?|mu_probs?|{_BEHAVIOUR}(_\w+)?_{_PROBS}|(\w+_)?{_PROBS}_{_BEHAVIOUR}|{_BEHAVIOUR}", ("mu", "mu_a")),
    (rf"pis?|pi_probs?|{_TARGET}(_\w+)?_{_PROBS}|(\w+_)?{_PROBS}_{_TARGET}|policy|probs?", ("pi", "pi_a")),
    (r"q_?a|q_?taken|q_?sa|qa|chosen_q\w*|q_?selected|q_?acted|q_?actions?", ("q_a",)),
    (r"expected_(next_)?q\w*|exp_q\w*|next_v\w*|v_?next|next_(state_)?values?|next_expected\w*", ("next_v",)),
    (r"(bootstrap|last|final)_?(v|values?|state_values?)", ("last_v", "next_v")),
    (r"(bootstrap|last|final)_?q\w*", ("last_q",)),
    (r"next_q\w*|q_?next\w*|next_action_values|next_target_q\w*", ("next_q", "next_v")),
    (r"q|qs|q_?vals?|q_?values?(_all)?|action_values?|q_all|q_?(target|online)s?|target_qs?", ("q", "q_a")),
    (r"v|vs|v_?preds?|v_?values?|values?|state_values?|baselines?", ("v",)),
)


class Meaning(NamedTuple):
    """The kinds that one parameter may be given, most likely first, and the row they start in."""

    kinds: tuple[str, ...]
    start: int


def meanings(names: list[str]) -> list[dict[str, Meaning | None]]:
    """Return what the parameter names may mean together, likeliest first; None for an unknown name.

    Names follow rlax if one of them ends in `_tm1`: `_t` is then the row after (for rewards and
    discounts, the step that led there). Where everything is called `_t`, both meanings are tried.
    """
    if any(name.endswith("_tm1") for name in names):
        return [_of_two_networks({name: _meaning(name, True) for name in names})]
    plain = _of_two_networks({name: _meaning(name, False) for name in names})
    if sum(name.endswith("_t") for name in names) < 3:
        return [plain]
    return [plain, _of_two_networks({name: _meaning(name, name.endswith("_t")) for name in names})]


def _of_two_networks(known: dict[str, Meaning | None]) -> dict[str, Meaning | None]:
    """Mark the values of the online network, where names tell two networks apart.

    q_online, q_target           the first is the online network's
    q, target_q                  one is the target network's, so the other is the online network's
    q_values, next_q_target      the same
    current_q, next_q            one network: `current` tells when, not which
    """
    values = {name: m for name, m in known.items() if m is not None and m.kinds[0] + "_online" in QUANTITIES}
    online_role, target_role = _ROLES
    target = {name for name in values if _has_role(name, target_role)}
    online = {name for name in values if _has_role(name, online_role)} - target
    others = set(values) - target - online
    if target:
        ahead = {name for name in others if values[name].kinds[0].startswith("next_")}
        online |= others - ahead
        if any(values[name].kinds[0].startswith("next_") for name in target):
            online |= ahead
    elif others:
        online = {name for name in online if "online" in name.lower()}
    else:
        online = set()
    if not online or online == set(values):
        return known
    return {name: _as_online(m) if name in online else m for name, m in known.items()}


def _has_role(name: str, role: str) -> bool:
    return bool(re.search(rf"(^|_){role}(_|$|q|net)", name.lower()))


def _as_online(meaning: Meaning | None) -> Meaning | None:
    if meaning is None:
        return None
    return Meaning(tuple(kind + "_online" for kind in meaning.kinds if kind + "_online" in QUANTITIES), meaning.start)


def _meaning(name: str, shifted: bool) -> Meaning | None:
    """Look up a name. If `shifted`, `_t` means the row after."""
    stem = name.lower().strip("_")
    start = 0
    suffix = re.search(r"_(tm1|tp1|t1|t)$", stem)
    if suffix:
        stem = stem[: suffix.start()]
        if suffix.group(1) in ("tp1", "t1"):
            start = 1
            following = _meaning("next_" + stem, False)
            if following:
                return following
        elif suffix.group(1) == "t" and shifted:
            start = 1
    elif shifted:
        start = 1
    bare = re.sub(rf"(^{_NETWORK}_|_{_NETWORK}(?=_|$))", "", stem)
    if re.fullmatch(_A_VALUE, bare):
        stem = bare
    for pattern, kinds in _NAMES:
        if re.fullmatch(pattern, stem):
            per_step = QUANTITIES[kinds[0]].group in ("scalar", "step", "flag", "next", "last")
            return Meaning(kinds, 0 if per_step else start)
    return None
