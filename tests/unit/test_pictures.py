"""Pictures of states: of every environment, and with everything in its place."""

from types import SimpleNamespace
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest

from offtrace.environments import NAMES, make
from offtrace.environments.grids import Catch, Cliff, DeepSea, Fall, Place
from offtrace.environments.minatar import GAMES
from offtrace.environments.pocket import Acrobot, CartPole, Motion, MountainCar
from offtrace.watch.drawing import BLUE, CELL, GREEN, LINE, MARGIN, NIGHT, ORANGE, RED, WHITE, YELLOW, board
from offtrace.watch.pictures import ACTIONS, CELLS, CHANNELS, IN_FRONT, PICTURES, cells, picture

pytest.importorskip("PIL", reason="pictures are drawn with Pillow: pip install 'offtrace[video]'")


def motion(*x: float) -> Motion:
    return Motion(np.array(x), np.int32(0))


def places(image: np.ndarray, colour: tuple[int, int, int]) -> np.ndarray:
    """(n, 2): row and column of every pixel of that very colour."""
    return np.argwhere((image == colour).all(-1))


def middle(image: np.ndarray, colour: tuple[int, int, int]) -> tuple[float, float]:
    """x and y of the centre of the box around a colour."""
    found = places(image, colour)
    assert len(found)
    y, x = (found.min(0) + found.max(0) + 1) / 2
    return float(x), float(y)


def made(name: str) -> Any:
    if name.startswith("minatar/"):
        pytest.importorskip("pgx", reason="MinAtar needs pgx: pip install 'offtrace[minatar]'")
    return make(name)


# -- all of them ---------------------------------------------------------------------------------------------


def test_every_pure_environment_has_a_picture() -> None:
    assert set(PICTURES) == set(NAMES)
    assert set(CELLS) <= set(NAMES)


def test_a_map_is_drawn_as_one() -> None:
    """The fork: walls, a goal, the agent in its corner; and an MDP without a map is a row of its states."""
    env = make("mdp/fork")
    state, _ = env.reset(jax.random.key(0))
    colours = cells(env, state)
    assert colours.shape == (9, 5, 3)
    assert (colours == YELLOW).all(-1).nonzero() == (np.array([8]), np.array([0]))
    assert (colours == GREEN).all(-1).nonzero() == (np.array([2]), np.array([4]))
    assert (colours == LINE).all(-1).sum() == 9 * 5 - (9 + 9 + 1 + 3)  # all but the corridor and the loop
    assert picture(env, state).ndim == 3
    garnet = make("mdp/garnet", num_states=6)
    assert cells(garnet, garnet.reset(jax.random.key(0))[0]).shape == (1, 6, 3)


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_is_an_image_that_changes_with_the_state(name: str) -> None:
    env = made(name)
    key = jax.random.key(0)
    state, _ = jax.jit(env.reset)(key)
    first = picture(env, state)
    assert first.dtype == np.uint8
    assert first.ndim == 3
    assert first.shape[2] == 3
    assert 240 <= first.shape[1] <= 400
    np.testing.assert_array_equal(picture(env, state), first)
    step = jax.jit(env.step)
    for count in range(20):  # the picture of a game may stand still for a while
        state = step(state, np.int32(count % env.num_actions), key).state
        after = picture(env, state)
        assert after.shape == first.shape
        if (after != first).any():
            break
    else:
        pytest.fail("the picture never changed")
    colours = cells(env, state)
    if name in CELLS:
        assert colours is not None
        assert colours.dtype == np.uint8
        assert colours.shape[1:] == (env.observation.shape[1], 3)
    else:
        assert colours is None


@pytest.mark.parametrize("env", [object(), SimpleNamespace(name="pocket/unknown")])
def test_what_has_no_picture_is_refused(env: Any) -> None:
    for function in (picture, cells):
        with pytest.raises(TypeError, match="`env` must be an environment with a picture"):
            function(env, None)


def test_actions_have_a_character_each() -> None:
    for name, characters in ACTIONS.items():
        suite, _, game = name.partition("/")
        if suite == "gymnasium":
            if game not in gymnasium.registry:  # releases of Gymnasium differ in their versions of CliffWalking
                assert game.startswith("CliffWalking")
                continue
            number = int(gymnasium.make(game).action_space.n)
        else:
            number = GAMES[game].num_actions if game in GAMES else make(name).num_actions
        assert len(characters) == number


# -- the classics: distances are in pixels; 1 is for the rounding of an edge --------------------------------


