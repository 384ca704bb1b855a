"""The paper at a scale that fits this machine.

The traces on a worked example, the comparison in tables and with networks, the published tables, and one page with
all of it.

    reproduction/
      index.html        the page; figures/, tables/ and data/ hold its parts as files
      results.sqlite    the runs of the comparison with networks; stored runs are not run again
      numbers.json      the worked example, the published tables rescored, the claims and the findings

The parts are functions, so that a caller can show each when it is done: train `planned_runs`, read them back with
`stored_runs`, run `tabular_studies`, then `compare` and `write_page`.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import offtrace as ot
from offtrace import scores
from offtrace.experiments import tabular
from offtrace.experiments.presets import SMALL_LAMBDAS
from offtrace.experiments.results import Study
from offtrace.experiments.theory import Contraction, contractions
from offtrace.mdp import SMALL_WORLD
from offtrace.report.findings import Materials, different_runs, findings, scores_of
from offtrace.reproduction.example import worked_example

__all__ = [
    "Reproduction",
    "compare",
    "planned_runs",
    "published_tables",
    "stored_runs",
    "tabular_studies",
    "worked_example",
    "write_page",
]


def planned_runs(scale: str, first_seed: int) -> list[Any]:
    """Return the specs of all presets at this scale, each once."""
    from offtrace.experiments.presets import PRESETS, preset
    from offtrace.experiments.spec import runs_of

    sweeps = [replace(preset(name, scale), first_seed=first_seed) for name in PRESETS]
    return list({repr(spec): spec for sweep in sweeps for spec in runs_of(sweep)}.values())


def stored_runs(results: Path, specs: Sequence[Any]) -> list[Any]:
    """Return the runs of these specs in a results file."""
    from offtrace.agent.spec import to_json
    from offtrace.experiments.store import fingerprint, read

    mine = {fingerprint(to_json(spec)) for spec in specs}
    return [run for run in read([results]) if run.fingerprint in mine]


def tabular_studies(
    first_seed: int, progress: Callable[[int, int], None] = lambda done, total: None
) -> list[scores.Comparison]:
    """Run the comparison in tables, on the small world and on twenty MDPs."""
    small = tabular.TabularStudy(
        games=tuple(SMALL_WORLD),
        lambdas=SMALL_LAMBDAS,
        num_seeds=16,
        num_episodes=100,
        exact=True,
        first_seed=first_seed,
    )
    twenty = tabular.TabularStudy(first_seed=first_seed)
    return [tabular.run(study, progress=progress).comparison() for study in (small, twenty)]


def published_tables() -> dict[str, Any]:
    """Return Table 3 scored by the paper's own rule, beside the averages that Table 2 prints for λ = 1."""
    final = scores.published_table_3()
    by_lambda = scores.published_table_2()
    z = scores.inter_algorithm_scores(final.scores)
    printed = dict(zip(by_lambda.algorithms, by_lambda.averages[-1], strict=True))
    best = scores.times_best(final.scores, highlighted=final.highlighted)
    return {
        name: {
            "times_best": int(best[i]),
            "average": float(scores.average_scores(z)[i]),
            "printed": float(printed[name]),
        }
        for i, name in enumerate(final.algorithms)
    }


@dataclass(frozen=True)
class Reproduction:
    """Everything that was computed, as data."""

    example: dict[str, Any]
    """The worked example."""
    rescored: dict[str, Any]
    """The published tables."""
    contractions: Sequence[Contraction]
    """The theory on the small world."""
    trained: Sequence[Study]
    """Studies with networks."""
    in_tables: Sequence[scores.Comparison]
    """Comparisons in tables: the small world, then twenty MDPs."""

    @cached_property
    def comparisons(self) -> list[scores.Comparison]:
        """All comparisons; the paper's own 60 games are the last."""
        return [*(study.comparison for study in self.trained), *self.in_tables, scores.published_comparison()]

    @cached_property
    def materials(self) -> Materials:
        """What the findings and the page's opening are made of."""
        return Materials(self.contractions, self.in_tables[0], self.trained[0] if self.trained else None)

    @property
    def num_trained(self) -> int:
        """Number of different runs of networks."""
        return sum(different_runs(study) for study in self.trained)

    @property
    def num_in_tables(self) -> int:
        """Number of different runs in tables."""
        return sum(different_runs(Study(comparison, ())) for comparison in self.in_tables)

    @property
    def num_diverged(self) -> int:
        return sum(study.num_by_status.get("diverged", 0) for study in self.trained)

    @cached_property
    def findings(self) -> list[str]:
        """The results as sentences."""
        return findings(self.materials)

    def numbers(self) -> dict[str, Any]:
        """Return all numbers, in types that JSON has."""
        numbers = {
            "version": ot.__version__,
            "worked_example": self.example,
            "published_tables": self.rescored,
            "contractions": [each._asdict() for each in self.contractions],
            "claims": {comparison.name: _claims(comparison) for comparison in self.comparisons},
            "found": self.findings,
            "num_diverged": self.num_diverged,
        }
        return json.loads(json.dumps(numbers, default=vars))


def _claims(comparison: scores.Comparison) -> dict[str, list[dict[str, Any]]]:
    found = {}
    for stretch in scores_of(comparison):
        found[stretch] = [claim._asdict() for claim in scores.claims(comparison, stretch)]
    return found


def compare(runs: Sequence[Any], in_tables: Sequence[scores.Comparison]) -> Reproduction:
    """Compare the runs, and add theory, worked example and published tables."""
    from offtrace.experiments.results import studies

    return Reproduction(
        worked_example(), published_tables(), contractions(SMALL_LAMBDAS), studies(runs), tuple(in_tables)
    )


def write_page(
    output: Path,
    found: Reproduction,
    *,
    command: str,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Write the page with its figures, tables and data; return its path. Raise an ImportError without the extra."""
    from offtrace.report import folder
    from offtrace.report.theory import theory_section

    return folder.write(
        output,
        [*found.trained, *(Study(comparison, ()) for comparison in found.in_tables)],
        materials=found.materials,
        extra_sections=[theory_section()],
        command=command,
        progress=progress,
    )
