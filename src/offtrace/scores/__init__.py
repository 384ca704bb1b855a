"""Inter-algorithm scores of Sec. 5 and the paper's two tables of results, as plain functions on a matrix."""

from offtrace.scores.inter_algorithm import (
    StepPoints,
    average_scores,
    distribution_steps,
    inter_algorithm_scores,
    score_distribution,
    times_best,
)
from offtrace.scores.published import AveragesByLambda, FinalScores, published_table_2, published_table_3

__all__ = [
    "AveragesByLambda",
    "FinalScores",
    "StepPoints",
    "average_scores",
    "distribution_steps",
    "inter_algorithm_scores",
    "published_table_2",
    "published_table_3",
    "score_distribution",
    "times_best",
]
