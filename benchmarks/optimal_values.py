"""Q* of a large sparse MDP: 4 actions, 5 successors, γ = 0.99, to 1e-8.

mdpsolver is C++ and takes nested lists, columns in order; making the lists is not part of its time. Memory is the
peak of a process that makes the MDP and solves it.
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from offtrace import mdp as mdps
from offtrace.bench import Benchmark, LeftOut
from offtrace.mdp import FiniteMDP

GAMMA = 0.99
ACTIONS, SUCCESSORS, NEAR = 4, 5, 3


def problem(row: tuple[int, str]) -> FiniteMDP:
    num_states, where = row
    near = None if where == "anywhere" else NEAR
    return mdps.garnet(num_states, ACTIONS, SUCCESSORS, gamma=GAMMA, seed=0, local=near)


def answer(mdp: FiniteMDP) -> np.ndarray:
    """Value iteration in plain NumPy until γ^k is below rounding."""
    successor = mdp.successor.reshape(*mdp.shape, SUCCESSORS)
    p = mdp.probability.reshape(successor.shape)
    v = np.zeros(mdp.num_states)
    for _ in range(3000):
        new = (mdp.r + GAMMA * np.einsum("xas,xas->xa", p, v[successor])).max(1)
        span = np.ptp(new - v)
        v = new + GAMMA / (1 - GAMMA) * (new - v).mean() if span < 1e-12 else new
        if span < 1e-12:
            break
    return v


def ours(mdp: FiniteMDP) -> Callable[[], np.ndarray]:
    from offtrace import operators

    return lambda: operators.optimise(mdp).v


def mdpsolver(mdp: FiniteMDP, algorithm: str) -> Callable[[], np.ndarray]:
    """A second `solve` of a model goes on from the first, so each call makes its own; 0.1 s at 100,000 states."""
    if mdp.num_states > 200_000:
        raise LeftOut("its nested lists take ten times the memory")
    import mdpsolver as solver

    successor = mdp.successor.reshape(*mdp.shape, SUCCESSORS)
    p = mdp.probability.reshape(successor.shape)
    order = successor.argsort(-1)
    columns, chances = (np.take_along_axis(array, order, -1).tolist() for array in (successor, p))
    rewards = mdp.r.tolist()

    def solve() -> np.ndarray:
        model: Any = solver.model()
        model.mdp(discount=GAMMA, rewards=rewards, tranMatProbs=chances, tranMatColumns=columns)
        model.solve(algorithm=algorithm, tolerance=1e-8, parallel=False)  # its threads were slower on two cores
        return np.asarray(model.getValueVector())

    return solve


CONTENDERS = {
    "offtrace": ours,
    "mdpsolver VI": lambda mdp: mdpsolver(mdp, "vi"),
    "mdpsolver MPI": lambda mdp: mdpsolver(mdp, "mpi"),
}


def peak_memory(row: tuple[int, str], name: str) -> float:
    """GB, in a process of its own."""
    command = [sys.executable, __file__, str(row[0]), row[1], name]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


BENCHMARK = Benchmark(
    name="optimal_values",
    question="How long until Q* is known to 1e-8? (states, where their successors are)",
    rows=((10_000, "anywhere"), (100_000, "anywhere"), (10_000, "near"), (1_000_000, "anywhere")),
    quick_rows=1,
    problem=problem,
    answer=answer,
    tolerance=1e-8,
    contenders=CONTENDERS,
    ours=("offtrace",),
    measures={"GB": peak_memory},
)

if __name__ == "__main__":
    CONTENDERS[sys.argv[3]](problem((int(sys.argv[1]), sys.argv[2])))()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines())
    print(int(status["VmHWM"].split()[0]) * 1024 / 1e9)
