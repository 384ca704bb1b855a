"""From a hospital's log to a decision: would another treatment policy save more patients?

    pip install '.[evaluation,report]' icu-sepsis
    python examples/08_evaluate_a_treatment.py --output evaluation

ICU-Sepsis (Choudhary et al. 2024) is a model of sepsis patients in intensive care, with 716 states
and 25 treatments. A patient who survives earns 1, so with γ = 1 the value of a policy is the share
of patients who survive. Here the model only plays the hospital: it draws the log, and it tells us
at the end what we could not have known.
"""

import argparse
from pathlib import Path

import numpy as np

import offtrace as ot
from offtrace.evaluation.simulation import simulate

parser = argparse.ArgumentParser()
parser.add_argument("--stays", type=int, default=20_000, help="hospital stays in the log")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--output", type=Path, help="folder for a chart and the numbers")
given = parser.parse_args()

# 1. The hospital. Clinicians act as they do, and every stay is logged.
from icu_sepsis import ICUSepsisEnv  # noqa: E402

hospital = ot.mdp.icu_sepsis(gamma=1.0)
clinicians = np.array(ICUSepsisEnv().expert_policy, np.float64)
clinicians[clinicians.sum(axis=1) == 0] = 1 / hospital.num_actions  # terminal states, where nobody acts
clinicians /= clinicians.sum(axis=1, keepdims=True)
log = simulate(hospital, clinicians, given.stays, seed=given.seed)
print(log)

# 2. The candidates. Somebody proposes, in every state, the best treatment that clinicians use at all.
used = np.where(clinicians > 0, ot.operators.q_star(hospital), -1.0)
best = np.eye(hospital.num_actions)[used.argmax(axis=1)]
candidates = {
    "a tenth of the time": 0.1 * best + 0.9 * clinicians,  # follow the proposal for one decision in ten
    "half of the time": 0.5 * best + 0.5 * clinicians,
    "always": best,
}

# 3. What would each earn? One log, all estimators, and a verdict on whether the log can tell.
found = ot.evaluation.compare(log, targets=candidates, gamma=1.0, trace="retrace", lambda_=0.9)
print(f"\n{'follow the proposal':22}{'estimate':>10}{'95 % interval':>18}{'truth':>8}   can the log answer?")
for name, one in found.evaluations.items():
    chosen = one[one.verdict.estimate]
    low, high = chosen.interval
    q = ot.operators.q_pi(hospital, candidates[name])
    truth = hospital.start @ (candidates[name] * q).sum(axis=1)
    print(f"{name:22}{chosen.value:10.3f}{low:10.3f} to {high:.3f}{truth:8.3f}   {one.verdict.answer}")
    for line in one.verdict.warnings[:2]:
        print(f"    {line}")

# 4. The decision: which of these differences would still stand with other patients?
print("\nWhich differences does the log tell?")
for gap in found.differences:
    low, high = gap.interval
    answer = "yes" if gap.told else "cannot tell"
    print(f"  {gap.one} against {gap.other}: {gap.value:+.3f} ({low:+.3f} to {high:+.3f}), {answer}")

if given.output is not None:
    from offtrace.report.evaluation import write_evaluation

    given.output.mkdir(parents=True, exist_ok=True)
    print(f"Written to {given.output}/: {', '.join(write_evaluation(found, given.output))}")
