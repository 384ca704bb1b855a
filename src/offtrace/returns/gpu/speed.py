"""An estimate of how fast a plan is, for plans of runs with few chunks.

The numbers were fitted to timings of 43 windows on an H200 (`studies/gpu_plans.py`).
"""

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from offtrace.returns.gpu.plans import Plan, Size

IN_FLIGHT = 50_000
"""Bytes that a multiprocessor has to wait for at once to keep the memory busy: bandwidth times latency."""
IN_FLIGHT_OF_SINGLE_ROWS = 35_000
"""The same if a thread reads one row at once."""
IN_FLIGHT_WITH_CHECKS = 2
"""With checks, more bytes are needed by this factor: programs have more to do between two loads."""
UNEVEN = 0.15
"""How much it matters if some multiprocessors have more programs than others."""
UNEVEN_IF_ODD = 0.3
"""The same for rows of an odd number of actions: they are loaded number by number, which keeps it busy."""
ROUNDS = 0.96
"""Speed that is left if programs come in several rounds."""
CUT = 0.97
"""Speed that is left if a window is cut into chunks."""
CUT_WITH_CHECKS = 0.87
SHARED_BY_FOUR = 0.98
"""Speed that is left if four threads share a neighbour, each with a run of steps."""
SHARED_IN_ROUNDS = 0.84
"""The same without runs of steps, or if programs come in several rounds."""
MANY_WARPS = 0.985
"""Speed that is left with 96 registers for a thread, if it reads rows of its own without checks."""


def speed_of(plan: "Plan", size: "Size") -> float:
    """Return about which share of the memory's bandwidth a plan of runs reaches.

    Programs that the device does not hold at once come in rounds. The memory is busy if the programs of a round have
    enough bytes in flight. A round with fewer takes as long as one with just enough:

        num_rounds = 2.2    | first ──────────▶ | second ──────────▶ | third, a fifth of the programs ──▶ |
        time                | 1                 | 1                  | bytes needed / bytes of a full one |

    In a single round, multiprocessors with more programs than others take longer.
    """
    needed = IN_FLIGHT
    if plan.run == 1 and size.has_own_rows:
        needed = IN_FLIGHT_OF_SINGLE_ROWS
    if size.checks:
        needed *= IN_FLIGHT_WITH_CHECKS
    num_bytes = plan.max_warps // plan.num_warps * plan.steps * plan.rows * size.row_bytes
    num_rounds = rounds_of(plan, size)
    num_full = math.ceil(num_rounds) - 1
    speed = num_rounds / (num_full + max(num_rounds - num_full, min(1.0, needed / num_bytes)))
    if num_full == 0:
        num_programs = programs_of(plan, size) / size.num_multiprocessors
        uneven = UNEVEN_IF_ODD if size.num_actions % 2 == 1 else UNEVEN
        speed *= 1 - uneven * (1 - num_programs / math.ceil(num_programs))
    else:
        speed *= ROUNDS
    if plan.num_chunks > 1:
        speed *= CUT_WITH_CHECKS if size.checks else CUT
    if plan.steps == 4 * plan.run:
        speed *= SHARED_BY_FOUR if num_full == 0 and plan.run > 1 else SHARED_IN_ROUNDS
    if plan.max_registers < 128 and size.has_own_rows and not size.checks:
        speed *= MANY_WARPS
    return speed


def rounds_of(plan: "Plan", size: "Size") -> float:
    """Return how many times the programs of a plan fill the device."""
    return programs_of(plan, size) / most_programs(plan, size)


def programs_of(plan: "Plan", size: "Size") -> int:
    return -(-size.batch // plan.rows) * plan.num_chunks


def most_programs(plan: "Plan", size: "Size") -> int:
    """Return how many programs the device holds at once."""
    return size.num_multiprocessors * (plan.max_warps // plan.num_warps)
