"""A hint for runs that learn nothing, because no episode ever differs from another.

    ticks     return −200, −200, −200, …     length 200, 200, 200, …     nothing to learn from
              return   22,   24,   31, …                                  fine
              return   21,  180,  500, 500, …                             fine: constant at the top only

Where every episode ends at the time limit with the same return, all actions look equally good.
"""

import math
from collections.abc import Sequence

from offtrace.agent.spec import Plan
from offtrace.agent.telemetry import TickRecord

SHARE = 0.25
"""Share of a run after which the hint is given."""
MIN_EPISODES = 20
FLAT_SHARE = 0.95
"""Share of ticks that must equal the first one. A rare lucky episode does not mean that a run learns."""


class Hints:
    """Decides, tick by tick, whether a hint is due. It is given once while a run trains, and once at its end."""

    def __init__(self, specs: Sequence[Plan], total_steps: int) -> None:
        self._specs = specs
        self._total_steps = total_steps
        self._is_given = False

    def after_tick(self, history: Sequence[Sequence[TickRecord]]) -> str | None:
        """Return the hint when it is first due. `history` has a record per member for every tick."""
        num_steps = history[-1][0].num_steps
        if self._is_given or not SHARE * self._total_steps <= num_steps < self._total_steps:
            return None
        hint = self._hint(history)
        self._is_given = hint is not None
        return hint

    def at_end(self, history: Sequence[Sequence[TickRecord]], returns: Sequence[Sequence[float]]) -> str | None:
        """Return the hint if it still holds at the end; `returns` are those of each member's final evaluation."""
        return self._hint(history, returns)

    def _hint(
        self, history: Sequence[Sequence[TickRecord]], returns: Sequence[Sequence[float]] | None = None
    ) -> str | None:
        flat = []
        for i in range(len(self._specs)):
            records = [tick[i] for tick in history]
            same = constant_episode(records)
            if same is None or (returns is not None and any(value != same[0] for value in returns[i])):
                continue
            flat.append((i, same))
        if not flat:
            return None
        member, (value, length) = flat[0]
        who = ""
        if len(self._specs) > 1:
            who = f"{len(flat)} of {len(self._specs)} runs, such as {self._specs[member].title}: "
        num_episodes = sum(tick[member].num_episodes for tick in history)
        when = " so far" if returns is None else ""
        return (
            f"{who}No episode stood out{when}: nearly all of {num_episodes:,} had {length:g} steps and a return of "
            f"{value:g}. {_advice(self._specs[member], length)}"
        )


def constant_episode(records: Sequence[TickRecord]) -> tuple[float, float] | None:
    """Return the return and the length that all episodes of a run have in common; None if they differ.

    The records of a tick are means over its episodes, so one different episode shows.

    >>> start = TickRecord(1, 64, 0, 4, -200.0, 200.0, 1.0, 1e-3, *[math.nan] * 7, ())
    >>> constant_episode([start] * 10)
    (-200.0, 200.0)
    >>> constant_episode([start, *[start._replace(episode_return=-150.0)] * 9])
    """
    seen = [record for record in records if record.num_episodes]
    if sum(record.num_episodes for record in seen) < MIN_EPISODES:
        return None
    first = (seen[0].episode_return, seen[0].episode_length)
    if not all(map(math.isfinite, first)):
        return None
    num_flat = sum((record.episode_return, record.episode_length) == first for record in seen)
    if num_flat < FLAT_SHARE * len(seen):
        return None
    evaluations = [record.evaluation for record in records if record.evaluation is not None]
    if any(value != first[0] for value in evaluations):
        return None
    return first


def _advice(spec: Plan, length: float) -> str:
    """Return what to try, with the names of the options."""
    name = "max_episode_steps" if spec.env.startswith("gymnasium/") else "time_limit"
    steps = 5 * int(length)
    repeats = ""
    if spec.random_action_steps == 1:
        repeats = "random actions that last several steps (`--random-action-steps 100`), "
    return (
        f"Exploration may not find the reward. Try {repeats}longer episodes (`--options {name} {steps}`, in Python "
        f"`options={{{name!r}: {steps}}}`), observations whose numbers are of similar size, or a reward on the way."
    )
