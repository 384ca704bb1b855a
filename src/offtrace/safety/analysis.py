"""`Analysis`, the result of `analyze`: rows to compute with, and a printed table of 80 columns."""

import io
import math
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from offtrace.mdp import CountedMDP, FiniteMDP
from offtrace.safety.measures import BY_THEOREM, DIVERGES, HERE, UNKNOWN, SafetyRow
from offtrace.traces import Retrace, TreeBackup

WIDTH = 80


@dataclass(frozen=True, eq=False, repr=False)
class Analysis:
    """The safety table of an MDP, a target policy π and a behaviour policy μ; `print` it."""

    mdp: FiniteMDP
    pi: np.ndarray
    mu: np.ndarray
    accuracy: float
    rows: tuple[SafetyRow, ...]
    off_policyness: float
    """ε = max_x ‖π(·|x) − μ(·|x)‖₁, in [0, 2]."""
    largest_lambdas: dict[str, float]
    """For each trace that is not safe by theorem, the largest λ up to which iterating R converges."""
    num_trajectories: int
    """Trajectories per (x, a) for the sampled rows; 0 if no row was sampled."""
    counted: CountedMDP | None = None
    left_out: tuple[str, ...] = ()
    """Traces left out because sampling them would take minutes."""

    def __repr__(self) -> str:
        return f"Analysis({self.mdp!r}, {len(self.rows)} rows, best {self.best.label}); print it for the table"

    def __iter__(self) -> Iterator[SafetyRow]:
        return iter(self.rows)

    def row(self, trace: str, lambda_: float | None = None) -> SafetyRow:
        """Return one row; λ may be omitted if the trace has a single row."""
        found = [row for row in self.rows if row.trace == trace and lambda_ in (None, row.lambda_)]
        if len(found) != 1:
            raise KeyError(
                f"`trace` and `lambda_` must name one row; got {trace!r} and {lambda_}, which name {len(found)}. "
                f"Valid rows: {', '.join(row.label for row in self.rows)}."
            )
        return found[0]

    @property
    def q_lambda_bound(self) -> float:
        """(1−γ)/(γε): Q^π(λ) is sure to converge for a smaller λ (Harutyunyan et al. 2016). Sufficient only."""
        spread = self.mdp.gamma * self.off_policyness
        return (1 - self.mdp.gamma) / spread if spread else math.inf

    @property
    def q_star_bound(self) -> float:
        """(1−γ)/(2γ): Q*(λ) is sure to converge for a smaller λ, whatever μ is."""
        return (1 - self.mdp.gamma) / (2 * self.mdp.gamma) if self.mdp.gamma else math.inf

    @property
    def uncovered(self) -> np.ndarray:
        """(X, A) True where π takes an action that μ never takes: there are no data on it."""
        return (self.mu == 0) & (self.pi > 0)

    @property
    def best(self) -> SafetyRow:
        """The row safe by theorem that needs the fewest samples, by a bound; of equal ones, Retrace."""
        safe = [row for row in self.rows if row.verdict == BY_THEOREM] or [r for r in self.rows if r.verdict == HERE]
        least = min(safe or self.rows, key=lambda row: (row.cost, row.iterations or math.inf))
        equal = [row for row in safe if row.cost <= least.cost * (1 + 1e-6) and math.isfinite(row.cost)] or [least]
        return next((row for row in equal if row.trace == Retrace.name), equal[0])

    @property
    def recommendation(self) -> str:
        """The recommended trace in one sentence, with the reason."""
        best = self.best
        if best.verdict in (DIVERGES, UNKNOWN):
            safe = f"`{Retrace.name}` or `{TreeBackup.name}`"
            return f"None of these is known to converge here: add {safe}, safe for any π and μ."
        sure = "safe by Theorem 1"
        others = "of the traces that are safe by Theorem 1"
        if best.verdict != BY_THEOREM:
            sure = "it converges here, though not by Theorem 1"
            others = "of the traces that converge here (none is safe by Theorem 1)"
        if not math.isfinite(best.cost):
            return f"Use {best.label}: {sure}; what its samples cost is not known."
        steps = f"{best.iterations:,.0f} step{'' if best.iterations == 1 else 's'} of R to {self.accuracy:g}"
        spread = math.sqrt(best.target_variance)
        reason = f"{steps}, with sampled targets that are off by {spread:.3g} on average"
        return f"Use {best.label}: {others} it needs the fewest samples, by a bound ({reason})."

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "mdp": {
                "name": self.mdp.name,
                "num_states": self.mdp.num_states,
                "num_actions": self.mdp.num_actions,
                "gamma": self.mdp.gamma,
            },
            "accuracy": self.accuracy,
            "off_policyness": self.off_policyness,
            "q_lambda_bound": _finite(self.q_lambda_bound),
            "q_star_bound": _finite(self.q_star_bound),
            "largest_lambdas": self.largest_lambdas,
            "num_trajectories": self.num_trajectories,
            "rows": [row.as_dict() for row in self.rows],
            "best": self.best.label,
            "recommendation": self.recommendation,
            "left_out": list(self.left_out),
            "notes": self.notes(),
        }

    def notes(self) -> list[str]:
        """Return sentences on the bounds, and on what is not known."""
        notes = []
        if 0 < self.mdp.gamma < 1:
            notes.append(
                f"Q(λ) is sure to converge for λ < {self.q_lambda_bound:.3g} = (1−γ)/(γε), with ε = max ‖π−μ‖₁ = "
                f"{self.off_policyness:.3g}; Q*(λ), whatever μ is, for λ < {self.q_star_bound:.3g} = (1−γ)/(2γ)."
            )
        if self.largest_lambdas:
            found = ", ".join(f"{name} up to {value:.3g}" for name, value in self.largest_lambdas.items())
            notes.append(f"The largest λ that converges here, of what Theorem 1 does not cover: {found}.")
        if self.uncovered.any():
            x, a = np.argwhere(self.uncovered)[0].tolist()
            notes.append(
                f"π takes actions that μ never takes in {int(self.uncovered.sum())} pairs, (x, a) = ({x}, {a}) "
                "first: no data will come from there, and the traces end there."
            )
        if self.num_trajectories:
            largest = max(row.standard_error for row in self.rows)
            error = f"; the standard error of ‖A‖ is {largest:.2g} or less" if largest else ""
            notes.append(f"~ sampled, {self.num_trajectories} trajectories from each (x, a){error}.")
        if self.left_out:
            notes.append(
                f"Left out, as sampling would take minutes: {', '.join(self.left_out)}. Name them to include them."
            )
        if self.counted is not None:
            notes += _notes_on_data(self.counted, self.pi)
        return notes

    def twins(self) -> dict[str, str]:
        """Return the traces with the same numbers as an earlier one at every λ, and that one."""
        seen: dict[tuple[Any, ...], str] = {}
        twins = {}
        names = dict.fromkeys(row.trace for row in self.rows)
        for trace in sorted(names, key=lambda name: name != Retrace.name):  # of two equal traces Retrace is shown
            rows = [row for row in self.rows if row.trace == trace]
            if any(row.sampled or row.variance_radius is None for row in rows):
                continue
            numbers = tuple(
                (row.lambda_, row.verdict, f"{row.contraction:.6g} {row.radius:.6g} {row.target_variance:.6g}")
                for row in rows
                if row.contraction is not None
            )
            if numbers in seen and numbers:
                twins[trace] = seen[numbers]
            seen.setdefault(numbers, trace)
        return twins

    def __str__(self) -> str:
        from rich.console import Console

        text = io.StringIO()
        console = Console(file=text, width=WIDTH, no_color=True, highlight=False, force_terminal=False)
        self.print(console)
        return text.getvalue().rstrip("\n")

    def print(self, console: Any) -> None:
        """Print the table to a `rich` console, in colour where it has colours."""
        from rich import box
        from rich.table import Table
        from rich.text import Text

        mdp = self.mdp
        name = f"{mdp.name}: " if mdp.name else ""
        title = f"{name}{mdp.num_states:,} states, {mdp.num_actions} actions, γ = {mdp.gamma:g}"
        table = Table(
            title=Text(title, style="table.title"),
            box=box.SIMPLE_HEAD,
            title_justify="left",
            padding=(0, 1, 0, 0),
            show_edge=False,
        )
        table.add_column("trace", no_wrap=True)
        for heading in ("λ", "safe", "‖A‖", "ρ(A)", "steps", "var Σc", "target ±"):
            table.add_column(heading, justify="left" if heading == "safe" else "right", no_wrap=True)
        previous = ""
        twins = self.twins()
        for row in self.rows:
            if row.trace in twins:
                continue
            mark = "~" if row.sampled else ""
            variance_mark = "~" if row.variance_radius is None else ""
            style = {BY_THEOREM: "green", HERE: "yellow", DIVERGES: "bold red", UNKNOWN: "dim"}[row.verdict]
            table.add_row(
                Text(row.trace if row.trace != previous else ""),
                "" if row.lambda_ is None or row.label == row.trace else f"{row.lambda_:g}",
                Text(row.verdict.upper() if row.verdict == DIVERGES else row.verdict, style=style),
                "?" if row.contraction is None else f"{mark}{_factor(row.contraction)}",
                "?" if row.radius is None else f"{mark}{_factor(row.radius)}",
                _count(row.iterations),
                variance_mark + _short(row.trace_variance),
                variance_mark + _short(math.sqrt(row.target_variance)),
                style="bold" if row is self.best else "",
            )
            previous = row.trace
        console.print(textwrap.fill(self.recommendation, WIDTH - 1), style="bold", highlight=False, markup=False)
        console.print()
        console.print(table)
        for label, meaning in LEGEND.items():
            text = meaning.format(accuracy=self.accuracy)
            wrapped = textwrap.fill(f"{label:9}{text}", WIDTH - 1, subsequent_indent=" " * 9)
            console.print(wrapped, style="dim", highlight=False)
        same = [f"The same here: {', '.join(f'{one} as {other}' for one, other in twins.items())}."] if twins else []
        for note in (*same, *self.notes()):
            console.print(textwrap.fill(note, WIDTH - 1), highlight=False, markup=False)


