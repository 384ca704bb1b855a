"""π(a_t|x_t) and μ(a_t|x_t) as probabilities or as logarithms, and the ratios computed from them."""

from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from offtrace.arrays import Array, is_concrete, namespace, quietly
from offtrace.errors import raise_where

TOLERANCE = {"bfloat16": 5e-2, "float16": 1e-2, "float32": 1e-4, "float64": 1e-6}
"""Rounding error allowed in a probability, by the dtype of the input."""


def tolerance(*probabilities: Any) -> float:
    """Return the largest tolerance among the dtypes of the arrays given."""
    given = (str(p.dtype).removeprefix("torch.") for p in probabilities if hasattr(p, "dtype"))
    return max([1e-6, *(TOLERANCE.get(name, 1e-6) for name in given)])


SMALLEST_LOG = -103.28
"""Logarithm of the smallest float32; stands for log μ where XLA flushes a subnormal μ to 0."""


class Likelihoods(NamedTuple):
    """What a trace reads about the actions taken: both policies as probabilities, or both as logarithms."""

    xp: ModuleType
    """The array library's namespace: `numpy`, `jax.numpy` or `torch`."""
    pi_a: Array
    mu_a: Array
    log_pi_a: Array
    log_mu_a: Array

    def target(self) -> Array:
        """Return π(a_t|x_t)."""
        if self.pi_a is None:
            return self.xp.exp(self.log_pi_a)
        return self.pi_a

    def log_ratio(self) -> Array:
        """Return log ρ_t; −inf where π(a_t|x_t) = 0."""
        if self.log_pi_a is not None and self.log_mu_a is not None:
            return self.log_pi_a - self.log_mu_a
        log_mu_a = self.xp.where(self.mu_a > 0, safe_log(self.xp, self.mu_a), SMALLEST_LOG)
        return self.xp.where(self.pi_a > 0, safe_log(self.xp, self.pi_a) - log_mu_a, -np.inf)

    def ratio(self) -> Array:
        """Return ρ_t = π(a_t|x_t) / μ(a_t|x_t)."""
        # The caller checks the result, so NumPy need not warn about it.
        with quietly(self.xp, over="ignore", divide="ignore", invalid="ignore"):
            if self.pi_a is not None and self.mu_a is not None:
                return self.pi_a / self.mu_a
            return self.xp.exp(self.log_ratio())

    def clipped_ratio(self) -> Array:
        """Return min(1, ρ_t); it never overflows, however small μ is."""
        if self.pi_a is not None and self.mu_a is not None:
            below = self.pi_a < self.mu_a
            return self.xp.where(below, self.pi_a / self.xp.where(below, self.mu_a, 1), 1)
        log_ratio = self.log_ratio()
        return self.xp.exp(self.xp.where(log_ratio < 0, log_ratio, 0))


def as_likelihoods(*given: Array | None) -> Likelihoods:
    """Return `Likelihoods` from `pi_a, mu_a, log_pi_a, log_mu_a`; lists become arrays, dtypes at least float32."""
    xp = namespace(*given)
    return Likelihoods(xp, *(None if value is None else _floating(xp, value) for value in given))


def _floating(xp: ModuleType, value: Any) -> Array:
    if xp.__name__ == "torch":
        value = xp.as_tensor(value)
        return value if value.dtype in (xp.float32, xp.float64) else value.to(xp.float32)
    value = xp.asarray(value)
    if value.dtype in (np.float32, np.float64):
        return value
    is_integer = value.dtype.kind in "iub"
    return value.astype(np.float64 if xp is np and is_integer else np.float32)


def safe_log(xp: ModuleType, probability: Array) -> Array:
    """Return log p, and 0 where p = 0: no warning, and no NaN in the gradient."""
    return xp.log(xp.where(probability > 0, probability, 1))


def check_likelihoods(given: Likelihoods, *, real: Any = True, reads_mu: bool, tol: float) -> None:
    """Check that the values are probabilities or log-densities in the rows where `real` is True.

    μ is checked only if the trace reads it. Tracers inside `jit` pass.
    """
    if not is_concrete(*given[1:], real):
        return
    xp, pi_a, mu_a, log_pi_a, log_mu_a = given
    if xp.__name__ == "jax.numpy":  # check on the host: XLA flushes subnormal numbers to 0
        pi_a, mu_a, log_pi_a, log_mu_a = (None if v is None else np.asarray(v) for v in given[1:])
        xp = np
    if pi_a is not None:
        outside = real & ~((pi_a >= -tol) & (pi_a <= 1 + tol))
        remedy = "Pass logarithms and densities as `log_pi_a=`."
        raise_where(outside, "pi_a", "must be a probability in [0, 1]", pi_a, remedy)
    if log_pi_a is not None:
        raise_where(real & ~(log_pi_a < np.inf), "log_pi_a", "must be a number below +inf", log_pi_a)
    if not reads_mu:
        return
    if mu_a is not None:
        remedy = "It is the probability with which a_t was drawn, so it cannot be 0."
        raise_where(real & (mu_a == 0), "mu_a", "must be above 0 on every action taken", mu_a, remedy)
        outside = real & ~((mu_a > 0) & (mu_a <= 1 + tol))
        remedy = "Pass logarithms and densities as `log_mu_a=`."
        raise_where(outside, "mu_a", "must be a probability in (0, 1]", mu_a, remedy)
    if log_mu_a is not None:
        remedy = "An action that was taken cannot have had density 0."
        infinite = real & ~xp.isfinite(log_mu_a)
        raise_where(infinite, "log_mu_a", "must be finite on every action taken", log_mu_a, remedy)
