"""The β recursion of trajectory-aware traces, for NumPy, JAX and PyTorch arrays.

Seen from the first step of a trajectory, the TD error of step t counts with γ^t β_t (β_0 = 1).
Three numbers are carried from one step to the next:

    Λ_t = Λ_{t−1} λ_t                      Λ_t = λ^t where λ is one number
    L_t = L_{t−1} + log ρ_t                log Π_{s≤t} ρ_s
    β_t = next_beta(β_{t−1}, ρ_t, λ_t, Λ_t, L_t)

Only the last line differs between traces: it is their `next_beta`. Every array implementation calls
`advance`; the Numba kernels have the same formulas in `formulas.py`.
"""

from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from offtrace.arrays import Array, product, quietly

if TYPE_CHECKING:
    from offtrace.traces import TrajectoryAware


class BetaState(NamedTuple):
    """The recursion after step t. Arrays of one shape; `lambda_product` may be a number."""

    beta: Array
    """β_t."""
    lambda_product: Array
    """Π_{s=1..t} λ_s."""
    log_product: Array
    """log Π_{s=1..t} ρ_s."""

    @classmethod
    def start(cls, xp: ModuleType, like: Array) -> "BetaState":
        """The state before the first step, for trajectories laid out like this array."""
        ones = xp.ones_like(like)
        return cls(ones, ones, xp.zeros_like(like))


class BetaStep(NamedTuple):
    """The quantities a `next_beta` can read at step t."""

    xp: ModuleType
    beta: Array
    """β_{t−1}; 1 at the start."""
    log_ratio: Array
    """log ρ_t."""
    lambda_: Array
    """λ_t."""
    lambda_product: Array
    """Π_{s=1..t} λ_s, which is λ^t where λ is one number."""
    log_product: Array
    """log Π_{s=1..t} ρ_s."""
    given_ratio: Array | None = None
    """ρ_t where the caller has it; otherwise `ratio` is exp(log ρ_t)."""

    @property
    def ratio(self) -> Array:
        """ρ_t, which may overflow to infinity."""
        if self.given_ratio is not None:
            return self.given_ratio
        with quietly(self.xp, over="ignore"):
            return self.xp.exp(self.log_ratio)

    @property
    def carried(self) -> Array:
        """β_{t−1} ρ_t, and 0 where β_{t−1} is 0: a trace that was cut stays cut, even if ρ_t overflows."""
        with quietly(self.xp, over="ignore", invalid="ignore"):
            return product(self.beta, self.ratio)

    @property
    def clipped_product(self) -> Array:
        """min(1, Π_{s=1..t} ρ_s)."""
        return self.xp.exp(self.xp.where(self.log_product < 0, self.log_product, 0))


def advance(
    trace: "TrajectoryAware",
    xp: ModuleType,
    state: BetaState,
    *,
    log_ratio: Array,
    lambda_: Array,
    ratio: Array | None = None,
) -> BetaState:
    """Take the recursion one step on: β_{t−1} and step t's ρ and λ give β_t."""
    lambda_product = state.lambda_product * lambda_
    log_product = state.log_product + log_ratio
    step = BetaStep(xp, state.beta, log_ratio, lambda_, lambda_product, log_product, ratio)
    return BetaState(trace.next_beta(xp, step), lambda_product, log_product)
