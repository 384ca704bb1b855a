"""Specs and reports as rows of the file of results."""

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from offtrace.agent.telemetry import COUNTS, LISTS, TickRecord, to_row


def fingerprint(spec: Mapping[str, Any]) -> str:
    """SHA-256 of its JSON: fields sorted, and 1.0 as 1, since specs that are equal have the same one.

    >>> fingerprint({"lambda_": 1.0, "seed": 3}) == fingerprint({"seed": 3, "lambda_": 1})
    True
    """
    return hashlib.sha256(_json(_plain(spec)).encode()).hexdigest()


def _plain(value: Any) -> Any:
    kind = type(value)
    if kind in (str, int, bool, type(None)):  # most are; a sweep may have a million specs
        return value
    if kind is float or isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    return value


def _json(value: Any) -> str:
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"a spec must hold what JSON can: {error}.") from error


def run_row(spec: Mapping[str, Any]) -> tuple[Any, ...]:
    """The fingerprint of a spec, what is copied out of it, and all of it as JSON. A wrong spec is refused."""
    check_spec(spec)
    env, trace, lambda_, seed = (spec[name] for name in ("env", "trace", "lambda_", "seed"))
    return fingerprint(spec), text(env), text(trace), abs(float(lambda_)), seed, _json(dict(spec))


LARGEST = 2**63
"""Whole numbers of a spec are below it, as SQLite's are."""
NUMBERS = ("num_steps", "step_size", "fill", "gamma", "epsilon", "epsilon_steps", "target_epsilon")
"""Fields of a spec, if it has them, that are computed with where results are compared."""


def check_spec(spec: Mapping[str, Any]) -> None:
    """Refuses what no sweep has written: a report of results computes with it."""
    rules = {
        "env": (_is_text(spec.get("env")), "a name"),
        "trace": (_is_text(spec.get("trace")), "a name"),
        "lambda_": (_is_number(spec.get("lambda_")) and 0 <= spec["lambda_"] <= 1, "a number in [0, 1]"),
        "seed": (_is_number(spec.get("seed")) and _is_count(spec["seed"]), "a whole number, 0 or more"),
        **{name: (spec.get(name) is None or _is_number(spec[name]), "a finite number") for name in NUMBERS},
        "target_policy": (spec.get("target_policy") is None or _is_text(spec["target_policy"]), "a name"),
        "double": (isinstance(spec.get("double"), bool | None), "True or False"),
        "options": (isinstance(spec.get("options", {}), Mapping), "a dict"),
    }
    for name, (holds, rule) in rules.items():
        if not holds:
            raise ValueError(f"`{name}` of a spec must be {rule}; got {_short(spec.get(name))}.")


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_number(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < LARGEST


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and value >= 0


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:77]}..."


def report_row(report: TickRecord) -> list[Any]:
    """As SQLite has it: what JSON writes as a text, an infinity, is a number here."""
    row = to_row(report)
    plain = {name: json.dumps(row[name], allow_nan=False) for name in LISTS} | {name: row[name] for name in COUNTS}
    return [plain[name] if name in plain else None if row[name] is None else float(row[name]) for name in row]


def text(value: Any) -> str:
    """What cannot be UTF-8, such as a part of a file's name, is spelt out."""
    return str(value).encode("utf-8", "backslashreplace").decode()
