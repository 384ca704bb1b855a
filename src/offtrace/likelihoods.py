"""π(a_t|x_t) and μ(a_t|x_t), given as probabilities or as logarithms, and the ratios made of them."""

from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from offtrace.arrays import Array, known, namespace
from offtrace.refusals import refuse

TOLERANCE = {"bfloat16": 5e-2, "float16": 1e-2, "float32": 1e-4, "float64": 1e-6}
"""How far off rounding may leave a probability, by the dtype it came in."""


def tolerance(*probabilities: Any) -> float:
    """The widest tolerance among the arrays given."""
    given = (str(p.dtype).removeprefix("torch.") for p in probabilities if hasattr(p, "dtype"))
    return max((TOLERANCE.get(name, 1e-6) for name in given), default=1e-6)


SMALLEST_LOG = -103.28
"""Of a float32; stands for log μ where XLA takes a subnormal μ for 0."""


class Likelihoods(NamedTuple):
    """What a trace reads of the actions taken; both as probabilities, or both as logarithms."""

    xp: ModuleType
    pi_a: Array
    mu_a: Array
    log_pi_a: Array
    log_mu_a: Array

    def target(self) -> Array:
        """π(a_t|x_t)."""
        return self.xp.exp(self.log_pi_a) if self.pi_a is None else self.pi_a

    def log_ratio(self) -> Array:
        """log ρ_t; −inf where π(a_t|x_t) = 0."""
        if self.log_pi_a is not None and self.log_mu_a is not None:
            return self.log_pi_a - self.log_mu_a
        drawn = self.xp.where(self.mu_a > 0, log(self.xp, self.mu_a), SMALLEST_LOG)
        return self.xp.where(self.pi_a > 0, log(self.xp, self.pi_a) - drawn, -np.inf)

    def ratio(self) -> Array:
        """ρ_t = π(a_t|x_t) / μ(a_t|x_t)."""
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # whoever asks looks at what comes out
            if self.pi_a is not None and self.mu_a is not None:
                return self.pi_a / self.mu_a
            return self.xp.exp(self.log_ratio())

    def clipped_ratio(self) -> Array:
        """min(1, ρ_t), which no μ, however small, can make overflow."""
        if self.pi_a is not None and self.mu_a is not None:
            below = self.pi_a < self.mu_a
            return self.xp.where(below, self.pi_a / self.xp.where(below, self.mu_a, 1), 1)
        log_ratio = self.log_ratio()
        return self.xp.exp(self.xp.where(log_ratio < 0, log_ratio, 0))


def likelihoods(*given: Array | None) -> Likelihoods:
    """From `pi_a, mu_a, log_pi_a, log_mu_a`; lists become arrays, and all are float32 at least."""
    xp = namespace(*given)
    return Likelihoods(xp, *(None if value is None else _floating(xp, value) for value in given))


def _floating(xp: ModuleType, value: Any) -> Array:
    if xp.__name__ == "torch":
        value = xp.as_tensor(value)
        return value if value.dtype in (xp.float32, xp.float64) else value.to(xp.float32)
    value = xp.asarray(value)
    if value.dtype in (np.float32, np.float64):
        return value
    return value.astype(np.float64 if xp is np and value.dtype.kind in "iub" else np.float32)


def log(xp: ModuleType, probability: Array) -> Array:
    """log p, where a p of 0 makes neither a warning nor a NaN in the gradient; it gives log 1 there."""
    return xp.log(xp.where(probability > 0, probability, 1))


def check(given: Likelihoods, *, real: Any = True, needs_mu: bool, tol: float) -> None:
    """Refuses what is no probability or density; `real` says which rows count. Unknown values pass."""
    if not known(*given[1:], real):
        return
    xp, pi_a, mu_a, log_pi_a, log_mu_a = given
    if xp.__name__ == "jax.numpy":  # on the host: XLA takes subnormal numbers for 0
        pi_a, mu_a, log_pi_a, log_mu_a = (None if v is None else np.asarray(v) for v in given[1:])
        xp = np
    if pi_a is not None:
        remedy = "Logarithms and densities go in as `log_pi_a=`."
        refuse(real & ~((pi_a >= -tol) & (pi_a <= 1 + tol)), "pi_a", "must be a probability in [0, 1]", pi_a, remedy)
    if log_pi_a is not None:
        refuse(real & ~(log_pi_a < np.inf), "log_pi_a", "must be a number below +inf", log_pi_a)
    if not needs_mu:
        return
    if mu_a is not None:
        remedy = "It is the probability with which a_t was drawn; no action taken can have had 0."
        refuse(real & (mu_a == 0), "mu_a", "must be above 0 on every action taken", mu_a, remedy)
        remedy = "Logarithms and densities go in as `log_mu_a=`."
        refuse(real & ~((mu_a > 0) & (mu_a <= 1 + tol)), "mu_a", "must be a probability in (0, 1]", mu_a, remedy)
    if log_mu_a is not None:
        remedy = "No action taken can have had density 0."
        refuse(real & ~xp.isfinite(log_mu_a), "log_mu_a", "must be finite on every action taken", log_mu_a, remedy)
