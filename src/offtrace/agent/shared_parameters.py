"""What the actor-learners of the asynchronous runtime share: parameters, moments, target network and counters.

    actor-learner 3         shared                              actor-learner 7
      copy          ←────── params ──────→                        copy
      act, gradient                                               act, gradient
      `apply`       ──────→ params, moments ←──────               `apply`

Updates are applied without locks ("Hogwild", as in Mnih et al. 2016): two of them may mix, and a
copy may hold a part of an update. Only the counters are locked.
"""

import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from offtrace.agent.rmsprop_kernel import update

Vector = np.ndarray
"""All parameters of a network, one after the other: (P,) float32."""


class SharedParameters:
    """The parameters of one run with Shared RMSprop; every method may be called from any thread."""

    def __init__(
        self,
        params: Vector,
        *,
        step_size: float,
        annealing_steps: float,
        decay: float,
        regularisation: float,
        target_period: int,
    ) -> None:
        self.params = np.array(params, np.float32)
        self.moments = np.zeros_like(self.params)
        self.target: jax.Array = jnp.array(self.params)
        """The target network; it is replaced as a whole and never written to."""
        self.num_steps = 0
        """Environment steps of all actors, in segments that are finished."""
        self.num_updates = 0
        self._step_size = np.float32(step_size)
        self._annealing_steps = np.float32(annealing_steps)
        self._decay = np.float32(decay)
        self._regularisation = np.float32(regularisation)
        self._target_period = target_period
        self._counting = threading.Lock()

    @property
    def step_size(self) -> np.float32:
        """The current step size, on a line to 0."""
        share = np.clip(np.float32(self.num_steps) / self._annealing_steps, 0, 1)
        return self._step_size * (np.float32(1) - np.float32(share))

    def copy(self) -> tuple[Vector, int]:
        """Return a copy of the parameters, and the number of updates at its beginning."""
        seen = self.num_updates
        copied = np.empty_like(self.params)
        np.copyto(copied, self.params)  # without the GIL
        return copied, seen

    def count_steps(self, num_steps: int) -> None:
        """Add steps of the environments."""
        with self._counting:
            self.num_steps += num_steps

    def apply(self, gradient: Vector, *, seen: int, refused: bool) -> int:
        """Update the parameters by a gradient and return its staleness.

        The staleness is the number of updates of others since the copy was made that the gradient
        belongs to. A refused gradient is counted and changes nothing. The thread whose update ends
        a period copies the parameters to the target network.
        """
        with self._counting:
            staleness = self.num_updates - seen
            self.num_updates += 1
            number = self.num_updates
            step_size = self.step_size
        if not refused:
            update(self.params, self.moments, gradient, step_size, self._decay, self._regularisation)
        if number % self._target_period == 0:
            self.target = jnp.array(self.copy()[0])
        return staleness

    # -- saving ----------------------------------------------------------------------------------------------

    def arrays(self) -> dict[str, Any]:
        """Return everything but the parameters, by name; no thread may update meanwhile."""
        return {
            "moments": self.moments.copy(),
            "target": np.array(self.target),
            "counts": np.array([self.num_steps, self.num_updates]),
        }

    def restore(self, params: Vector, arrays: Any) -> None:
        """Set everything to saved values."""
        self.params = np.array(params, np.float32)
        self.moments = np.array(arrays["moments"])
        self.target = jnp.array(arrays["target"])
        self.num_steps, self.num_updates = (int(value) for value in arrays["counts"])
