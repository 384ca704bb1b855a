"""Pictures of the states of environments that are pure functions, and coloured cells for a terminal.

    picture(env, state)      # (H, W, 3) uint8
    cells(env, state)        # (rows, columns, 3) uint8, one colour per cell; None if it is not a grid

Flat colours on a dark ground, drawn at three times the size and averaged down, give smooth edges, few colours and
small files. Drawing needs Pillow (`pip install 'offtrace[video]'`); cells and the MinAtar games need only NumPy.
"""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from offtrace.environments.interface import Environment, State
from offtrace.watch.drawing import (
    BLUE,
    BROWN,
    CELL,
    GREEN,
    GREY,
    LINE,
    NIGHT,
    ORANGE,
    PINK,
    PURPLE,
    RED,
    TEAL,
    WHITE,
    YELLOW,
    Colour,
    Drawing,
    Point,
    board,
    cell_centre,
    cell_corner,
    cell_side,
    on_board,
)

CHANNELS: Mapping[str, tuple[tuple[str, Colour], ...]] = MappingProxyType(
    {
        "asterix": (("player", BLUE), ("enemy", RED), ("trail", (92, 74, 100)), ("gold", YELLOW)),
        "breakout": (("paddle", BLUE), ("ball", WHITE), ("trail", (100, 108, 128)), ("brick", ORANGE)),
        "freeway": (
            ("chicken", YELLOW),
            ("car", RED),
            ("speed 1", (58, 72, 128)),
            ("speed 2", (74, 84, 158)),
            ("speed 3", (94, 96, 188)),
            ("speed 4", (122, 110, 216)),
            ("speed 5", (156, 128, 246)),
        ),
        "seaquest": (
            ("submarine's bow", BLUE),
            ("submarine's stern", (50, 104, 178)),
            ("own bullet", WHITE),
            ("trail", (72, 80, 100)),
            ("enemy's bullet", PINK),
            ("fish", ORANGE),
            ("enemy's submarine", RED),
            ("oxygen", TEAL),
            ("rescued", GREEN),
            ("diver", YELLOW),
        ),
        "space_invaders": (
            ("cannon", BLUE),
            ("alien", PURPLE),
            ("alien, going left", GREEN),
            ("alien, going right", TEAL),
            ("own bullet", WHITE),
            ("enemy's bullet", RED),
        ),
    }
)
"""Names and colours of the channels of each MinAtar game, in their order."""

IN_FRONT: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {
        "asterix": (2, 3, 1, 0),
        "breakout": (2, 3, 0, 1),
        "freeway": (2, 3, 4, 5, 6, 1, 0),
        "seaquest": (3, 7, 8, 9, 5, 6, 1, 0, 4, 2),
        "space_invaders": (1, 2, 3, 0, 5, 4),
    }
)
"""Channels from back to front: a cell has the colour of the last channel that is set."""

ACTIONS: Mapping[str, str] = MappingProxyType(
    {
        "pocket/acrobot": "↻·↺",
        "pocket/cartpole": "←→",
        "pocket/catch": "←·→",
        "pocket/cliff": "↑→↓←",
        "pocket/mountain_car": "←·→",
        "minatar/asterix": "·←↑→↓",
        "minatar/breakout": "·←→",
        "minatar/freeway": "·↑↓",
        "minatar/seaquest": "·←↑→↓*",
        "minatar/space_invaders": "·←→*",
        "gymnasium/Acrobot-v1": "↻·↺",
        "gymnasium/CartPole-v1": "←→",
        "gymnasium/CliffWalking-v1": "↑→↓←",
        "gymnasium/CliffWalkingSlippery-v1": "↑→↓←",
        "gymnasium/FrozenLake-v1": "←↓→↑",
        "gymnasium/FrozenLake8x8-v1": "←↓→↑",
        "gymnasium/MountainCar-v0": "←·→",
    }
)
"""One character per action, for environments whose actions mean the same in all states."""


def picture(env: Environment, state: State) -> np.ndarray:
    """Draw a state as (H, W, 3) uint8.

    >>> import jax
    >>> from offtrace.environments import make
    >>> env = make("pocket/catch")
    >>> state, _ = env.reset(jax.random.key(0))
    >>> picture(env, state).shape
    (332, 332, 3)
    """
    return _entry(PICTURES, env)(env, state)


