"""Tries four step sizes for every algorithm and λ on the small world, with seeds that are used for
nothing else.

    python simulations/tune_small_world.py tuning.sqlite

Prints the mean of two scores over the five MDPs and four seeds, and the best step size. The scores
are those of training and of evaluation with ε ≈ 0, each scaled from 0 (random play) to 1 (the
optimal policy). The choices are in `offtrace.experiments.presets`. This takes about four minutes on
two cores; runs that are in the file are not repeated.
"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from offtrace.agent.spec import Plan, to_json
from offtrace.experiments import engine, exact
from offtrace.experiments.presets import preset
from offtrace.experiments.results import scores
from offtrace.experiments.spec import runs_of
from offtrace.experiments.store import fingerprint, read

STEP_SIZES = (5e-4, 1e-3, 2e-3, 4e-3)
FIRST_SEED = 1000
NUM_SEEDS = 4


def tuned() -> list[Plan]:
    """Return the runs of both small-world presets with every step size."""
    found = {}
    for name in ("table_2", "ladder"):
        sweep = replace(preset(name, "pocket"), first_seed=FIRST_SEED, num_seeds=NUM_SEEDS)
        for spec in runs_of(sweep):
            for step_size in STEP_SIZES:
                plan = replace(spec, step_size=step_size)
                found[repr(plan)] = plan
    return list(found.values())


def main(path: Path) -> None:
    specs = tuned()
    wanted = {fingerprint(to_json(spec)) for spec in specs}
    engine.run(specs, path)
    by_algorithm: dict[tuple[str, float], dict[float, list[float]]] = {}
    for run in read([path]):
        if run.fingerprint not in wanted:
            continue
        random, optimal = exact.anchors(run.spec["env"], run.spec["options"]) or (0.0, 1.0)
        found = scores(run)
        known = [value for value in (found["final"], found["evaluation"]) if value is not None]
        both = [(value - random) / (optimal - random) for value in known]
        name = run.spec["trace"]
        if name == "dqn":
            name = f"dqn, {run.spec['target_policy']}{', double' if run.spec['double'] else ''}"
        sizes = by_algorithm.setdefault((name, run.spec["lambda_"]), {})
        sizes.setdefault(run.spec["step_size"], []).append(float(np.mean(both)))
    for (name, lambda_), sizes in sorted(by_algorithm.items()):
        means = {size: np.mean(values) for size, values in sorted(sizes.items())}
        shown = "  ".join(f"{size:g}: {mean:.3f}" for size, mean in means.items())
        print(f"{name:28} λ = {lambda_:<4g} {shown}   best {max(means, key=lambda size: means[size]):g}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
