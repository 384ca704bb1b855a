"""The 60 Atari games of the paper, through ale-py's vector environment.

    rows = make("atari/breakout")(num_actors=16, seed=0)
    actor = rows.begin()                           # actor.observation (16, 4, 84, 84): what an action is chosen for
    actor, row, ended = rows.advance(actions)      # row.observation (16, 84, 84): the newest frame, for replay

A step repeats one action for four frames of the emulator. Its picture is the maximum of the last
two frames, in grey, 84×84. An observation is the last four pictures; pictures of an earlier game
are zeros. A row holds only the newest picture, and a replay memory that stacks them
(`replay.Spec.stack`) restores what the actor saw.

A lost life ends the task, but not the game (App. F):

    lives left     3      2      2      1      0      –      3
    reset        True     .      .      .      .      .    True
    mask         True   True   True   True   True     .    True
    continues    True     .    True     .      .    True   True     False in a step that loses a life or the game
    ended          .      .      .      .    True     .      .      with the raw score of the whole game

ale-py is under the GPL, so it is an extra: `pip install 'offtrace[atari]'`.
"""

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from offtrace.environments.checks import check_flag, check_sticky, checked_whole
from offtrace.environments.gymnasium import GymnasiumRows
from offtrace.environments.interface import Actor, Ended, Row, Space
from offtrace.threads import num_cores

FRAME_SKIP = 4
STACK = 4
SIZE = 84
MANY_CORES = 8
"""With so many cores, the emulators leave two of them to the learner."""


