"""The update of Shared RMSprop, compiled: it runs without the GIL, so that several threads update at once."""

from typing import Any

import numpy as np

from offtrace.kernels import jit


@jit()
def update(params: Any, moments: Any, gradient: Any, step_size: Any, decay: Any, regularisation: Any) -> None:
    """Change parameters and second moments in place; all numbers are float32.

        g ← αg + (1 − α)Δ²,    θ ← θ − η Δ / √(g + ε)

    The moments are not centred. Other threads may write to the same arrays meanwhile: nothing is locked.
    """
    rest = np.float32(1) - decay
    for i in range(len(params)):
        moment = decay * moments[i] + rest * gradient[i] * gradient[i]
        moments[i] = moment
        params[i] -= step_size * gradient[i] / np.sqrt(moment + regularisation)
