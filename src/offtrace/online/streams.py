"""Random numbers that depend on the seed alone: xoshiro256++ (Blackman and Vigna), one stream per run.

NumPy's generators cannot be called from a kernel that has released the GIL, and Numba's own has one
state per thread, so a run would depend on the thread it runs in. The kernels have the same
generator, over the same four words.
"""

import numpy as np

MASK = (1 << 64) - 1


def state(seed: int) -> np.ndarray:
    """Return the four words that a stream starts from."""
    return np.random.SeedSequence(seed).generate_state(4, np.uint64)


class Stream:
    """A stream of numbers, uniform in [0, 1).

    >>> stream = Stream(0)
    >>> 0 <= stream.uniform() < 1
    True
    """

    def __init__(self, seed: int) -> None:
        self.words = [int(word) for word in state(seed)]

    def uniform(self) -> float:
        w0, w1, w2, w3 = self.words
        total = (w0 + w3) & MASK
        word = (_rotated(total, 23) + w0) & MASK
        shifted = (w1 << 17) & MASK
        w2 ^= w0
        w3 ^= w1
        w1 ^= w2
        w0 ^= w3
        w2 ^= shifted
        self.words = [w0, w1, w2, _rotated(w3, 45)]
        return (word >> 11) * 2.0**-53

    def choice(self, cumulative: np.ndarray) -> int:
        """Draw an index by its cumulative sums; a single one needs no random number."""
        if len(cumulative) == 1:
            return 0
        return int(np.searchsorted(cumulative, self.uniform() * cumulative[-1], side="right"))

    def action(self, probabilities: np.ndarray) -> int:
        """Draw an action with these probabilities; what rounding leaves over goes to the last possible one."""
        left = self.uniform()
        last = 0
        for a, p in enumerate(probabilities):
            if p > 0:
                last = a
                if left < p:
                    return a
                left -= p
        return last


def _rotated(word: int, by: int) -> int:
    return ((word << by) | (word >> (64 - by))) & MASK