def test_the_cart_is_where_it_is() -> None:
    for position in (-2.0, 0.0, 0.5, 1.5):
        x, _ = middle(picture(CartPole(), motion(position, 0, 0, 0)), BLUE)
        assert x == pytest.approx(200 + 68 * position, abs=1)


def test_the_pole_leans_as_it_does() -> None:
    for angle in (-0.2, 0.2):
        found = places(picture(CartPole(), motion(0, 0, angle, 0)), ORANGE)
        top = found[found[:, 0] <= found[:, 0].min() + 4, 1].mean() + 0.5
        # Its end is round, so that the topmost pixels are above the end itself; lengths are twice the true ones.
        assert top == pytest.approx(200 + 2 * 68 * np.sin(angle), abs=2)


def test_the_car_is_on_its_hill() -> None:
    ends = [middle(picture(MountainCar(), motion(x, 0)), BLUE) for x in (-1.0, -np.pi / 6, 0.3)]
    (left, high), (bottom, low), (right, higher) = ends
    assert left < bottom < right
    assert low > high
    assert low > higher
    # In the lowest point of the valley the car is upright, above its place.
    assert bottom == pytest.approx((1.25 - np.pi / 6) * 400 / 1.9, abs=1)


def test_the_acrobot_hangs_swings_and_arrives() -> None:
    pivot, length = np.array([160, 160]), 72
    hanging, right, up = (
        (motion(0, 0, 0, 0), (0, 2), YELLOW),
        (motion(np.pi / 2, 0, 0, 0), (2, 0), YELLOW),
        (motion(np.pi / 2, np.pi / 2, 0, 0), (1, -1), YELLOW),
    )
    for state, place, colour in (hanging, right, up):
        tip = middle(picture(Acrobot(), state), colour)
        np.testing.assert_allclose(tip, pivot + length * np.array(place), atol=1)
    above = picture(Acrobot(), motion(np.pi, 0, 0, 0))
    assert not len(places(above, YELLOW))  # the line is reached: the tip is green, as the line is
    assert tuple(above[160 - 2 * length, 160]) == GREEN


# -- boards --------------------------------------------------------------------------------------------------