def cells(env: Environment, state: State) -> np.ndarray | None:
    """Return the colours of all cells, (rows, columns, 3) uint8; None if the environment is not a grid."""
    _entry(PICTURES, env)
    if env.name.startswith("mdp/"):
        return _mdp_cells(env, state)
    if env.name not in CELLS:
        return None
    return CELLS[env.name](env, state)


def _entry(table: Mapping[str, Callable], env: Any) -> Callable:
    name = getattr(env, "name", "")
    if name.startswith("mdp/"):
        return _mdp
    if name not in table:
        got = f"{name} ({type(env).__name__})" if name else type(env).__name__
        raise TypeError(f"`env` must be an environment with a picture; got {got}. Valid options: {', '.join(table)}.")
    return table[name]


# -- boards --------------------------------------------------------------------------------------------------


def _minatar_cells(env: Any, state: State) -> np.ndarray:
    planes = np.asarray(state.game.observation)
    colours = np.full((*planes.shape[:2], 3), CELL, np.uint8)
    for channel in IN_FRONT[env.game]:
        colours[planes[..., channel]] = CHANNELS[env.game][channel][1]
    return colours


def _minatar(env: Any, state: State) -> np.ndarray:
    return board(_minatar_cells(env, state))


def _catch_colours(env: Any, state: State) -> tuple[Colour, Colour]:
    """Return the colours of ball and paddle; once the ball has landed, green for a catch and red for a miss."""
    if int(state.row) < env.rows - 1:
        return YELLOW, BLUE
    if int(state.column) == int(state.paddle):
        return GREEN, GREEN
    return RED, BLUE


def _catch_cells(env: Any, state: State) -> np.ndarray:
    ball, paddle = _catch_colours(env, state)
    colours = np.full((env.rows, env.columns, 3), CELL, np.uint8)
    colours[env.rows - 1, int(state.paddle)] = paddle
    colours[int(state.row), int(state.column)] = ball
    return colours


def _catch(env: Any, state: State) -> np.ndarray:
    ball, paddle = _catch_colours(env, state)
    drawing = on_board(np.full((env.rows, env.columns, 3), CELL, np.uint8))
    left, top = cell_corner(env.rows, env.columns, env.rows - 1, int(state.paddle))
    side = cell_side(env.rows, env.columns)
    drawing.box((left + 0.06 * side, top + 0.62 * side), (left + 0.94 * side, top + 0.92 * side), paddle, 0.15 * side)
    centre = cell_centre(env.rows, env.columns, int(state.row), int(state.column))
    landed = int(state.row) == env.rows - 1  # it then lies on the paddle or on the ground
    height = 0.14 * side if landed else 0
    drawing.disc((centre[0], centre[1] - height), 0.28 * side, ball)
    return drawing.finished()


def _sea(env: Any) -> np.ndarray:
    """Return the sea: darker with depth, lighter on the way to the treasure, a row of sand at the bottom."""
    depth = np.linspace(0, 1, env.size)[:, None, None]
    water = np.array((34, 92, 138)) * (1 - depth) + np.array((20, 40, 78)) * depth
    water = np.broadcast_to(water, (env.size, env.size, 3)).copy()
    water[np.arange(env.size), np.arange(env.size)] += 22
    sand = np.full((1, env.size, 3), (120, 102, 78))
    return np.rint(np.concatenate([water, sand])).astype(np.uint8)


def _deep_sea_cells(env: Any, state: State) -> np.ndarray:
    colours = _sea(env)
    colours[env.size - 1, env.size - 1] = YELLOW
    colours[int(state.row), int(state.column)] = WHITE
    return colours


