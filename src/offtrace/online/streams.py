"""Random numbers that depend on the seed alone: xoshiro256++ (Blackman and Vigna), one stream for each run.

NumPy's generators cannot be called from a kernel without the GIL, and Numba's own has one state per thread, so runs
would depend on which thread they were given. The kernels have the same generator over the same four words.
"""

import numpy as np

MASK = (1 << 64) - 1


def state(seed: int) -> np.ndarray:
    """The four words a stream starts from."""
    return np.random.SeedSequence(seed).generate_state(4, np.uint64)


class Stream:
    """Numbers uniform in [0, 1), one by one.

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
        """An index in proportion to what these sums grow by; no number is drawn where there is but one."""
        if len(cumulative) == 1:
            return 0
        return int(np.searchsorted(cumulative, self.uniform() * cumulative[-1], side="right"))

    def action(self, probabilities: np.ndarray) -> int:
        """An action with these probabilities; rounding that is left over goes to the last possible one."""
        left, last = self.uniform(), 0
        for a, p in enumerate(probabilities):
            if p > 0:
                last = a
                if left < p:
                    return a
                left -= p
        return last


def _rotated(word: int, by: int) -> int:
    return ((word << by) | (word >> (64 - by))) & MASK