LEGEND = {
    "safe": "by theorem: c ≤ π/μ, Theorem 1 holds; here: not covered by it, but converges; or DIVERGES",
    "‖A‖": "one step of R multiplies the error by A: at most by this (max η where safe by theorem)",
    "ρ(A)": "by this in the long run; R converges if it is below 1",
    "steps": "of R until the largest error is {accuracy:g} of the initial one, from any Q",
    "var Σc": "variance of Σ γᵗ c₁…cₜ, averaged over (x, a)",
    "target ±": "standard deviation of a sampled target, averaged over (x, a); ∞: averages do not converge",
}


def _factor(value: float) -> str:
    value = 0.0 if abs(value) < 5e-4 else value  # rounding may leave −0.000
    return f"{value:.3f}" if value < 10 else f"{value:.3g}"


def _count(value: float | None) -> str:
    if value is None:
        return "?"
    return "∞" if math.isinf(value) else f"{value:,.0f}"


def _short(value: float) -> str:
    return "∞" if math.isinf(value) else f"{value:.3g}"


def _finite(value: float) -> float | str:
    return "inf" if math.isinf(value) else value


def _notes_on_data(counted: CountedMDP, pi: np.ndarray) -> list[str]:
    """Return sentences on what the data leave open."""
    visited = ~counted.unvisited
    notes = [
        f"Counted from {counted.num_transitions:,} transitions: an estimate, with errors that are not shown. "
        f"Never seen: {int(counted.unseen.sum()):,} of {counted.counts.size:,} pairs (x, a)"
    ]
    if counted.unvisited.any():
        notes[0] += f", and {int(counted.unvisited.sum()):,} of {len(visited):,} states"
    notes[0] += "; there the model ends at once, with reward 0."
    unknown = np.where(counted.unseen, pi, 0).sum(1)
    if visited.any() and unknown[visited].max() > 0:
        x = int(np.argmax(np.where(visited, unknown, -1)))
        notes.append(
            f"In states that were visited, π puts up to {unknown[x]:.0%} of its choices (x = {x}) on actions never "
            "seen; nothing can be said of them."
        )
    few = int(((counted.counts > 0) & (counted.counts < 10)).sum())
    if few:
        notes.append(f"{few:,} pairs were seen fewer than 10 times.")
    return notes
