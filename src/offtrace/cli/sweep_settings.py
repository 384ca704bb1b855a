"""`--set FIELD=VALUE,…`: the settings that a sweep varies, from text to values."""

import types
import typing
from collections.abc import Sequence
from typing import Any

from offtrace.cli.parsing import MAX_SHOWN

INSTEAD = {
    "env": "Name the environments first: `offtrace sweep ENV …`",
    "trace": "Use `--traces`",
    "lambda_": "Use `--lambdas`",
    "seed": "Use `--num-seeds` and `--first-seed`",
    "options": "Use `--options`",
}
"""Fields that have an option of their own."""
WORDS = {"true": True, "false": False}


def parsed_axes(given: Sequence[str]) -> dict[str, list[Any]]:
    """Return the values of every field, from texts such as `step_size=1e-4,1e-3`.

    Numbers, names, true and false are written as they are, `none` is None, and several sizes or
    factors are joined by x. Parameters of a trace are written as name:value, joined by /.

    >>> parsed_axes(["trace_options=sigma:0.3,sigma:0.7"])
    {'trace_options': [{'sigma': 0.3}, {'sigma': 0.7}]}
    >>> parsed_axes(["step-size=1e-4,1e-3", "hidden_sizes=64x64,128", "anneal=false", "max_gradient=none,1"])
    {'step_size': [0.0001, 0.001], 'hidden_sizes': [(64, 64), (128,)], 'anneal': [False], 'max_gradient': [None, 1.0]}
    """
    from offtrace.agent.spec import TrainSpec
    from offtrace.experiments.spec import check_field

    hints = typing.get_type_hints(TrainSpec)
    axes: dict[str, list[Any]] = {}
    for text in given:
        name, equals, values = text.partition("=")
        name = name.strip().replace("-", "_")
        if name == "lambda":
            name = "lambda_"
        if name in INSTEAD:
            raise ValueError(f"`--set` must not have {name.rstrip('_')!r}. {INSTEAD[name]}.")
        if not equals or not name or not values.strip():
            raise ValueError(f"`--set` must look like `step_size=1e-4,1e-3`; got {_short(text)}.")
        check_field(name, "--set", "options of `offtrace train`")
        if name in axes:
            raise ValueError(f"`--set` must have each field once; got {name!r} twice. Write `{name}=VALUE,VALUE`.")
        kinds = _kinds(hints[name])
        axes[name] = [_value(name, word.strip(), kinds) for word in values.split(",")]
        if name == "trace_options":
            continue  # the traces are not known here
        for value in axes[name]:
            TrainSpec(env="any", **{name: value})  # raises an error that names the field
    return axes


def _kinds(hint: Any) -> tuple[Any, ...]:
    """Return the types that a field may have."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return typing.get_args(hint)
    return (hint,)


def _value(name: str, word: str, kinds: Sequence[Any]) -> Any:
    """Return the value of a word, for a field of these types."""
    if word.lower() == "none" and type(None) in kinds:
        return None
    if bool in kinds:
        if word.lower() in WORDS:
            return WORDS[word.lower()]
        raise ValueError(f"`{name}` must be true or false; got {_short(word)}.")
    if str in kinds:
        return word
    if float in kinds:
        return _number(name, word)
    if int in kinds:
        return _whole(name, word)
    if tuple[float, ...] in kinds:
        return tuple(_number(name, part) for part in word.split("x"))
    if any(typing.get_origin(kind) is tuple for kind in kinds):
        if not all(part.isdecimal() for part in word.split("x")):
            raise ValueError(f"`{name}` must be whole numbers joined by x, such as 64x64; got {_short(word)}.")
        return tuple(map(int, word.split("x")))
    if any(typing.get_origin(kind) is dict for kind in kinds):
        return dict(_pair(name, part) for part in word.split("/"))
    raise ValueError(f"`--set` must not have {name!r}: a text cannot say its value.")


def _pair(name: str, text: str) -> tuple[str, bool | int | float | str]:
    """Return the parameter and the value of a text such as `sigma:0.3`."""
    parameter, colon, word = (part.strip() for part in text.partition(":"))
    if not (parameter and colon and word):
        raise ValueError(f"`{name}` must look like `sigma:0.3`; got {_short(text)}.")
    if word.lower() in WORDS:
        return parameter, WORDS[word.lower()]
    for kind in (int, float):
        try:
            return parameter, kind(word)
        except ValueError:
            continue
    return parameter, word


def _number(name: str, word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise ValueError(f"`{name}` must be a number; got {_short(word)}.") from None


def _whole(name: str, word: str) -> int:
    """Return a whole number, also from 1e6."""
    try:
        return int(word)
    except ValueError:
        pass
    try:
        value = float(word)
    except ValueError:
        value = 0.5
    if not value.is_integer():
        raise ValueError(f"`{name}` must be a whole number; got {_short(word)}.")
    return int(value)


def _short(text: str) -> str:
    return repr(text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}...")
