"""Q^π of a large sparse MDP with 4 actions, 5 successors and γ = 0.99, to 1e-8, from lists of
transitions and π.

Successors are anywhere (the MDP mixes within a dozen steps) or within three states of x (it does
not). SciPy's solvers get the matrix over states, which suits them best. Building it is part of
their time, except for "given". Memory is the peak of a process that makes the MDP and solves it.
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from offtrace import mdp as mdps
from offtrace.bench import Benchmark, LeftOut
from offtrace.mdp import FiniteMDP

GAMMA = 0.99
ACTIONS = 4
SUCCESSORS = 5
NEAR = 3
TIGHT = {"anywhere": 10, "near": 80}
"""The factor by which SciPy's residual norm must be below 1e-10 per state for every state to be within 1e-8."""


class Problem(NamedTuple):
    mdp: FiniteMDP
    pi: np.ndarray
    where: str


def problem(row: tuple[int, str]) -> Problem:
    num_states, where = row
    near = None if where == "anywhere" else NEAR
    mdp = mdps.garnet(num_states, ACTIONS, SUCCESSORS, gamma=GAMMA, seed=0, local=near)
    pi = np.random.default_rng(1).exponential(size=mdp.shape)
    return Problem(mdp, pi / pi.sum(1, keepdims=True), where)


def matrix(given: Problem) -> tuple[Any, np.ndarray]:
    """Return I − γP^π over states, and r^π."""
    import scipy.sparse

    mdp, pi, _ = given
    size = mdp.num_states
    weighted = mdp.probability * np.repeat(pi.ravel(), np.diff(mdp.first))
    chain = scipy.sparse.csr_array((weighted, mdp.successor, mdp.first[:: mdp.num_actions]), shape=(size, size))
    return (scipy.sparse.eye_array(size, format="csr") - GAMMA * chain).tocsr(), (pi * mdp.r).sum(1)


def goal(given: Problem) -> float:
    return 1e-10 * np.sqrt(given.mdp.num_states) / TIGHT[given.where]


def answer(given: Problem) -> np.ndarray:
    """Solve with BiCGSTAB and refinement, down to rounding."""
    system, b = matrix(given)
    v = bicgstab(system, b, goal(given))
    for _ in range(3):
        v = v + bicgstab(system, b - system @ v, goal(given) / 1e3)
    return v


def bicgstab(system: Any, b: np.ndarray, atol: float) -> np.ndarray:
    from scipy.sparse.linalg import bicgstab as solve

    return solve(system, b, rtol=0, atol=atol)[0]


def gmres(system: Any, b: np.ndarray, atol: float) -> np.ndarray:
    from scipy.sparse.linalg import gmres as solve

    return solve(system, b, rtol=0, atol=atol, restart=30)[0]


def ours(given: Problem) -> Callable[[], np.ndarray]:
    from offtrace import operators

    return lambda: operators.evaluate(given.mdp, given.pi).v


def scipy_bicgstab(given: Problem) -> Callable[[], np.ndarray]:
    return lambda: bicgstab(*matrix(given), goal(given))


def scipy_bicgstab_given(given: Problem) -> Callable[[], np.ndarray]:
    system, b = matrix(given)
    return lambda: bicgstab(system, b, goal(given))


def scipy_gmres_given(given: Problem) -> Callable[[], np.ndarray]:
    if given.where == "near" and given.mdp.num_states > 100_000:
        raise LeftOut("many times slower than BiCGSTAB here")
    system, b = matrix(given)
    return lambda: gmres(system, b, goal(given))


def scipy_superlu(given: Problem) -> Callable[[], np.ndarray]:
    if given.where == "anywhere":
        raise LeftOut("SuperLU fills in")
    from scipy.sparse.linalg import splu

    def solve() -> np.ndarray:
        system, b = matrix(given)
        return splu(system.tocsc()).solve(b)

    return solve


def scipy_superlu_given(given: Problem) -> Callable[[], np.ndarray]:
    if given.where == "anywhere":
        raise LeftOut("SuperLU fills in")
    from scipy.sparse.linalg import splu

    system, b = matrix(given)
    return lambda: splu(system.tocsc()).solve(b)


CONTENDERS = {
    "offtrace": ours,
    "SciPy BiCGSTAB": scipy_bicgstab,
    "BiCGSTAB, given": scipy_bicgstab_given,
    "GMRES(30), given": scipy_gmres_given,
    "SciPy SuperLU": scipy_superlu,
    "SuperLU, given": scipy_superlu_given,
}


def peak_memory(row: tuple[int, str], name: str) -> float:
    """Return the peak memory in GB of a separate process."""
    command = [sys.executable, __file__, str(row[0]), row[1], name]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


BENCHMARK = Benchmark(
    name="policy_evaluation",
    question="How long until Q^π is known to 1e-8? (states, where their successors are)",
    rows=(
        (10_000, "near"),
        (100_000, "near"),
        (100_000, "anywhere"),
        (1_000_000, "near"),
        (1_000_000, "anywhere"),
    ),
    quick_rows=2,
    problem=problem,
    answer=answer,
    tolerance=1e-9,
    contenders=CONTENDERS,
    ours=("offtrace",),
    measures={"GB": peak_memory},
    min_time=0.3,
)

if __name__ == "__main__":
    CONTENDERS[sys.argv[3]](problem((int(sys.argv[1]), sys.argv[2])))()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines())
    print(int(status["VmHWM"].split()[0]) * 1024 / 1e9)
