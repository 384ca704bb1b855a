"""Specs and reports as rows of the file of results."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from offtrace.agent.telemetry import COUNTS, LISTS, Report, to_row


def fingerprint(spec: Mapping[str, Any]) -> str:
    """SHA-256 of its JSON: fields sorted, and 1.0 as 1, since specs that are equal have the same one.

    >>> fingerprint({"lambda_": 1.0, "seed": 3}) == fingerprint({"seed": 3, "lambda_": 1})
    True
    """
    return hashlib.sha256(_json(_plain(spec)).encode()).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _json(value: Any) -> str:
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"a spec must hold what JSON can: {error}.") from error


def run_row(spec: Mapping[str, Any]) -> tuple[Any, ...]:
    kinds = {"env": str, "trace": str, "lambda_": int | float, "seed": int}
    for name, kind in kinds.items():
        if not isinstance(spec.get(name), kind):
            raise ValueError(f"a spec must have `{name}`, of {kind}; got {spec.get(name)!r}.")
    env, trace, lambda_, seed = (spec[name] for name in kinds)
    return fingerprint(spec), text(env), text(trace), float(lambda_), seed, _json(dict(spec))


def report_row(report: Report) -> list[Any]:
    """As SQLite has it: what JSON writes as a text, an infinity, is a number here."""
    row = to_row(report)
    plain = {name: json.dumps(row[name], allow_nan=False) for name in LISTS} | {name: row[name] for name in COUNTS}
    return [plain[name] if name in plain else None if row[name] is None else float(row[name]) for name in row]


def text(value: Any) -> str:
    """What cannot be UTF-8, such as a part of a file's name, is spelt out."""
    return str(value).encode("utf-8", "backslashreplace").decode()
