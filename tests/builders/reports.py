"""Reports of one run's ticks, with plausible numbers."""

import math

from offtrace.agent.telemetry import TickRecord

UNTRAINED = TickRecord(0, 0, 0, 0, math.nan, math.nan, 1.0, 2.5e-4, *[math.nan] * 7, (math.nan,) * 5)
"""Tick 0: the agent before its first update."""


def report(tick: int = 3, *, tick_size: int = 1000, **changes: object) -> TickRecord:
    """Return the report of one tick of `tick_size` steps, with `changes` to its fields."""
    fields = {
        "tick": tick,
        "num_steps": tick_size * tick,
        "num_updates": tick_size * tick // 4,
        "num_episodes": 8,
        "episode_return": float(tick),
        "episode_length": 40.0,
        "epsilon": 0.1,
        "step_size": 2.5e-4,
        "loss": 0.03125,
        "q": 8.5,
        "c": 0.625,
        "cut": 0.25,
        "effective_length": 5.5,
        "off_policy": 0.375,
        "gradient": 0.125,
        "off_policy_by_age": (0.0, 0.125, 0.25, 0.5, 1.0),
    }
    return TickRecord(**(fields | changes))
