"""One Atari game with its picture in colour, for watching.

    game = WatchedGame(make("atari/pong"), seed=0)
    observation = game.reset()                                        # (4, 84, 84), as in training
    observation, reward, terminated, truncated = game.step(action)
    game.picture()                                                    # (210, 160, 3)

ale-py's vector environment shows an agent four small grey pictures, and keeps its screen to itself.
So a second emulator plays the same game: it has the same seed, and in each step it repeats the
action until it has shown as many frames as the first one. Score and lives are compared in each
step, so that a picture is never of another game.

A picture has, of the last two screens, the brighter pixel, as the observation has. Many games draw
some of their objects in every other frame only.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from offtrace.environments.atari import AtariFactory, started

LABELS = {
    "NOOP": "·",
    "FIRE": "*",
    "UP": "↑",
    "DOWN": "↓",
    "LEFT": "←",
    "RIGHT": "→",
    "UPRIGHT": "↗",
    "UPLEFT": "↖",
    "DOWNRIGHT": "↘",
    "DOWNLEFT": "↙",
}
"""Short names of actions; the others are one of these with fire."""


class WatchedGame:
    """One copy of a game, with the observations of `AtariRows` with the same seed, and its screen."""

    def __init__(self, game: AtariFactory, seed: int) -> None:
        self._agent = started(game, 1)
        self._seed: int | None = seed
        self._screen = _Screen(game, seed)
        actions = self._screen.actions
        self.num_actions = len(actions)
        self.action_names: Sequence[str] = [action_label(action.name) for action in actions]
        """One or two characters for each action."""

    def reset(self) -> np.ndarray:
        """Start the next game, which the seed determines; return its first observation (4, 84, 84)."""
        observations, infos = self._agent.reset(seed=self._seed)
        self._seed = None
        self._screen.start(int(infos["frame_number"][0]), int(infos["lives"][0]))
        return observations[0].copy()

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool]:
        """Return the observation, the reward as the game counts, and whether the game is terminated or truncated."""
        observations, rewards, terminated, truncated, infos = self._agent.step(np.array([action]))
        reward = float(rewards[0])
        self._screen.follow(action, int(infos["frame_number"][0]), reward, int(infos["lives"][0]))
        return observations[0].copy(), reward, bool(terminated[0]), bool(truncated[0])

    def picture(self) -> np.ndarray:
        """Return the screen, (210, 160, 3) uint8; two of the games have a few more rows."""
        return self._screen.picture()

    def close(self) -> None:
        self._agent.close()


class _Screen:
    """A second emulator, which is told how far the first one has come."""

    def __init__(self, game: AtariFactory, seed: int) -> None:
        import ale_py
        from ale_py import roms

        self._name = game.name
        self._ale = ale_py.ALEInterface()
        self._ale.setFloat("repeat_action_probability", game.sticky)
        self._ale.setInt("random_seed", seed)
        rom = roms.get_rom_path(game.game)
        assert rom is not None
        self._ale.loadROM(rom)
        self.actions: Sequence[Any] = self._ale.getMinimalActionSet()
        if game.full_action_space:
            self.actions = self._ale.getLegalActionSet()
        self._nothing = ale_py.Action.NOOP
        self._last_two: list[tuple[np.ndarray, np.ndarray]] = []
        """RGB and grey of the last two screens."""

    def start(self, num_frames: int, lives: int) -> None:
        """Start a game, and do nothing until `num_frames` frames in all have been shown."""
        self._ale.reset_game()
        while self._ale.getFrameNumber() < num_frames:
            self._ale.act(self._nothing)
            if self._ale.game_over():
                self._ale.reset_game()
        self._last_two = [self._seen()]
        self._check(num_frames, lives)

    def follow(self, action: int, num_frames: int, reward: float, lives: int) -> None:
        """Repeat an action until `num_frames` frames have been shown."""
        scored = 0.0
        while self._ale.getFrameNumber() < num_frames and not self._ale.game_over():
            scored += self._ale.act(self.actions[action])
            self._last_two = [*self._last_two[-1:], self._seen()]
        self._check(num_frames, lives, same_reward=scored == reward)

    def picture(self) -> np.ndarray:
        before, now = self._last_two[0], self._last_two[-1]
        return np.where((before[1] > now[1])[..., None], before[0], now[0])

    def _seen(self) -> tuple[np.ndarray, np.ndarray]:
        return self._ale.getScreenRGB(), self._ale.getScreenGrayscale()

    def _check(self, num_frames: int, lives: int, *, same_reward: bool = True) -> None:
        if self._ale.getFrameNumber() == num_frames and self._ale.lives() == lives and same_reward:
            return
        raise RuntimeError(
            f"{self._name} cannot be watched: frame {num_frames} of the emulator that draws the picture differs from "
            "the game that the agent plays."
        )


def action_label(name: str) -> str:
    """Return one or two characters for an action of ALE.

    >>> action_label("NOOP"), action_label("UPLEFT"), action_label("UPLEFTFIRE"), action_label("FIRE")
    ('·', '↖', '↖*', '*')
    """
    if name in LABELS:
        return LABELS[name]
    return LABELS[name.removesuffix("FIRE")] + LABELS["FIRE"]
