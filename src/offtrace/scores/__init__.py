"""Inter-algorithm scores of Sec. 5, the paper's two tables of results, and statistics of a few runs."""

from offtrace.scores.aggregates import iqm, mean, median, optimality_gap
from offtrace.scores.claims import Claim, are_the_papers, claims, relevant_claims
from offtrace.scores.comparison import LEVEL, Comparison, published_comparison
from offtrace.scores.inter_algorithm import (
    StepPoints,
    average_scores,
    distribution_steps,
    inter_algorithm_scores,
    score_distribution,
    times_best,
)
from offtrace.scores.intervals import (
    Interval,
    Profile,
    interval,
    paired_difference,
    performance_profile,
    probability_of_improvement,
    stratified_bootstrap,
    verdict,
)
from offtrace.scores.keys import Key, is_baseline
from offtrace.scores.published import AveragesByLambda, FinalScores, published_table_2, published_table_3
from offtrace.scores.ranking import Difference, Entry, Ranking, ranking
from offtrace.scores.runs import RunScore, area_under_curve, normalised, run_score
from offtrace.scores.summaries import Averages, Statistics, Table
from offtrace.scores.verdicts import holm

__all__ = [
    "LEVEL",
    "Averages",
    "AveragesByLambda",
    "Claim",
    "Comparison",
    "Difference",
    "Entry",
    "FinalScores",
    "Interval",
    "Key",
    "Profile",
    "Ranking",
    "RunScore",
    "Statistics",
    "StepPoints",
    "Table",
    "are_the_papers",
    "area_under_curve",
    "average_scores",
    "claims",
    "distribution_steps",
    "holm",
    "inter_algorithm_scores",
    "interval",
    "iqm",
    "is_baseline",
    "mean",
    "median",
    "normalised",
    "optimality_gap",
    "paired_difference",
    "performance_profile",
    "probability_of_improvement",
    "published_comparison",
    "published_table_2",
    "published_table_3",
    "ranking",
    "relevant_claims",
    "run_score",
    "score_distribution",
    "stratified_bootstrap",
    "times_best",
    "verdict",
]


def __dir__() -> list[str]:
    return sorted(__all__)