@dataclass(frozen=True)
class AtariFactory:
    """Makes rows of one game, with its options, when called.

    With probability `sticky` the emulator repeats its last action in place of the given one, in
    every frame; the paper has no sticky actions. With `life_loss=False` a lost life does not end
    the task. `full_action_space` uses all 18 actions in every game. A game starts with a random
    number of frames without an action, fewer than `noop_max`, and is truncated after `max_frames`
    frames (27,000 steps, half an hour). `num_threads=0` uses one thread per core; from 8 cores on, two
    are left to the learner. Games that step together share these threads. The rows do not depend on
    it. `timeout` is that of `GymnasiumRows`.
    """

    stack: ClassVar[int] = STACK
    """The pictures per observation."""
    frame_bytes: ClassVar[int] = SIZE * SIZE
    """The bytes of a picture in replay."""
    alternates: ClassVar[bool] = True
    """True: two groups of these environments in turn keep all cores busy, as the emulators have threads."""

    game: str
    sticky: float = 0.0
    life_loss: bool = True
    full_action_space: bool = False
    noop_max: int = 30
    max_frames: int = 108_000
    num_threads: int = 0
    timeout: float | None = 60.0

    def __post_init__(self) -> None:
        check_sticky(self.sticky)
        check_flag("life_loss", self.life_loss)
        check_flag("full_action_space", self.full_action_space)
        checked_whole("noop_max", self.noop_max, least=0)
        checked_whole("max_frames", self.max_frames)
        checked_whole("num_threads", self.num_threads, least=0)
        _emulators()  # so that a missing package is reported now

    @property
    def id(self) -> str:
        return f"atari/{self.game}"

    @property
    def name(self) -> str:
        return self.id

    def __call__(
        self,
        num_actors: int,
        seed: int | np.ndarray,
        *,
        single_frames: bool = False,
        number: int = 0,
        num_games: int = 1,
    ) -> "AtariRows":
        """Return rows. With `single_frames` an actor's observation is its newest picture, (84, 84), not the stack.

        This is game `number` of `num_games` that step together.
        """
        num_threads = max(1, (self.all_threads + number) // num_games)
        own = dataclasses.replace(self, num_threads=num_threads)
        return AtariRows(own, num_actors, seed, single_frames=single_frames)

    @property
    def all_threads(self) -> int:
        """The number of emulator threads, of all games that step together."""
        return self.num_threads or _default_threads()

    @functools.cached_property
    def num_actions(self) -> int:
        """The number of actions of the game."""
        emulator = started(dataclasses.replace(self, num_threads=1), 1, stack=1)
        try:
            return int(emulator.single_action_space.n)
        finally:
            emulator.close()


class AtariRows(GymnasiumRows):
    """Rows of `num_actors` copies of a game. Actor i is seeded with `seed` + i, and depends on nothing else.

    `seed` may also be an array with one seed per actor. With `single_frames` an actor's observation
    is its newest picture only, for a caller that stacks them itself.
    """

    stack: ClassVar[int] = STACK
    """The pictures per observation; a row holds one of them."""

    def __init__(
        self, game: AtariFactory, num_actors: int, seed: int | np.ndarray, *, single_frames: bool = False
    ) -> None:
        num_actors = checked_whole("num_actors", num_actors)
        seeds = np.asarray(seed)
        if not seeds.ndim:
            seeds = seeds + np.arange(num_actors)
        if seeds.dtype.kind != "i" or seeds.min() < 0 or seeds.max() >= 2**31:
            raise ValueError(
                f"`seed` must be a whole number of at least 0, with {num_actors} consecutive seeds "
                f"under 2³¹; got {seed!r}."
            )
        super().__init__(
            started(game, num_actors, stack=1 if single_frames else STACK), seed=seed, timeout=game.timeout
        )
        self.name = game.name
        self._life_loss = game.life_loss
        self._lives = np.zeros(self.num_actors, np.int32)
        self._single_frames = single_frames
        self.observation = Space((STACK, SIZE, SIZE), self.observation.dtype)

    def begin(self) -> Actor:
        """Return all actors at the start of their first games. A second call starts the same games again."""
        actor = super().begin()
        self._lives = self._vector.env.lives
        return actor

    def _reset_seed(self) -> Any:
        return self.seed

    def receive(self) -> tuple[Actor, Row, Ended]:
        """Return one row of every actor. The action is ignored where `actor.over`. Only whole games end."""
        actor, row, ended = super().receive()
        before = self._lives
        self._lives = self._vector.env.lives
        continues = row.continues
        if self._life_loss:
            # Some games show 0 lives shortly before they are over. That is one end, not two, so 0 is not counted.
            continues = continues & ~(row.mask & (self._lives < before) & (self._lives > 0))
        newest = row.observation
        if not self._single_frames:
            newest = newest[:, -1].copy()
        return actor, row._replace(observation=newest, continues=continues), ended

    def _checked(self, observations: Any, fresh: np.ndarray, rewards: np.ndarray | None = None) -> np.ndarray:
        """Return the pictures as they are: ALE makes new arrays in every step, and any byte is valid."""
        return observations[:, -1] if self._single_frames else observations


@functools.cache
def _emulators() -> Any:
    """Return ale-py's vector environment with an attribute for the lives left, which Gymnasium's rows cannot hold."""
    try:
        from ale_py.vector_env import AtariVectorEnv
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != "ale_py":
            raise
        text = "this needs `ale-py`: pip install 'offtrace[atari]'."
        raise ModuleNotFoundError(text, name="ale_py") from missing

    class Emulators(AtariVectorEnv):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.metadata = dict(self.metadata)  # ale-py writes into it, and all vector environments share it
            self.lives = np.zeros(0, np.int32)
            super().__init__(*args, **kwargs)

        def reset(self, **kwargs: Any) -> Any:
            answer = super().reset(**kwargs)
            self.lives = np.array(answer[1]["lives"])
            return answer

        def step(self, actions: np.ndarray) -> Any:
            self.send(actions)
            return self.recv()

        def recv(self) -> Any:
            answer = super().recv()
            self.lives = np.array(answer[4]["lives"])
            return answer

    return Emulators


def _default_threads() -> int:
    """Return the number of emulator threads. With 14 on 16 cores, agents trained 15 and 44 % faster."""
    cores = num_cores()
    return cores - 2 if cores >= MANY_CORES else cores


def started(game: AtariFactory, num_actors: int, *, stack: int = STACK) -> Any:
    """Start the emulators with `terminated` at the end of a game only; `advance` adds the lives.

    ale-py's `life_loss_info` hides that a game reaches its frame limit where it loses a life, and
    its `episodic_life` starts the whole game again.
    """
    return _emulators()(
        game.game,
        num_actors,
        num_threads=game.all_threads,
        max_num_frames_per_episode=game.max_frames,
        repeat_action_probability=game.sticky,
        full_action_space=game.full_action_space,
        img_height=SIZE,
        img_width=SIZE,
        grayscale=True,
        stack_num=stack,
        frameskip=FRAME_SKIP,
        maxpool=True,
        noop_max=game.noop_max,
        episodic_life=False,
        life_loss_info=False,
        reward_clipping=False,
        use_fire_reset=False,
    )