def at(image: np.ndarray, row: int, column: int, side: int = 32) -> tuple[int, ...]:
    """The colour in the middle of a cell."""
    return tuple(image[MARGIN + side * row + side // 2, MARGIN + side * column + side // 2].tolist())


def test_tiles_have_gaps() -> None:
    image = board(np.full((10, 10, 3), WHITE, np.uint8))
    assert at(image, 4, 7) == WHITE
    for line in range(MARGIN, MARGIN + 10 * 32 + 1, 32):  # the pixels on both sides of every line between cells
        assert (image[line - 1 : line + 1] == NIGHT).all()
        assert (image[:, line - 1 : line + 1] == NIGHT).all()


def test_catch_shows_ball_and_paddle() -> None:
    env = Catch()
    state = Fall(3, 7, 2)
    image, colours = picture(env, state), cells(env, state)
    assert colours is not None
    assert at(image, 3, 7) == YELLOW
    assert at(image, 3, 6) == CELL
    assert middle(image, YELLOW) == pytest.approx((MARGIN + 32 * 7.5, MARGIN + 32 * 3.5), abs=1)
    assert middle(image, BLUE)[0] == pytest.approx(MARGIN + 32 * 2.5, abs=1)
    expected = np.full((10, 10, 3), CELL)
    expected[3, 7], expected[9, 2] = YELLOW, BLUE
    np.testing.assert_array_equal(colours, expected)


@pytest.mark.parametrize(("paddle", "ball"), [(4, GREEN), (5, RED)])
def test_catch_shows_whether_it_was_caught(paddle: int, ball: tuple[int, int, int]) -> None:
    state = Fall(9, 4, paddle)
    colours = cells(Catch(), state)
    assert colours is not None
    assert tuple(colours[9, 4]) == ball
    assert len(places(picture(Catch(), state), ball))


def test_the_diver_and_the_treasure() -> None:
    env = DeepSea(size=10)
    seen = [middle(picture(env, Place(row, column, row)), WHITE) for row, column in ((0, 0), (4, 2), (10, 5))]
    expected = [(MARGIN + 32 * (x + 0.5), MARGIN + 32 * (y + 0.5)) for y, x in ((0, 0), (4, 2), (10, 5))]
    np.testing.assert_allclose(seen, expected, atol=1)
    colours = cells(env, Place(4, 2, 4))
    assert colours is not None
    assert colours.shape == (11, 10, 3)  # the last row is the ground, where every dive ends
    assert tuple(colours[4, 2]) == WHITE
    assert tuple(colours[9, 9]) == YELLOW


def test_the_walker_and_the_cliff() -> None:
    side = 380 // 12
    image = picture(Cliff(), Place(1, 6, 0))
    assert middle(image, YELLOW) == pytest.approx((MARGIN + side * 6.5, MARGIN + side * 1.5), abs=1)
    teeth = places(image, RED)
    assert teeth[:, 0].min() > MARGIN + 3 * side
    assert teeth[:, 1].min() > MARGIN + side
    assert teeth[:, 1].max() < MARGIN + 11 * side


@pytest.mark.parametrize(("rows", "columns", "side"), [(2, 1, 32), (10, 5, 32), (6, 40, 9), (200, 200, 4)])
def test_boards_of_other_sizes(rows: int, columns: int, side: int) -> None:
    image = picture(Catch(rows=rows, columns=columns), Fall(0, columns - 1, 0))
    assert image.shape == (rows * side + 2 * MARGIN, columns * side + 2 * MARGIN, 3)
    inside = image[MARGIN : MARGIN + side, -MARGIN - side : -MARGIN].astype(int)
    assert (inside[..., 0] > 150).any()  # the ball, or, where it is all edge, a mixture


# -- MinAtar -------------------------------------------------------------------------------------------------


def played(game: str, planes: np.ndarray) -> tuple[Any, Any]:
    """As much of an environment and its state as a picture looks at; pgx is not needed."""
    return SimpleNamespace(name=f"minatar/{game}", game=game), SimpleNamespace(
        game=SimpleNamespace(observation=planes)
    )


@pytest.mark.parametrize("game", GAMES)
def test_every_channel_has_its_colour_in_its_cells(game: str) -> None:
    number = GAMES[game].num_channels
    assert len(CHANNELS[game]) == number
    assert sorted(IN_FRONT[game]) == [*range(number)]
    assert len({colour for _, colour in CHANNELS[game]} | {CELL, NIGHT}) == number + 2
    generator = np.random.default_rng(0)
    for channel, (_, colour) in enumerate(CHANNELS[game]):
        planes = np.zeros((10, 10, number), bool)
        planes[..., channel] = generator.random((10, 10)) < 0.3
        image, colours = picture(*played(game, planes)), cells(*played(game, planes))
        expected = np.where(planes[..., channel, None], colour, CELL)
        np.testing.assert_array_equal(colours, expected)
        shown = [[at(image, row, column) for column in range(10)] for row in range(10)]
        np.testing.assert_array_equal(shown, expected)


@pytest.mark.parametrize("game", GAMES)
def test_of_several_channels_the_front_one_is_seen(game: str) -> None:
    generator = np.random.default_rng(1)
    planes = generator.random((10, 10, GAMES[game].num_channels)) < 0.3
    colours = cells(*played(game, planes))
    assert colours is not None
    for (row, column), _ in np.ndenumerate(planes[..., 0]):
        front = [CHANNELS[game][c][1] for c in IN_FRONT[game] if planes[row, column, c]]
        assert tuple(colours[row, column]) == (front[-1] if front else CELL)


@pytest.mark.parametrize(
    ("game", "front"),
    [
        ("asterix", "player"),
        ("breakout", "ball"),
        ("freeway", "chicken"),
        ("seaquest", "own bullet"),
        ("space_invaders", "own bullet"),
    ],
)
def test_what_matters_is_never_hidden(game: str, front: str) -> None:
    names, colours = zip(*CHANNELS[game], strict=True)
    everything = np.ones((10, 10, len(names)), bool)
    shown = cells(*played(game, everything))
    assert shown is not None
    assert (shown == colours[names.index(front)]).all()
    for trail in {"trail", "speed 1", "speed 5"} & {*names}:
        for other, colour in enumerate(colours):
            pair = np.zeros_like(everything)
            pair[..., [names.index(trail), other]] = True
            assert names[other].startswith("speed") or (cells(*played(game, pair)) == colour).all()


def test_the_channels_are_what_pgx_says_they_are() -> None:
    env = made("minatar/breakout")
    state, observation = env.reset(jax.random.key(0))
    colours = cells(env, state)
    names = [name for name, _ in CHANNELS["breakout"]]
    assert colours is not None
    bricks = np.asarray(observation)[..., names.index("brick")]
    assert bricks.sum() == 30
    assert bricks[1:4].all()
    assert (colours == ORANGE).all(-1).sum() >= 29  # the ball may start among them
    paddle = int(state.game._pos)
    assert tuple(colours[9, paddle]) == BLUE
