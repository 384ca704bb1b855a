"""Names of the traces in stored specs: different traces have different names. Nothing is imported.

retrace                         a built-in trace: its name
q_sigma (sigma=0.3)             with parameters
Mine(λ)                         a user's trace: its title; `mine()` if it has no λ
Mine(λ) (3f0a), Mine(λ) (b71c)  two sources of one title, by the beginning of their hashes
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class TraceKey(NamedTuple):
    """Everything that tells a trace from others."""

    trace: str
    source: str
    title: str
    options: str


def trace_key(spec: Mapping[str, Any]) -> TraceKey:
    """Return the trace of a stored spec."""
    options = sorted((spec.get("trace_options") or {}).items())
    return TraceKey(
        str(spec["trace"]), str(spec.get("trace_source", "")), str(spec.get("trace_title", "")), repr(options)
    )


def trace_names(specs: Sequence[Mapping[str, Any]]) -> dict[TraceKey, str]:
    """Return a name for each trace; no two have the same.

    >>> mine = {"trace": "my_module:Mine", "trace_title": "Mine(λ)"}
    >>> list(trace_names([{"trace": "retrace"}, mine | {"trace_source": "3f0a9"}]).values())
    ['retrace', 'Mine(λ)']
    >>> list(trace_names([mine | {"trace_source": "3f0a9"}, mine | {"trace_source": "b71cd"}]).values())
    ['Mine(λ) (3f0a)', 'Mine(λ) (b71c)']
    """
    names: dict[TraceKey, str] = {}
    by_name: dict[str, list[TraceKey]] = {}
    for spec in specs:
        key = trace_key(spec)
        if key not in names:
            names[key] = _name(spec)
            by_name.setdefault(names[key], []).append(key)
    for name, same in by_name.items():
        if len(same) > 1:
            names |= {key: f"{name} ({mark})" for key, mark in zip(same, _marks(same), strict=True)}
    return names


def _name(spec: Mapping[str, Any]) -> str:
    name = str(spec["trace"])
    if ":" in name:
        name = (spec.get("trace_title") or name).replace(",", ";")  # settings follow a comma
        if "λ" not in name and "()" not in name:  # as in no built-in name
            name += "()"
    options = spec.get("trace_options")
    if options:
        name += f" ({'; '.join(f'{key}={_text(value)}' for key, value in sorted(options.items()))})"
    return name


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _marks(traces: Sequence[TraceKey]) -> list[str]:
    """Return a short text for each trace, by which they differ."""
    marks = [key.source[:4] for key in traces]
    for others in ([key.source for key in traces], [key.trace for key in traces], [repr(key) for key in traces]):
        if len({*marks}) < len(marks):
            marks = others
    return marks
