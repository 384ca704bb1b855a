"""Rules for single fields of a spec; `settings.py` checks what must fit together."""

import difflib
from collections.abc import Callable
from typing import Any

EXPLORATIONS = ("linear", "switching")
WHOLE = {
    "seed": 0,
    "num_steps": 1,
    "num_actors": 1,
    "window": 1,
    "num_windows": 1,
    "steps_per_update": 1,
    "replay_size": 1,
    "fill": 1,
    "annealing_steps": 1,
    "epsilon_steps": 1,
    "random_action_steps": 1,
    "target_period": 1,
    "tick_steps": 1,
    "evaluation_ticks": 0,
    "evaluation_episodes": 1,
    "evaluation_steps": 1,
}
"""Whole numbers, each with its smallest value."""
MOST = 2**31 - 1
"""The largest whole number: counts have 32 bits."""
MOST_RANDOM_STEPS = 10_000
"""The largest `random_action_steps`: their probabilities are a table in the program."""
LARGEST = 3.4e38
SMALLEST = 1.2e-38
"""The range of positive numbers in float32."""
IN_FLOAT32 = f"from {SMALLEST} to {LARGEST}, the range of float32"
SHARES = ("lambda_", "gamma", "epsilon", "target_epsilon", "evaluation_epsilon")
POSITIVE = ("step_size", "regularisation", "beta", "clamp", "max_gradient", "reward_clamp")
OPTIONAL = ("clamp", "max_gradient", "reward_clamp", "target_epsilon", "annealing_steps")
"""Fields where None is a value. In other fields it is an open choice, which a plan must not have."""
SWITCHES = ("anneal", "double")
CHOICES = {
    "runtime": ("synchronous", "asynchronous"),
    "exploration": EXPLORATIONS,
    "optimiser": ("adam", "rmsprop"),
    "target_policy": ("exploration", "greedy", "softmax"),
    "network": ("auto", "mlp", "minatar", "dqn"),
    "precision": ("float32", "bfloat16"),
}


def broken_rule(name: str, value: Any) -> str:
    """Return the rule that a value breaks, or ""."""
    if name in CHOICES and value not in CHOICES[name]:
        rule = f"one of {', '.join(CHOICES[name])}"
        close = difflib.get_close_matches(str(value), CHOICES[name], n=1)
        if close:
            rule += f" (did you mean {close[0]}?)"
        return rule
    if name in WHOLE and not _is_whole(value, WHOLE[name]):
        return f"a whole number of at least {WHOLE[name]} and under 2³¹"
    if name == "random_action_steps" and value > MOST_RANDOM_STEPS:
        return f"at most {MOST_RANDOM_STEPS:,}"
    if name in SHARES and not (_is_number(value) and 0 <= value <= 1):
        return "in [0, 1]"
    if name in POSITIVE and not _is_positive(value):
        return f"a finite number above 0, {IN_FLOAT32}"
    if name == "hidden_sizes" and not (value and _all(value, lambda size: _is_whole(size, 1))):
        return "whole numbers of at least 1 and under 2³¹"
    if name == "observation_scale" and not _all(value, _is_positive):
        return f"finite numbers above 0, one for each entry of an observation, {IN_FLOAT32}"
    if name in SWITCHES and not isinstance(value, bool):
        return "True or False"
    if name in ("trace_source", "trace_title") and not isinstance(value, str):
        return "a text"
    if name in ("options", "trace_options") and not (isinstance(value, dict) and all(map(_is_option, value.items()))):
        return "a dict from names to numbers, strings or booleans"
    if name == "options" and "allow_import" in value:
        return "without `allow_import`, as a module that you name is imported"
    return ""


def _is_option(option: tuple[Any, Any]) -> bool:
    name, value = option
    return isinstance(name, str) and isinstance(value, bool | int | float | str) and value == value


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= MOST


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


def _is_positive(value: Any) -> bool:
    return _is_number(value) and SMALLEST <= value <= LARGEST


def _all(values: Any, rule: Callable[[Any], bool]) -> bool:
    return isinstance(values, tuple) and all(map(rule, values))