def _deep_sea(env: Any, state: State) -> np.ndarray:
    shape = env.size + 1, env.size
    drawing = on_board(_sea(env))
    side = cell_side(*shape)
    x, y = cell_centre(*shape, int(state.row), int(state.column))
    drawing.disc((x, y), 0.3 * side, WHITE)
    drawing.box((x - 0.17 * side, y - 0.14 * side), (x + 0.17 * side, y + 0.1 * side), BLUE, 0.1 * side)
    left, top = cell_corner(*shape, env.size - 1, env.size - 1)
    for low, high, colour in (((0.18, 0.5), (0.82, 0.88), BROWN), ((0.18, 0.46), (0.82, 0.62), YELLOW)):
        corners = [(left + x * side, top + y * side) for x, y in (low, high)]
        drawing.box(corners[0], corners[1], colour, 0.06 * side)
    drawing.box((left + 0.44 * side, top + 0.56 * side), (left + 0.56 * side, top + 0.72 * side), NIGHT, 0.03 * side)
    return drawing.finished()


def _cliff_ground(goal: Colour) -> np.ndarray:
    colours = np.full((4, 12, 3), (52, 82, 66), np.uint8)
    colours[3, 1:11] = (74, 28, 38)
    colours[3, 0] = (76, 112, 92)
    colours[3, 11] = goal
    return colours


def _cliff_cells(env: Any, state: State) -> np.ndarray:
    colours = _cliff_ground(GREEN)
    colours[int(state.row), int(state.column)] = YELLOW
    return colours


def _cliff(env: Any, state: State) -> np.ndarray:
    drawing = on_board(_cliff_ground((76, 112, 92)))
    side = cell_side(4, 12)
    for column in range(1, 11):
        left, top = cell_corner(4, 12, 3, column)
        teeth = [(left + (0.12 + 0.19 * i) * side, top + (0.78 if i % 2 == 0 else 0.42) * side) for i in range(5)]
        drawing.shape([*teeth, (teeth[-1][0], top + 0.86 * side), (teeth[0][0], top + 0.86 * side)], RED)
    drawing.disc(cell_centre(4, 12, int(state.row), int(state.column)), 0.3 * side, YELLOW)
    left, top = cell_corner(4, 12, 3, 11)
    drawing.flag((left + 0.34 * side, top + 0.88 * side), 0.74 * side, GREEN)
    return drawing.finished()


# -- MDPs ----------------------------------------------------------------------------------------------------


def _mdp_cells(env: Any, state: State) -> np.ndarray:
    """Return the map of the MDP, or its states in a row if it has none.

    States that cannot be entered are walls. States where episodes end are green for a positive mean reward, else red.
    """
    mdp = env.mdp
    rows, columns = mdp.grid or (1, mdp.num_states)
    colours = np.full((mdp.num_states, 3), CELL, np.uint8)
    # One entry per transition: row // A is the state, `successor` the next one.
    ends = np.zeros(len(mdp.successor)) if mdp.ends is None else mdp.ends
    reward = mdp.r.ravel()[mdp.rows] if mdp.reward is None else mdp.reward
    moves = mdp.rows // mdp.num_actions != mdp.successor
    entered = np.bincount(mdp.successor[moves], minlength=mdp.num_states) + (mdp.start > 0)
    colours[entered == 0] = LINE
    for x in np.unique(mdp.successor[moves & (ends == 1)]):
        paid = reward[moves & (ends == 1) & (mdp.successor == x)].mean()
        colours[x] = GREEN if paid > 0 else RED
    colours[int(state.x)] = YELLOW
    return colours.reshape(rows, columns, 3)


def _mdp(env: Any, state: State) -> np.ndarray:
    return board(_mdp_cells(env, state))


# -- the classics --------------------------------------------------------------------------------------------


def _cart_pole(env: Any, state: State) -> np.ndarray:
    """Draw the limits of the track as posts, and the pole at its true angle and twice its length."""
    position, _, angle, _ = np.asarray(state.x, float).tolist()
    width, height, unit, ground = 400, 240, 68.0, 184.0
    drawing = Drawing(width, height)
    drawing.box((0, ground), (width, height), CELL)
    drawing.line([(0, ground), (width, ground)], LINE, 2)
    for limit in (-2.4, 2.4):
        x = width / 2 + unit * limit
        drawing.line([(x, ground - 26), (x, ground)], RED, 3)
    x, y = width / 2 + unit * position, ground - 12
    for wheel in (-17, 17):
        drawing.disc((x + wheel, ground - 7), 7, GREY)
        drawing.disc((x + wheel, ground - 7), 2.5, NIGHT)
    drawing.box((x - 31, y - 20), (x + 31, y + 2), BLUE, 6)
    axle, length = (x, y - 18), 2 * unit
    tip = (axle[0] + length * math.sin(angle), axle[1] - length * math.cos(angle))
    drawing.rod(axle, tip, 9, ORANGE)
    drawing.disc(axle, 4, WHITE)
    return drawing.finished()


