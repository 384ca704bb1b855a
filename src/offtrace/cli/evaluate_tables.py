"""What `offtrace evaluate` prints: the verdict and the warnings first, then the estimates with their intervals."""

import math

from rich.text import Text

from offtrace.cli.numbers import number, printable
from offtrace.cli.streams import Console
from offtrace.cli.tables import new_table
from offtrace.evaluation import Comparison, Evaluation, ValueEstimate
from offtrace.evaluation.estimation import TITLES, drawn_range

STYLES = {"yes": "bold green", "with care": "bold yellow", "no": "bold red"}
BAR = 14
"""Characters of an interval in the chart."""
MOST_DECIMALS = 5
"""Decimals that all numbers of a table may have; if they need more, each number has its own digits."""
LEGEND = (
    "IS: importance sampling; W: weighted; PD: per decision; DR: doubly robust; FQE: fitted Q evaluation, one step. "
    "The chart has the intervals; ← and → go on beyond it."
)


def print_evaluation(found: Evaluation, console: Console) -> None:
    """Print the verdict, the warnings, the estimates and the numbers behind them."""
    _print_verdict(found, console)
    console.print(_table(found))
    _print_numbers(found, console)


def print_comparison(found: Comparison, console: Console) -> None:
    """Print the estimates of every policy, and the differences of every pair."""
    for name, evaluation in found.evaluations.items():
        console.print(Text(printable(name), style="bold"))
        _print_verdict(evaluation, console)
        console.print(_table(evaluation))
        _print_numbers(evaluation, console)
        console.print()
    level = next(iter(found.evaluations.values())).confidence
    caption = (
        f"Paired differences of the estimates that the verdicts name, with intervals of {level:.0%}. The last column "
        "considers all pairs at once (Holm). It tells nothing where a verdict is no."
    )
    table = new_table("Which policy is better?", caption)
    for name in ("better", "than"):
        table.add_column(name, overflow="fold")
    for name in ("by", "interval"):
        table.add_column(name, justify="right")
    table.add_column("told apart")
    for one in found.differences:
        low, high = (number(end) for end in one.interval)
        told = Text("yes", "green") if one.told else Text("cannot tell", "dim")
        table.add_row(printable(one.one), printable(one.other), number(one.value), f"{low} to {high}", told)
    console.print(table)


def _print_verdict(found: Evaluation, console: Console) -> None:
    verdict = found.verdict
    console.print("Can this log answer the question?", Text(str(verdict), STYLES[verdict.answer]), highlight=False)
    for line in verdict.warnings:
        console.print(Text(f"• {line}", "yellow"), highlight=False)
    console.print()


def _table(found: Evaluation) -> object:
    low, high = drawn_range([found])
    decimals = _decimals(found[found.verdict.estimate])
    caption = f"Value at the start of an episode, γ = {found.gamma:g}; {found.confidence:.0%} intervals. {LEGEND}"
    table = new_table("", caption)
    table.add_column("estimator")
    table.add_column("value", justify="right")
    table.add_column("interval", justify="right")
    table.add_column("bootstrap", justify="right")
    table.add_column("")
    for one in (*found.estimates, found.logged):
        style = "bold" if one.name == found.verdict.estimate else ""
        if one.name == "logged":
            style = "dim"
        ends = [" to ".join(_rounded(end, decimals) for end in pair) for pair in (one.interval, one.bootstrap)]
        table.add_row(printable(_short(one)), _rounded(one.value, decimals), *ends, _bar(one, low, high), style=style)
    return table


def _decimals(one: ValueEstimate) -> int | None:
    """Return how many decimals show two digits of an interval's width; None if too many, or for a width of 0."""
    width = one.interval[1] - one.interval[0]
    if not 0 < width < math.inf:
        return None
    decimals = max(1 - math.floor(math.log10(width)), 0)
    return decimals if decimals <= MOST_DECIMALS else None


def _rounded(value: float, decimals: int | None) -> str:
    if decimals is None or not abs(value) < 999.5:
        return number(value)
    return f"{value:z.{decimals}f}"


def _short(one: ValueEstimate) -> str:
    """Return the abbreviation of an estimator, or the title of a trace."""
    if one.name in TITLES:
        return one.name.upper()
    return one.title


def _bar(one: ValueEstimate, low: float, high: float) -> str:
    """Return an interval as text: ├───●───┤, with an arrow where it goes on beyond the chart."""
    if not low < high:
        return "●"

    def place(value: float) -> int:
        return round((min(max(value, low), high) - low) / (high - low) * (BAR - 1))

    cells = [" "] * BAR
    first, last = place(one.interval[0]), place(one.interval[1])
    cells[first : last + 1] = "─" * (last + 1 - first)
    cells[first] = "├" if one.interval[0] >= low else "←"
    cells[last] = "┤" if one.interval[1] <= high else "→"
    cells[place(one.value)] = "●"
    return "".join(cells)


def _print_numbers(found: Evaluation, console: Console) -> None:
    numbers = found.diagnostics
    first = (
        f"{numbers.num_episodes:,} episodes with {numbers.num_steps:,} steps, worth "
        f"{number(numbers.effective_episodes)} episodes of the target policy"
    )
    if numbers.num_possible:
        first += f"; largest weight {number(numbers.largest_weight)} ({numbers.largest_share:.1%} of all)"
    lines = [f"{first}."]
    behaviour = found.behaviour
    if behaviour is not None:
        lines.append(
            f"μ was estimated by {behaviour.method} in {behaviour.num_folds} folds: mean log-likelihood "
            f"{behaviour.log_likelihood:.3f} ({behaviour.marginal_log_likelihood:.3f} without the state), smallest "
            f"probability {number(behaviour.smallest)}."
        )
    for line in lines:
        console.print(Text(line, "dim"), highlight=False)
