"""MDPs that are maps: your own, the cliff, and a corridor that forks.

Action 0 is up, 1 right, 2 down, 3 left, as in Gymnasium's CliffWalking. Every cell is a state, row by row. Whatever
is done in a cell nobody acts in (a wall, a goal, a hole, a cliff) ends at once with reward 0.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from offtrace.mdp.finite import FiniteMDP
from offtrace.mdp.textbook import outcomes, share, whole

Cell = tuple[int, int]
"""(row, column), from the top left; negative ones count from the other end."""

MOVES = np.array([[-1, 0], [0, 1], [1, 0], [0, -1]])
"""(4, 2) up, right, down, left."""

_CELLS = ".F SG#HC"


def grid_world(
    layout: str | Sequence[str] | tuple[int, int] = (5, 5),
    *,
    gamma: float = 0.99,
    slip: float = 0.0,
    step_reward: float = 0.0,
    goal_reward: float = 1.0,
    hole_reward: float = 0.0,
    cliff_reward: float = -100.0,
    start: Cell | None = None,
    goal: Cell | None = None,
    walls: Iterable[Cell] = (),
) -> FiniteMDP:
    """A map of cells: into a wall or off the map means to stay; `slip` is the chance of a step to either side.

    `layout` is the map row by row, or its (rows, columns), from the top left corner to the bottom right. On a map
    `S` starts (evenly, if there are several; anywhere free, if there is none), `G` is a goal and `H` a hole, which
    end the episode when entered, `C` is a cliff, from which one is back at the start, `#` is a wall, and `.`, `F` or
    a blank is free. `start`, `goal` and `walls` are drawn over it. Entering a cell with a reward of its own gives
    that instead of `step_reward`.

    >>> mdp = grid_world(["S.", "#G"], step_reward=-1)
    >>> mdp.r[:2]
    array([[-1., -1., -1., -1.],
           [-1., -1.,  1., -1.]])
    """
    drawn = _drawn(layout, start, goal, walls)
    rows, columns = shape = drawn.shape
    cells = drawn.ravel()
    begins = cells == "S" if "S" in cells else np.isin(cells, list(".F "))
    if not begins.any():
        raise ValueError("`layout` must have a cell to start from, S or free; got none.")
    if "C" in cells and (cells == "S").sum() != 1:
        raise ValueError(f"`layout` must have one S for the cliff to lead back to; got {(cells == 'S').sum()}.")
    x = np.arange(len(cells))
    row, column = (x[:, None] // columns + MOVES[:, 0]).clip(0, rows - 1), x[:, None] % columns + MOVES[:, 1]
    entered = row * columns + column.clip(0, columns - 1)
    entered = np.where(cells[entered] == "#", x[:, None], entered)
    # outcomes of an action: the move itself, the one to its left, the one to its right
    entered = entered[:, (np.arange(4)[:, None] + [0, -1, 1]) % 4]
    closed = np.isin(cells, list("G#HC"))[:, None, None]
    entered = np.where(closed, x[:, None, None], entered)
    kind = cells[entered]
    values = {"G": goal_reward, "H": hole_reward, "C": cliff_reward}
    reward = np.select([kind == mark for mark in values], list(values.values()), step_reward)
    aside = share("slip", slip) / 2
    return outcomes(
        probability=np.broadcast_to([1 - 2 * aside, aside, aside], kind.shape),
        successor=np.where((kind == "C") & ~closed, np.argmax(begins), entered),
        reward=np.where(closed, 0.0, reward),
        ends=closed | np.isin(kind, list("GH")),
        gamma=gamma,
        start=begins / begins.sum(),
        name="grid_world",
        grid=shape,
    )


def cliff_walking(*, gamma: float = 0.99, slip: float = 0.0) -> FiniteMDP:
    """Sutton and Barto's cliff (Ex. 6.6), which is undiscounted there: −1 a step, and −100 and back for the cliff.

    >>> cliff_walking()
    FiniteMDP(cliff_walking, 48 states, 4 actions, 192 transitions, gamma=0.99)
    """
    layout = ["." * 12] * 3 + ["S" + "C" * 10 + "G"]
    mdp = grid_world(layout, gamma=gamma, slip=slip, step_reward=-1.0, goal_reward=-1.0)
    mdp.name = "cliff_walking"
    return mdp


def bifurcated_grid(
    *,
    gamma: float = 0.9,
    slip: float = 0.0,
    approach: int = 2,
    height: int = 5,
    width: int = 3,
    goal_row: int = 2,
    rewards: tuple[float, float] = (1.0, 1.0),
    step_reward: float = 0.0,
) -> FiniteMDP:
    """A corridor that forks into a short and a long way to one goal: which way gets the credit?

        # # . . .      Its sizes default to the first of the four Bifurcated Gridworlds of Daley et al. (2023),
        # # . # .      where the goal is 4 steps from the fork by the short way and 8 by the long one. There the
        # # . # G      reward comes with one more step, from the goal; here it comes on entering it.
        # # . # .
        S . . . .      `rewards` are for the short way, from below, and for the long one, from above.

    `approach` is the length of the corridor to the fork; `height` and `width` are those of the loop.
    """
    columns = whole("approach", approach, least=0) + whole("width", width, least=3)
    if whole("goal_row", goal_row) > whole("height", height, least=3) - 2:
        raise ValueError(f"`goal_row` must be in [1, height − 2]; got {goal_row} for a height of {height}.")
    cells = np.full((height, columns), "#")
    cells[-1] = cells[0, approach:] = cells[:, approach] = cells[:, -1] = "."
    cells[-1, 0], cells[goal_row, -1] = "S", "G"
    mdp = grid_world(
        ["".join(row) for row in cells], gamma=gamma, slip=slip, step_reward=step_reward, goal_reward=rewards[0]
    )
    goal = (goal_row + 1) * columns - 1
    reward = np.array(mdp.reward)
    reward[(mdp.rows // 4 == goal - columns) & (mdp.successor == goal)] = rewards[1]
    return FiniteMDP.from_transitions(
        probability=mdp.probability,
        successor=mdp.successor,
        first=mdp.first,
        num_actions=4,
        r=reward,
        ends=mdp.ends,
        gamma=gamma,
        start=mdp.start,
        name="bifurcated_grid",
        grid=mdp.grid,
    )


def _drawn(
    layout: str | Sequence[str] | tuple[int, int], start: Cell | None, goal: Cell | None, walls: Iterable[Cell]
) -> np.ndarray:
    """(rows, columns) of characters."""
    if isinstance(layout, str):
        lines = layout.strip("\n").split("\n")
    elif all(isinstance(line, str) for line in layout):
        lines = list(map(str, layout))
    elif len(layout) == 2:
        rows, columns = (whole("layout", size) for size in layout)
        lines = ["." * columns] * rows
        start, goal = (0, 0) if start is None else start, (-1, -1) if goal is None else goal
    else:
        raise TypeError(f"`layout` must be the rows of a map as text, or (rows, columns); got {layout!r}.")
    if len(set(map(len, lines))) != 1 or not lines[0]:
        raise ValueError(f"`layout` must have rows of one length; got lengths {[len(line) for line in lines]}.")
    cells = np.array([list(line) for line in lines])
    unknown = ~np.isin(cells, list(_CELLS))
    if unknown.any():
        place = tuple(np.argwhere(unknown)[0].tolist())
        raise ValueError(f"`layout` must be of the cells {_CELLS!r}; got {str(cells[place])!r} at {place}.")
    for name, mark, cell in [*(("walls", "#", cell) for cell in walls), ("start", "S", start), ("goal", "G", goal)]:
        if cell is not None:
            rows, columns = cells.shape
            if len(cell) != 2 or not (-rows <= cell[0] < rows and -columns <= cell[1] < columns):
                raise ValueError(f"`{name}` must be a cell (row, column) of a {rows} × {columns} map; got {cell}.")
            cells[tuple(cell)] = mark
    if start is not None and cells[tuple(start)] != "S":
        raise ValueError(f"`start` must not be the goal; both are {tuple(start)}.")
    return cells
