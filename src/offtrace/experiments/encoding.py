"""Specs and reports as rows of the results file, and the fingerprint of a spec."""

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from offtrace.agent.telemetry import COUNTS, LISTS, OWN_RECORDS, TickRecord, to_row
from offtrace.environments import protocol


def fingerprint(spec: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a spec's JSON, with fields sorted and 1.0 written as 1, so that equal specs agree.

    >>> fingerprint({"lambda_": 1.0, "seed": 3}) == fingerprint({"seed": 3, "lambda_": 1})
    True
    """
    return hashlib.sha256(_json(_canonical(spec)).encode()).hexdigest()


def _canonical(value: Any) -> Any:
    kind = type(value)
    if kind in (str, int, bool, type(None)):  # the most frequent case first: a sweep may have a million specs
        return value
    if kind is float or isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, list | tuple):
        return [_canonical(each) for each in value]
    if isinstance(value, Mapping):
        return {str(name): _canonical(each) for name, each in value.items()}
    return value


def _json(value: Any) -> str:
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"a spec must hold JSON values only: {error}.") from error


def run_row(spec: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the row of a spec: its fingerprint, the fields with a column of their own, and all of it as JSON."""
    check_spec(spec)
    env, trace, lambda_, seed = (spec[name] for name in ("env", "trace", "lambda_", "seed"))
    return fingerprint(spec), text(env), text(trace), abs(float(lambda_)), seed, _json(dict(spec))


def protocol_row(spec: Mapping[str, Any]) -> str:
    """Return the protocol of a spec as JSON."""
    return _json(protocol_of(spec))


def protocol_of(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the protocol that follows from a spec."""
    return protocol(spec["env"], spec.get("options"))


LARGEST_INTEGER = 2**63
"""Bound on the integers of a spec, as SQLite's are."""
NUMBERS = ("num_steps", "step_size", "fill", "gamma", "epsilon", "epsilon_steps", "target_epsilon")
"""Optional fields of a spec that a report computes with."""


def check_spec(spec: Mapping[str, Any]) -> None:
    """Raise a ValueError for a spec that no sweep writes: a report computes with its fields."""
    rules = {
        "env": (_is_name(spec.get("env")), "a name"),
        "trace": (_is_name(spec.get("trace")), "a name"),
        "lambda_": (_is_number(spec.get("lambda_")) and 0 <= spec["lambda_"] <= 1, "a number in [0, 1]"),
        "seed": (_is_number(spec.get("seed")) and _is_count(spec["seed"]), "a whole number, 0 or more"),
        **{name: (spec.get(name) is None or _is_number(spec[name]), "a finite number") for name in NUMBERS},
        "target_policy": (spec.get("target_policy") is None or _is_name(spec["target_policy"]), "a name"),
        "double": (isinstance(spec.get("double"), bool | None), "True or False"),
        **{name: (isinstance(spec.get(name, {}), Mapping), "a dict") for name in ("options", "trace_options")},
        **{name: (isinstance(spec.get(name, ""), str), "a text") for name in ("trace_source", "trace_title")},
    }
    for name, (holds, rule) in rules.items():
        if not holds:
            raise ValueError(f"`{name}` of a spec must be {rule}; got {_short(spec.get(name))}.")


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_number(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < LARGEST_INTEGER


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and value >= 0


def _short(value: Any) -> str:
    shown = repr(value)
    if len(shown) > 80:
        return f"{shown[:77]}..."
    return shown


def report_row(report: TickRecord) -> list[Any]:
    """Return a report as SQLite stores it: lists as JSON, and infinities, which JSON writes as text, as numbers."""
    encoded = []
    for name, value in to_row(report).items():
        if name in OWN_RECORDS:
            continue
        if name in LISTS:
            encoded.append(json.dumps(value, allow_nan=False))
        elif name in COUNTS or value is None:
            encoded.append(value)
        else:
            encoded.append(float(value))
    return encoded


def text(value: Any) -> str:
    """Return a text as valid UTF-8, with escapes for what is not, such as bytes of a file's name."""
    return str(value).encode("utf-8", "backslashreplace").decode()