def _mountain_car(env: Any, state: State) -> np.ndarray:
    position = float(np.asarray(state.x)[0])
    width, height, unit = 400, 280, 400 / 1.9

    def at(x: float) -> Point:
        return (x + 1.25) * unit, height - 36 - (0.45 * math.sin(3 * x) + 0.45) * unit

    drawing = Drawing(width, height)
    hills = [at(x) for x in np.linspace(-1.3, 0.7, 120).tolist()]
    drawing.shape([*hills, (width, height), (0, height)], (44, 66, 60))
    drawing.line(hills, (98, 150, 122), 3)
    drawing.flag(at(0.5), 46, YELLOW)
    foot = at(position)
    slope = math.atan2(0.45 * 3 * math.cos(3 * position), 1)

    def on_car(along: float, up: float) -> Point:
        return (
            foot[0] + along * math.cos(slope) - up * math.sin(slope),
            foot[1] - along * math.sin(slope) - up * math.cos(slope),
        )

    body = ((-23, 8), (-23, 18), (-13, 20), (-7, 30), (9, 30), (15, 20), (23, 18), (23, 8))
    window = ((-9, 20), (-5, 27), (7, 27), (11, 20))
    drawing.shape([on_car(*point) for point in body], BLUE)
    drawing.shape([on_car(*point) for point in window], NIGHT)
    for wheel in (-13, 13):
        drawing.disc(on_car(wheel, 7), 7, WHITE)
        drawing.disc(on_car(wheel, 7), 3, NIGHT)
    return drawing.finished()


def _acrobot(env: Any, state: State) -> np.ndarray:
    """Draw two links; angles are counter-clockwise from hanging down. The tip must rise above the dashed line."""
    theta_1, theta_2 = np.asarray(state.x, float)[:2].tolist()
    size, unit = 320, 72.0
    pivot = (size / 2, size / 2)
    drawing = Drawing(size, size)
    level = pivot[1] - unit
    for x in range(8, size - 8, 16):
        drawing.line([(x, level), (x + 8, level)], GREEN, 2)
    elbow = (pivot[0] + unit * math.sin(theta_1), pivot[1] + unit * math.cos(theta_1))
    tip = (elbow[0] + unit * math.sin(theta_1 + theta_2), elbow[1] + unit * math.cos(theta_1 + theta_2))
    drawing.disc(pivot, 13, LINE)
    drawing.rod(pivot, elbow, 15, BLUE)
    drawing.rod(elbow, tip, 15, TEAL)
    for joint in (pivot, elbow):
        drawing.disc(joint, 4.5, NIGHT)
    drawing.disc(tip, 6, GREEN if tip[1] < level else YELLOW)
    return drawing.finished()


_GAMES = tuple(f"minatar/{game}" for game in CHANNELS)

PICTURES: Mapping[str, Callable[[Any, State], np.ndarray]] = MappingProxyType(
    {
        "pocket/acrobot": _acrobot,
        "pocket/cartpole": _cart_pole,
        "pocket/catch": _catch,
        "pocket/cliff": _cliff,
        "pocket/deep_sea": _deep_sea,
        "pocket/mountain_car": _mountain_car,
        **dict.fromkeys(_GAMES, _minatar),
    }
)
"""Functions that draw a state, by environment."""

CELLS: Mapping[str, Callable[[Any, State], np.ndarray]] = MappingProxyType(
    {
        "pocket/catch": _catch_cells,
        "pocket/cliff": _cliff_cells,
        "pocket/deep_sea": _deep_sea_cells,
        **dict.fromkeys(_GAMES, _minatar_cells),
    }
)
"""Functions that colour the cells of a state, by environment."""
