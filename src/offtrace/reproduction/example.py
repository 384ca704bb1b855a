"""A window of four steps on which every trace can be followed by hand."""

from typing import Any

import numpy as np

import offtrace as ot
from offtrace.returns import reference

EXAMPLE: dict[str, Any] = {
    "q": np.array([[1.0, 0.0], [0.0, 2.0], [1.0, 0.0], [1.0, 0.0], [2.0, 2.0]]),
    "a": np.array([0, 1, 0, 1]),
    "r": np.array([1.0, 0.0, 2.0, 1.0]),
    "discount": np.array([0.9, 0.9, 0.9, 0.9]),
    "pi": np.array([[0.9, 0.1], [0.7, 0.3], [0.8, 0.2], [0.55, 0.45], [0.5, 0.5]]),
    "mu_a": np.array([0.5, 0.6, 0.2, 0.9]),
}
"""A window of four steps and two actions, with ratios below and above 1: ρ_1 = ½, ρ_2 = 4, ρ_3 = ½."""


def worked_example() -> dict[str, Any]:
    """Return for every trace at λ = 1 how much of each TD error reaches row 0, and the target of row 0.

    `difference` is the largest distance between the targets and the double sum of Section 5.
    """
    rows = {}
    difference = 0.0
    pi_a = np.take_along_axis(EXAMPLE["pi"][:-1], EXAMPLE["a"][:, None], -1)[:, 0]
    q_a = np.take_along_axis(EXAMPLE["q"][:-1], EXAMPLE["a"][:, None], -1)[:, 0]
    for name, cls in ot.TRACES.items():
        options = {"num_dims": 2} if cls is ot.ContinuousACER else {}
        trace = cls(1.0, **options)
        if isinstance(trace, ot.TrajectoryAware):
            betas = trace.betas(pi_a=pi_a, mu_a=EXAMPLE["mu_a"])
        else:
            given = {"q": EXAMPLE["q"], "pi": EXAMPLE["pi"], "a": EXAMPLE["a"]} if trace.needs_q else {}
            c = trace(pi_a=pi_a, mu_a=EXAMPLE["mu_a"], **given)
            betas = np.concatenate([[1.0], np.cumprod(c[1:])])
        target = ot.targets(**EXAMPLE, trace=trace)[0]
        expected = reference.expectations(EXAMPLE["q"], EXAMPLE["pi"])
        delta, _ = reference.double_sum(
            q_a, expected, EXAMPLE["r"], EXAMPLE["discount"], lambda start, t, _, betas=betas: float(betas[t - start])
        )
        difference = max(difference, abs(float(q_a[0] + delta[0] - target)))
        rows[name] = {"rule": cls.rule, "reach": betas.tolist(), "target": float(target), "safe": cls.safe}
    return {"traces": rows, "difference": difference}
