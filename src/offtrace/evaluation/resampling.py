"""Bootstrap samples of episodes.

Up to 20,000 episodes are drawn one by one. Of more, random groups are drawn, so that the memory
does not grow with the log; sums over random groups are independent, as those of episodes are.
"""

import numpy as np

MAX_GROUPS = 20_000
NUMBERS_AT_ONCE = 5_000_000
"""Numbers that are drawn at once, as 64-bit integers."""


class Resamples:
    """How often each bootstrap sample draws each episode."""

    def __init__(self, num_episodes: int, num_samples: int, seed: int) -> None:
        generator = np.random.default_rng(seed)
        self.num_groups = min(num_episodes, MAX_GROUPS)
        self.num_samples = num_samples
        self.group = np.arange(num_episodes)
        """(E,) the group of every episode."""
        if num_episodes > MAX_GROUPS:
            self.group = generator.permutation(num_episodes) % MAX_GROUPS
        shares = np.full(self.num_groups, 1 / self.num_groups)
        self._drawn = np.empty((self.num_groups, num_samples), np.uint16)
        at_once = max(1, NUMBERS_AT_ONCE // self.num_groups)
        for start in range(0, num_samples, at_once):
            size = min(at_once, num_samples - start)
            drawn = generator.multinomial(self.num_groups, shares, size=size)
            self._drawn[:, start : start + size] = drawn.T

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of one value per episode in every sample, (B,)."""
        by_group = np.bincount(self.group, weights=values, minlength=self.num_groups)
        return by_group @ self._drawn

    def columns(self) -> np.ndarray:
        """Return the weights of the groups, (G, 1 + B): 1 for the estimate itself, then the samples."""
        return np.concatenate([np.ones((self.num_groups, 1)), self._drawn], axis=1)
