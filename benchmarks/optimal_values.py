"""Q* of a large sparse MDP with 4 actions, 5 successors and γ = 0.99, to 1e-8.

mdpsolver is written in C++ and takes nested lists with sorted columns; making these lists is not
part of its time. Memory is the peak of a process that makes the MDP and solves it.
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
ACTIONS = 4
SUCCESSORS = 5
NEAR = 3


def problem(row: tuple[int, str]) -> FiniteMDP:
    num_states, where = row
    near = None if where == "anywhere" else NEAR
    return mdps.garnet(num_states, ACTIONS, SUCCESSORS, gamma=GAMMA, seed=0, local=near)


def answer(mdp: FiniteMDP) -> np.ndarray:
    """Run value iteration in plain NumPy until the values no longer change."""
    successor = mdp.successor.reshape(*mdp.shape, SUCCESSORS)
    p = mdp.probability.reshape(successor.shape)
    v = np.zeros(mdp.num_states)
    for _ in range(3000):
        new = (mdp.r + GAMMA * np.einsum("xas,xas->xa", p, v[successor])).max(1)
        span = np.ptp(new - v)
        if span < 1e-12:  # all states change by the same amount, so the rest is a geometric series
            return new + GAMMA / (1 - GAMMA) * (new - v).mean()
        v = new
    return v


def ours(mdp: FiniteMDP) -> Callable[[], np.ndarray]:
    from offtrace import operators

    return lambda: operators.optimise(mdp).v


def mdpsolver(mdp: FiniteMDP, algorithm: str) -> Callable[[], np.ndarray]:
    """Solve with mdpsolver. A second `solve` continues from the first, so each call makes a new model (0.1 s)."""
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
    """Return the peak memory in GB of a separate process."""
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
