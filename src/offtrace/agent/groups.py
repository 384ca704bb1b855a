"""Groups of actors whose environments step on the host, and the state of a population of them.

    turn              0     1     2     3     4  …
    group             0     1     0     1     0
    the turn's group  receives its rows, and is sent its next actions
    the other group   steps meanwhile

A turn belongs to one group; a round is one turn of each. With one group the environments step while
the learner works, and wait while actions are chosen. With two, one of them always steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from offtrace.agent.learner import UpdateRecord
from offtrace.agent.program import Member
from offtrace.agent.replay import ReplayState, Rows
from offtrace.environments.fleet import Fleet
from offtrace.environments.interface import Actor, Ended


class Choice(NamedTuple):
    """Actions of a group that its environments have not answered yet, (members, actors), on the device."""

    frames: Any
    """The newest frames, for which the actions were chosen."""
    a: Any
    mu_a: Any


@dataclass
class Group:
    """The actors from `first_actor` on of every member."""

    fleet: Fleet
    first_actor: int
    actor: Actor
    stacks: Any = None
    """Stacks of frames on the device, up to the last choice; None where an observation is a single frame."""
    choice: Choice | None = None
    is_stepping: bool = False
    """True while the environments work on the choice."""
    rows: list[Rows] = field(default_factory=list)
    """Rows that are not in the memory yet."""
    actions: list[np.ndarray] = field(default_factory=list)
    """Every action since the environments began, to repeat them after a restart."""

    def send(self) -> None:
        """Start a step of the environments with the chosen actions, which are read from the device."""
        if self.choice is not None and not self.is_stepping:
            self.fleet.send(np.asarray(self.choice.a))
            self.is_stepping = True

    def receive(self) -> Ended | None:
        """Wait for the step of the environments; None if there is none. If it fails, the choice is kept."""
        if self.choice is None:
            return None
        self.send()
        frames, a, mu_a = self.choice
        self.actor, row, ended = self.fleet.receive()
        self.actions.append(np.asarray(a).astype(np.uint8))
        self.rows.append(Rows(frames, row.reset, row.mask, row.reward, row.continues, a, mu_a))
        self.choice = None
        self.is_stepping = False
        return ended


@dataclass
class PartialTick:
    """The finished part of a tick. A run can be saved after any turn."""

    num_turns: int
    episodes: np.ndarray
    """(members, 3): number of ended episodes, sum of their returns, sum of their lengths."""
    updates: list[UpdateRecord] = field(default_factory=list)
    """They stay on the device until the tick ends, so that nothing waits for the learner."""

    @classmethod
    def empty(cls, num_members: int) -> "PartialTick":
        return cls(0, np.zeros((num_members, 3)))


@dataclass
class HostState:
    """The members on the device, without their memory; the memory of all; and the groups of environments."""

    rest: Member
    memory: ReplayState
    groups: Sequence[Group]
    tick: PartialTick
    num_restarts: int = 0
    """How often the environments were begun anew, by a resume that did not repeat the actions."""

    def receive_all(self) -> None:
        """Wait until no environment is stepping."""
        for group in self.groups:
            self.count(group.receive())

    def count(self, ended: Ended | None) -> None:
        """Add episodes that ended to those of the tick."""
        if ended is not None:
            self.tick.episodes += np.stack([np.asarray(column).sum(1) for column in ended], axis=1)
