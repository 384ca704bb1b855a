"""The 60 Atari games of the paper, through ale-py's vector environment: rows on the host, as Gymnasium's are.

    rows = make("atari/breakout")(num_actors=16, seed=0)
    actor = rows.begin()                           # actor.observation (16, 4, 84, 84): what an action is chosen for
    actor, row, ended = rows.advance(actions)      # row.observation (16, 84, 84): the newest frame, for the memory

A step is four frames of the emulator with one action, seen as the maximum of the last two, grey, 84×84. The four last
such frames are an observation. A row has only the newest one: a memory that stacks them (`replay.Spec.stack`) gives
back what the actor saw, as both leave out, as zeros, what is of an earlier game.

A lost life is the end of a task, but not of a game (App. F):

    lives left     3      2      2      1      0      –      3
    reset        True     .      .      .      .      .    True
    mask         True   True   True   True   True     .    True
    continues    True     .    True     .      .    True   True     not in a step that loses a life, or the game
    ended          .      .      .      .    True     .      .      with the raw score of the whole game

ale-py is under the GPL, and so an extra: `pip install 'offtrace[atari]'`.
"""

import functools
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from offtrace.environments.gymnasium import GymnasiumRows
from offtrace.environments.interface import Actor, Array, Ended, Row

FRAME_SKIP = 4
STACK = 4
SIZE = 84


@dataclass(frozen=True)
class AtariFactory:
    """A game that is still to be started, with its options: call it for the rows.

    With probability `sticky` the emulator repeats its last action instead of the given one, in every frame; the paper
    does not. `life_loss=False` lets a task last as long as its game. `full_action_space` gives every game all of the
    18 actions instead of those that it knows. A game begins with fewer than `noop_max` frames without an action,
    their number drawn, and is truncated after `max_frames` frames: 27,000 steps, half an hour. `num_threads=0` takes
    a thread for each core; the rows do not depend on it. `timeout` is that of `GymnasiumRows`.
    """

    game: str
    sticky: float = 0.0
    life_loss: bool = True
    full_action_space: bool = False
    noop_max: int = 30
    max_frames: int = 108_000
    num_threads: int = 0
    timeout: float | None = 60.0

    def __post_init__(self) -> None:
        if not 0 <= self.sticky < 1:
            raise ValueError(f"`sticky` must be a probability below 1; got {self.sticky!r}.")
        for name, least in (("noop_max", 0), ("max_frames", 1), ("num_threads", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"`{name}` must be an integer of at least {least}; got {value!r}.")
        _emulators()  # or it would be missed only when it is called

    @property
    def id(self) -> str:
        return f"atari/{self.game}"

    @property
    def name(self) -> str:
        return self.id

    def __call__(self, num_actors: int, seed: int) -> "AtariRows":
        return AtariRows(self, num_actors, seed)


class AtariRows(GymnasiumRows):
    """`num_actors` copies of a game as rows; actor i is seeded with `seed` + i, and is a function of that."""

    stack: ClassVar[int] = STACK
    """Rows have single frames; an observation is as many of them."""

    def __init__(self, game: AtariFactory, num_actors: int, seed: int) -> None:
        if not isinstance(num_actors, int | np.integer) or num_actors < 1:
            raise ValueError(f"`num_actors` must be an integer of at least 1; got {num_actors!r}.")
        if not isinstance(seed, int | np.integer) or not 0 <= seed <= 2**31 - num_actors:
            raise ValueError(
                f"`seed` must be an integer of at least 0 that leaves room for {num_actors} of them under 2³¹; got "
                f"{seed!r}."
            )
        super().__init__(_started(game, int(num_actors)), seed=int(seed), timeout=game.timeout)
        self.name = game.name
        self._life_loss = game.life_loss
        self._lives = np.zeros(self.num_actors, np.int32)

    def begin(self) -> Actor:
        """All actors at the start of their first games; called again, of the same ones."""
        actor = super().begin()
        self._lives = self._vector.env.lives
        return actor

    def advance(self, actions: Array) -> tuple[Actor, Row, Ended]:
        """One row of every actor; where `actor.over`, the action is ignored. Only whole games end."""
        actor, row, ended = super().advance(actions)
        before, self._lives = self._lives, self._vector.env.lives
        continues = row.continues
        if self._life_loss:  # some games show no lives for a moment before they are over: that is one end, not two
            continues = continues & ~(row.mask & (self._lives < before) & (self._lives > 0))
        return actor, row._replace(observation=row.observation[:, -1].copy(), continues=continues), ended


@functools.cache
def _emulators() -> Any:
    """ale-py's vector environment, but it keeps what is left of lives: Gymnasium's rows have no place for them."""
    try:
        from ale_py.vector_env import AtariVectorEnv
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != "ale_py":
            raise
        text = "Atari games need ale-py: pip install 'offtrace[atari]'."
        raise ModuleNotFoundError(text, name="ale_py") from missing

    class Emulators(AtariVectorEnv):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.metadata = dict(self.metadata)  # ale-py writes into it, and it is that of all vector environments
            self.lives = np.zeros(0, np.int32)
            super().__init__(*args, **kwargs)

        def reset(self, **kwargs: Any) -> Any:
            answer = super().reset(**kwargs)
            self.lives = np.array(answer[1]["lives"])
            return answer

        def step(self, actions: np.ndarray) -> Any:
            answer = super().step(actions)
            self.lives = np.array(answer[4]["lives"])
            return answer

    return Emulators


def _started(game: AtariFactory, num_actors: int) -> Any:
    """Terminated is the end of a game: ale-py's own `life_loss_info` hides that a game ends with a life by its limit
    of frames, and `episodic_life` starts the whole game again.
    """
    return _emulators()(
        game.game,
        num_actors,
        num_threads=game.num_threads,
        max_num_frames_per_episode=game.max_frames,
        repeat_action_probability=game.sticky,
        full_action_space=game.full_action_space,
        img_height=SIZE,
        img_width=SIZE,
        grayscale=True,
        stack_num=STACK,
        frameskip=FRAME_SKIP,
        maxpool=True,
        noop_max=game.noop_max,
        episodic_life=False,
        life_loss_info=False,
        reward_clipping=False,
        use_fire_reset=False,
    )
