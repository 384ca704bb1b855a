"""Learning online from trajectories, in tables: Eq. 7 for every trace, for evaluation and control.

For each (x, a) of the k-th trajectory, drawn from μ_k, with s the time of its first occurrence,

    Q_{k+1}(x, a) ← Q_k(x, a) + α_k Σ_{t≥s} δ_t Σ_{j=s..t} γ^{t−j} (Π_{i=j+1..t} c_i) 1{x_j, a_j = x, a}      (Eq. 7)
    δ_t = r_t + γ E_{π_k} Q_k(x_{t+1}, ·) − Q_k(x_t, a_t)

A `FiniteMDP` is compiled together with the learner; a Gymnasium environment is stepped;
`Trajectories` are replayed.
"""

from offtrace.online.learning import collect, control, evaluate, sweep
from offtrace.online.policy_sequences import EpsilonGreedy, Fixed, Greedy, Mixture, Softmax
from offtrace.online.records import Learned, SweepResult, Trajectories
from offtrace.online.schedules import DEFAULT_STEP_SIZE, ONE_OVER_VISITS, StepSize, decaying, linear

__all__ = [
    "DEFAULT_STEP_SIZE",
    "ONE_OVER_VISITS",
    "EpsilonGreedy",
    "Fixed",
    "Greedy",
    "Learned",
    "Mixture",
    "Softmax",
    "StepSize",
    "SweepResult",
    "Trajectories",
    "collect",
    "control",
    "decaying",
    "evaluate",
    "linear",
    "sweep",
]


def __dir__() -> list[str]:
    return __all__
