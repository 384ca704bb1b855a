"""Off-policy evaluation from logged data: what would another policy have earned?

log = ot.evaluation.read("log.parquet")
found = ot.evaluation.estimate(log, target=pi, gamma=0.99, trace=ot.Retrace(0.9))
found.verdict, found["wdr"].value, found["wdr"].interval
"""

from offtrace.evaluation.comparison import Comparison, Difference
from offtrace.evaluation.diagnostics import Diagnostics
from offtrace.evaluation.estimation import DEFAULT, ESTIMATORS, Evaluation, ValueEstimate
from offtrace.evaluation.interface import compare, estimate
from offtrace.evaluation.log import Log
from offtrace.evaluation.problems import LogError, Problem
from offtrace.evaluation.reading import read, validate
from offtrace.evaluation.saving import write
from offtrace.evaluation.target import Target, as_target
from offtrace.evaluation.verdict import Verdict

__all__ = [
    "DEFAULT",
    "ESTIMATORS",
    "Comparison",
    "Diagnostics",
    "Difference",
    "Evaluation",
    "Log",
    "LogError",
    "Problem",
    "Target",
    "ValueEstimate",
    "Verdict",
    "as_target",
    "compare",
    "estimate",
    "read",
    "validate",
    "write",
]
