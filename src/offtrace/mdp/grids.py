"""Grid worlds: your own, cliff walking, and a corridor that forks.

Action 0 is up, 1 right, 2 down, 3 left, as in Gymnasium's CliffWalking. Every cell is a state, row
by row. Any action in a wall, a goal, a hole or a cliff, which no agent acts in, ends the episode at
once with reward 0.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from offtrace.mdp.checks import checked_share, checked_whole
from offtrace.mdp.finite import FiniteMDP
from offtrace.mdp.textbook import from_outcomes

Cell = tuple[int, int]
"""(row, column) from the top left; negative numbers count from the bottom right."""

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
    """Return a grid world. `slip` is the probability that a step goes to either side.

    `layout` is the map row by row, or its (rows, columns); an empty map leads from the top left to
    the bottom right.

        S         start (one of them at random; any free cell if there is none)
        G, H      goal and hole: entering them ends the episode
        C         cliff: the agent is put back at the start
        #         wall: like the edge of the map, it leaves the agent where it is
        . F blank free

    `start`, `goal` and `walls` are drawn over the map. Entering G, H or C gives that cell's reward
    in place of `step_reward`.

    >>> mdp = grid_world(["S.", "#G"], step_reward=-1)
    >>> mdp.r[:2]
    array([[-1., -1., -1., -1.],
           [-1., -1.,  1., -1.]])
    """
    drawn = _drawn(layout, start, goal, walls)
    rows, columns = drawn.shape
    cells = drawn.ravel()
    num_starts = int((cells == "S").sum())
    starts = cells == "S" if num_starts else np.isin(cells, list(".F "))
    if not starts.any():
        raise ValueError("`layout` must have a cell to start from, S or free; got none.")
    if "C" in cells and num_starts != 1:
        raise ValueError(f"`layout` must have one S for the cliff to lead back to; got {num_starts}.")
    x = np.arange(len(cells))
    row = (x[:, None] // columns + MOVES[:, 0]).clip(0, rows - 1)
    column = (x[:, None] % columns + MOVES[:, 1]).clip(0, columns - 1)
    entered = row * columns + column  # (X, 4) the cell that each action leads to
    entered = np.where(cells[entered] == "#", x[:, None], entered)
    # (X, 4, 3): an action has three outcomes, its own move, the one to its left and the one to its right.
    entered = entered[:, (np.arange(4)[:, None] + [0, -1, 1]) % 4]
    closed = np.isin(cells, list("G#HC"))[:, None, None]
    entered = np.where(closed, x[:, None, None], entered)
    kind = cells[entered]
    values = {"G": goal_reward, "H": hole_reward, "C": cliff_reward}
    reward = np.select([kind == mark for mark in values], list(values.values()), step_reward)
    aside = checked_share("slip", slip) / 2
    return from_outcomes(
        probability=np.broadcast_to([1 - 2 * aside, aside, aside], kind.shape),
        successor=np.where((kind == "C") & ~closed, np.argmax(starts), entered),
        reward=np.where(closed, 0.0, reward),
        ends=closed | np.isin(kind, list("GH")),
        gamma=gamma,
        start=starts / starts.sum(),
        name="grid_world",
        grid=(rows, columns),
    )


def cliff_walking(*, gamma: float = 0.99, slip: float = 0.0) -> FiniteMDP:
    """Return Sutton and Barto's cliff walking (Ex. 6.6), which is undiscounted there.

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
    """Return a corridor that forks into a short and a long way to one goal.

        # # . . .      The default sizes are those of the first of the four Bifurcated Gridworlds of Daley et al.
        # # . # .      (2023): the goal is 4 steps from the fork by the short way and 8 by the long one. There the
        # # . # G      reward needs one more step, from the goal; here it is given on entering the goal.
        # # . # .
        S . . . .      `rewards` are those of the short way, from below, and of the long way, from above.

    `approach` is the length of the corridor to the fork; `height` and `width` are those of the
    loop.
    """
    columns = checked_whole("approach", approach, least=0) + checked_whole("width", width, least=3)
    if checked_whole("goal_row", goal_row) > checked_whole("height", height, least=3) - 2:
        raise ValueError(f"`goal_row` must be in [1, height − 2]; got {goal_row} for a height of {height}.")
    cells = np.full((height, columns), "#")
    cells[-1] = cells[0, approach:] = cells[:, approach] = cells[:, -1] = "."
    cells[-1, 0] = "S"
    cells[goal_row, -1] = "G"
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
    """Return the map as characters (rows, columns)."""
    if isinstance(layout, str):
        lines = layout.strip("\n").split("\n")
    elif all(isinstance(line, str) for line in layout):
        lines = list(map(str, layout))
    elif len(layout) == 2:
        rows, columns = (checked_whole("layout", size) for size in layout)
        lines = ["." * columns] * rows
        start = (0, 0) if start is None else start
        goal = (-1, -1) if goal is None else goal
    else:
        raise TypeError(f"`layout` must be the rows of a map as text, or (rows, columns); got {layout!r}.")
    cells = _checked_cells(lines)
    for cell in walls:
        _draw(cells, "walls", "#", cell)
    if start is not None:
        _draw(cells, "start", "S", start)
    if goal is not None:
        _draw(cells, "goal", "G", goal)
    if start is not None and cells[tuple(start)] != "S":
        raise ValueError(f"`start` must not be the goal; both are {tuple(start)}.")
    return cells


def _checked_cells(lines: Sequence[str]) -> np.ndarray:
    if len(set(map(len, lines))) != 1 or not lines[0]:
        raise ValueError(f"`layout` must have rows of one length; got lengths {[len(line) for line in lines]}.")
    cells = np.array([list(line) for line in lines])
    unknown = ~np.isin(cells, list(_CELLS))
    if unknown.any():
        place = tuple(np.argwhere(unknown)[0].tolist())
        raise ValueError(f"`layout` must consist of the cells {_CELLS!r}; got {str(cells[place])!r} at {place}.")
    return cells


def _draw(cells: np.ndarray, name: str, mark: str, cell: Cell) -> None:
    rows, columns = cells.shape
    if len(cell) != 2 or not (-rows <= cell[0] < rows and -columns <= cell[1] < columns):
        raise ValueError(f"`{name}` must be a cell (row, column) of a {rows} × {columns} map; got {cell}.")
    cells[tuple(cell)] = mark
