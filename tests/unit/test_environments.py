"""The pure environments against Gymnasium and pgx, step by step; rows against a script, row by row."""

import inspect
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from builders.games import newest
from precision import double_precision

from offtrace import environments
from offtrace.environments import NAMES, make, rows
from offtrace.environments.grids import Catch, Cliff, DeepSea
from offtrace.environments.interface import Space, Step
from offtrace.environments.pocket import Acrobot, CartPole, Motion, MountainCar

KEY = jax.random.key(0)
MINATAR = [name for name in NAMES if name.startswith("minatar/")]


def made(name: str, **options: Any) -> Any:
    if name.startswith("minatar/"):
        pytest.importorskip("pgx")
    return make(name, **options)


# -- the classics against Gymnasium --------------------------------------------------------------------------

CLASSICS = {"CartPole-v1": CartPole(), "MountainCar-v0": MountainCar(), "Acrobot-v1": Acrobot()}


def rocking(observation: np.ndarray, action: int) -> int:
    """Accelerate in the direction of the motion, which gets the car out of the valley."""
    return 2 if observation[1] >= 0 else 0


def balancing(observation: np.ndarray, action: int) -> int:
    """Keep the pole up until the time limit, from most starts."""
    return int(observation[2] + 0.3 * observation[3] + 0.02 * observation[0] + 0.1 * observation[1] > 0)


def swinging(observation: np.ndarray, action: int) -> int:
    """Apply torque in the direction of the lower link, which reaches the line."""
    return 2 if observation[5] < 0 else 0


def taken(observation: np.ndarray, action: int) -> int:
    return action


SKILLED = {"CartPole-v1": balancing, "MountainCar-v0": rocking, "Acrobot-v1": swinging}


@pytest.mark.parametrize("skilled", [False, True])
@pytest.mark.parametrize("name", CLASSICS)
def test_whole_episodes_in_float64(name: str, skilled: bool) -> None:
    """Every step of whole episodes, from Gymnasium's own state: same next state, reward and end, to rounding.

    Each step starts afresh, since a pendulum amplifies rounding without bound; 1e-12 is some thousand units in the
    last place, and one wrong constant is off by far more.
    """
    env, theirs = CLASSICS[name], gymnasium.make(name)
    policy, rng = SKILLED[name] if skilled else taken, np.random.default_rng(0)
    with double_precision():
        step = jax.jit(lambda state, action: env.step(state, action, KEY))
        for seed in range(2):
            seen, _ = theirs.reset(seed=seed)
            time, ended = 0, False
            while not ended:
                before = Motion(jnp.asarray(np.array(theirs.unwrapped.state, np.float64)), jnp.int32(time))
                action = policy(seen, int(rng.integers(env.num_actions)))
                seen, reward, terminated, truncated, _ = theirs.step(action)
                found = step(before, action)
                assert np.asarray(found.state.x) == pytest.approx(np.array(theirs.unwrapped.state), abs=1e-12)
                assert np.asarray(found.observation) == pytest.approx(seen, abs=1e-6)
                assert (found.reward, found.terminated, found.truncated) == (reward, terminated, truncated)
                assert found.observation.dtype == found.reward.dtype == jnp.float32
                time, ended = int(found.state.time), terminated or truncated
    theirs.close()


SCALES = {"CartPole-v1": [2.4, 3, 0.21, 3], "MountainCar-v0": [0.9, 0.07], "Acrobot-v1": [3.1, 3.1, 5, 8]}


@pytest.mark.parametrize("name", CLASSICS)
def test_single_steps_in_float32(name: str) -> None:
    """A thousand states each, anywhere that play goes, one step in float32: to rounding, 1e-7 of the largest term."""
    env, theirs, rng = CLASSICS[name], gymnasium.make(name).unwrapped, np.random.default_rng(1)
    middle = np.array([-0.3, 0.0]) if name == "MountainCar-v0" else 0.0
    x = (middle + rng.uniform(-1, 1, (1000, len(SCALES[name]))) * SCALES[name]).astype(np.float32)
    actions = rng.integers(0, env.num_actions, 1000)
    step = jax.jit(jax.vmap(lambda x, action: env.step(Motion(x, jnp.int32(0)), action, KEY)))
    found = jax.tree.map(np.asarray, step(jnp.asarray(x), jnp.asarray(actions)))
    theirs.reset(seed=0)
    expected = []
    for state, action in zip(x.astype(np.float64), actions, strict=True):
        theirs.state, theirs.steps_beyond_terminated = state, None
        expected.append(theirs.step(action)[:3])
    seen, reward, terminated = (np.array(part) for part in zip(*expected, strict=True))
    assert found.observation == pytest.approx(seen, abs=2e-5, rel=2e-5)
    same = (found.terminated == terminated) & (found.reward == reward)
    assert same.sum() >= 999  # a threshold may lie between two float32 numbers
    assert 0 < terminated.sum() < 1000


@pytest.mark.parametrize("name", CLASSICS)
def test_starts_are_spread_as_in_gymnasium(name: str) -> None:
    env, theirs = CLASSICS[name], gymnasium.make(name).unwrapped
    expected = []
    for seed in range(400):
        theirs.reset(seed=seed)
        expected.append(np.array(theirs.state, np.float64))
    states, observations = jax.jit(jax.vmap(env.reset))(jax.random.split(KEY, 400))
    low, high = np.min(expected, 0), np.max(expected, 0)
    room = 0.05 * (high - low) + 1e-6  # 400 uniform draws miss an end by a quarter of a percent
    assert np.asarray(states.x.min(0)) == pytest.approx(low, abs=room.max())
    assert np.asarray(states.x.max(0)) == pytest.approx(high, abs=room.max())
    assert observations.shape == (400, *env.observation.shape)


# -- grids ---------------------------------------------------------------------------------------------------


def test_the_cliff_is_gymnasiums_model() -> None:
    model, env = gymnasium.make(newest("CliffWalking")).unwrapped.P, Cliff()
    x, a = np.divmod(np.arange(48 * 4, dtype=np.int32), 4)
    start = jax.jit(env.reset)(KEY)[0]

    @jax.jit
    @jax.vmap
    def play(x: Any, a: Any, time: Any) -> Step:
        return env.step(start._replace(row=x // 12, column=x % 12, time=time), a, KEY)

    step = play(x, a, np.zeros_like(x))
    outcomes = [model[int(x)][int(a)][0][1:] for x, a in zip(x, a, strict=True)]
    assert np.asarray(step.observation).reshape(192, 48).argmax(1).tolist() == [int(o[0]) for o in outcomes]
    assert np.asarray(step.observation).reshape(192, 48).sum(1).tolist() == [1] * 192
    assert step.reward.tolist() == [o[1] for o in outcomes]
    assert step.terminated.tolist() == [o[2] for o in outcomes]
    assert not step.truncated.any()
    late = play(x, a, np.full_like(x, 199))
    assert late.truncated.all()
    assert late.terminated.tolist() == step.terminated.tolist()


def test_catch_by_hand() -> None:
    env = Catch(rows=4, columns=5)
    reset, play = jax.jit(env.reset), jax.jit(env.step)
    for key in jax.random.split(KEY, 8):
        state, x = reset(key)
        target = int(state.column)
        assert x[0, target, 0]
        assert x[3, 2, 1]
        assert x.sum() == 2
        for miss in (False, True):
            now, gained, ends = state, [], []
            for _ in range(3):
                way = np.sign(target - int(now.paddle)) * (-1 if miss else 1)
                step = play(now, jnp.int32(way + 1), KEY)
                now = step.state
                gained.append(float(step.reward))
                ends.append(bool(step.terminated))
            missed = int(now.paddle) != target
            assert gained == [0, 0, -1 if missed else 1]
            assert ends == [False, False, True]
            assert step.observation[3, target, 0]
            assert step.observation[3, int(now.paddle), 1]
    starts = jax.jit(jax.vmap(env.reset))(jax.random.split(KEY, 200))[0].column
    assert set(starts.tolist()) == set(range(5))


def naive_deep_sea(right: np.ndarray, actions: list[int]) -> float:
    """As in bsuite's code."""
    size, column, total = len(right), 0, 0.0
    for row, action in enumerate(actions):
        if action == right[row, column]:
            if column == size - 1:
                total += 1
            total -= 0.01 / size
            column = min(column + 1, size - 1)
        else:
            column = max(column - 1, 0)
    return total


def test_deep_sea_against_a_loop() -> None:
    env, rng = DeepSea(size=4, mapping=3), np.random.default_rng(0)
    start, play = env.reset(KEY)[0], jax.jit(env.step)
    ways = [rng.integers(0, 2, 4).tolist() for _ in range(20)] + [env.right.diagonal().tolist()]
    for actions in ways:
        state, total = start, 0.0
        for time, action in enumerate(actions):
            step = play(state, jnp.int32(action), KEY)
            state, total = step.state, total + float(step.reward)
            assert bool(step.terminated) == (time == 3)
        assert total == pytest.approx(naive_deep_sea(env.right, actions), abs=1e-6)
    assert total == pytest.approx(env.max_return, abs=1e-6)


def test_sizes_are_refused() -> None:
    for wrong in (lambda: Catch(rows=1), lambda: DeepSea(size=0), lambda: Catch(columns=2.5)):
        with pytest.raises(ValueError, match="must be a whole number of at least"):
            wrong()


# -- MinAtar against pgx -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MINATAR)
def test_minatar_has_the_shapes_of_pgx(name: str) -> None:
    pgx = pytest.importorskip("pgx")
    env, theirs = make(name), pgx.make(name.replace("/", "-"))
    assert theirs.sticky_action_prob == env.sticky == 0.1
    start = jax.eval_shape(theirs.init, KEY)
    assert start.legal_action_mask.shape == (env.num_actions,)
    assert (start.observation.dtype, start.observation.shape) == (env.observation.dtype, env.observation.shape)


@pytest.mark.parametrize("name", ["minatar/breakout", "minatar/freeway", "minatar/seaquest"])
def test_minatar_is_pgx_in_lockstep(name: str) -> None:
    """Through `advance`, with its resets: pgx's own states, raw rewards, ends, and true last observations.

    One piece of code wraps every game, so three are enough: a short one, one with a time limit, and the largest.
    """
    pgx = pytest.importorskip("pgx")
    env, theirs = make(name), pgx.make(name.replace("/", "-"))

    def both(carry: Any, action: Any) -> Any:
        actor, state = carry
        used = jax.random.split(actor.key)[1]
        fresh, stepped = theirs.init(jax.random.split(used)[1]), theirs.step(state, action, used)
        after = jax.tree.map(partial(jnp.where, actor.over), fresh, stepped)
        ours, row, ended = rows.advance(env, actor, action)
        return (ours, after), (actor.over, row, ended, state.observation, stepped)

    begun = jax.jit(lambda key: (rows.begin(env, key), theirs.init(jax.random.split(key)[1])))(KEY)
    actions = jnp.asarray(np.random.default_rng(0).integers(0, env.num_actions, 400), jnp.int32)
    _, found = jax.jit(lambda begun, actions: jax.lax.scan(both, begun, actions))(begun, actions)
    over, row, ended, seen, stepped = jax.tree.map(np.asarray, found)
    real = ~over
    assert row.observation.tolist() == seen.tolist()
    assert (row.observation.dtype, row.observation.shape[1:]) == (env.observation.dtype, env.observation.shape)
    assert (row.mask == real).all()
    assert (row.reward == np.where(real, stepped.rewards[:, 0], 0)).all()
    assert (row.continues == ~(real & stepped.terminated)).all()
    assert (ended.ended == (real & stepped.terminated)).all()
    last = np.flatnonzero(ended.ended)[:-1]
    assert (row.observation[last + 1] == stepped.observation[last]).all()
    assert row.reset[last + 2].all()
    assert row.reset.sum() == 1 + over[:-1].sum()
    ends = np.flatnonzero(ended.ended)
    assert len(ends) >= 2 or name == "minatar/freeway"
    for begin, end in zip([0, *(ends[:-1] + 2)], ends, strict=False):
        assert ended.episode_return[end] == row.reward[begin : end + 1].sum()
        assert ended.episode_length[end] == end + 1 - begin


def test_freeway_ends_after_2501_steps_and_92_crossings_at_most() -> None:
    env = made("minatar/freeway", sticky=0.0)

    def up(state: Any, key: Any) -> tuple[Any, Any]:
        step = env.step(state, jnp.int32(1), key)
        # Without cars nobody is knocked back: a car is in lane −1, where the player never is.
        return step.state._replace(game=step.state.game.replace(_cars=step.state.game._cars.at[:, 1].set(-1))), step[
            2:
        ]

    played = jax.jit(lambda keys: jax.lax.scan(up, env.reset(KEY)[0], keys)[1])
    reward, terminated, truncated = played(jax.random.split(KEY, 2501))
    assert int(jnp.argmax(terminated)) == 2500
    assert float(reward.sum()) == env.max_return
    assert not truncated.any()


def test_minatar_time_limit_truncates() -> None:
    env = made("minatar/breakout", time_limit=3)
    state, _ = jax.jit(env.reset)(KEY)
    step = jax.jit(env.step)
    ends = []
    for _ in range(3):
        result = step(state, jnp.int32(0), KEY)
        state = result.state
        ends.append((bool(result.terminated), bool(result.truncated)))
    assert ends == [(False, False), (False, False), (False, True)]


def test_minatar_without_pgx_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pgx.minatar.breakout", None)
    with pytest.raises(ImportError, match=r"pip install 'offtrace\[minatar\]'"):
        make("minatar/breakout")


def test_minatar_can_be_made_while_tracing() -> None:
    pytest.importorskip("pgx")
    jax.jit(lambda key: make("minatar/space_invaders").reset(key)[1])(KEY)
    assert jax.jit(make("minatar/space_invaders").reset)(KEY)[1].any()


# -- rows against a script -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Script:
    """Episodes that end as the action says: 1 truncates, 2 terminates, 3 does both; 0 continues.

    The observation is the number of steps so far; the reward of a step is 10 times that.
    """

    name: ClassVar[str] = "script"
    num_actions: ClassVar[int] = 4
    observation: ClassVar[Space] = Space((), np.dtype(np.float32))
    max_return: ClassVar[None] = None

    def reset(self, key: Any) -> tuple[Any, Any]:
        return jnp.int32(0), jnp.float32(0)

    def step(self, state: Any, action: Any, key: Any) -> Step:
        time = state + 1
        return Step(time, time.astype(jnp.float32), time * 10, action >= 2, action % 2 == 1)


#                 a_t  x_t reset  mask   r_t continues ended return length
BY_HAND = [
    (0, 0.0, True, True, 10.0, True, False, 0.0, 0),
    (0, 1.0, False, True, 20.0, True, False, 0.0, 0),
    (2, 2.0, False, True, 30.0, False, True, 60.0, 3),  # terminates
    (2, 3.0, False, False, 0.0, True, False, 0.0, 0),  # its dummy row ignores the action
    (1, 0.0, True, True, 10.0, True, True, 10.0, 1),  # truncated at once
    (0, 1.0, False, False, 0.0, True, False, 0.0, 0),  # whose bootstrap is in the dummy row
    (2, 0.0, True, True, 10.0, False, True, 10.0, 1),  # terminates at once
    (3, 1.0, False, False, 0.0, True, False, 0.0, 0),
    (0, 0.0, True, True, 10.0, True, False, 0.0, 0),
    (3, 1.0, False, True, 20.0, False, True, 30.0, 2),  # both: terminated counts
    (0, 2.0, False, False, 0.0, True, False, 0.0, 0),
    (0, 0.0, True, True, 10.0, True, False, 0.0, 0),
]


def check_by_hand(row: Any, ended: Any, index: Any = ()) -> None:
    for field, (column, dtype) in {
        "observation": (1, "f4"),
        "reset": (2, "?"),
        "mask": (3, "?"),
        "reward": (4, "f4"),
        "continues": (5, "?"),
        "ended": (6, "?"),
        "episode_return": (7, "f4"),
        "episode_length": (8, "i4"),
    }.items():
        found = np.asarray(getattr(row if hasattr(row, field) else ended, field))
        assert found.dtype == np.dtype(dtype), field
        assert found[:, *index].tolist() == [line[column] for line in BY_HAND], field


def scanned(actor: Any, actions: Any) -> Any:
    def body(actor: Any, action: Any) -> Any:
        actor, *out = rows.advance(Script(), actor, action)
        return actor, out

    return jax.lax.scan(body, actor, actions)


ACTIONS = jnp.array([line[0] for line in BY_HAND], jnp.int32)


def test_rows_by_hand_one_by_one() -> None:
    actor, found, advance = rows.begin(Script(), KEY), [], jax.jit(partial(rows.advance, Script()))
    for action in ACTIONS:
        actor, *out = advance(actor, action)
        found.append(out)
    row, ended = jax.tree.map(lambda *leaves: jnp.stack(leaves), *found)
    check_by_hand(row, ended)


def test_rows_by_hand_in_jit_and_scan() -> None:
    begin = jax.jit(rows.begin, static_argnums=0)
    _, (row, ended) = jax.jit(scanned)(begin(Script(), KEY), ACTIONS)
    check_by_hand(row, ended)


def test_rows_by_hand_in_two_vmaps() -> None:
    """Over actors, and again over runs; other actors are shifted by one row, so their dummy rows fall elsewhere."""
    actors = jax.jit(jax.vmap(jax.vmap(partial(rows.begin, Script()))))(jax.random.split(KEY, (2, 3)))
    actions = jnp.tile(ACTIONS[:, None, None], (1, 2, 3)).at[:, :, 1].set(jnp.roll(ACTIONS, 1)[:, None])
    step = jax.vmap(jax.vmap(partial(rows.advance, Script())))

    def body(actors: Any, action: Any) -> Any:
        actors, *out = step(actors, action)
        return actors, out

    last, (row, ended) = jax.jit(lambda actors, actions: jax.lax.scan(body, actors, actions))(actors, actions)
    for index in [(0, 0), (1, 0), (0, 2), (1, 2)]:
        check_by_hand(row, ended, index)
    assert last.key.shape == (2, 3)
    assert len({tuple(key) for key in jax.random.key_data(last.key).reshape(6, -1).tolist()}) == 6


def test_every_reset_has_a_key_of_its_own() -> None:
    env = Catch(rows=2)
    _, (row, _) = jax.jit(
        lambda actor: jax.lax.scan(lambda a, _: (lambda o: (o[0], o[1:]))(rows.advance(env, a, 1)), actor, length=200)
    )(rows.begin(env, KEY))
    columns = np.asarray(row.observation)[np.asarray(row.reset)][:, 0, :, 0].argmax(-1)
    assert len(columns) == 100
    assert set(columns) == set(range(10))


# -- every environment ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_contract(name: str) -> None:
    env = made(name)
    assert env.name == name
    assert env == make(name)
    assert hash(env) == hash(make(name))
    run = jax.eval_shape(
        lambda actor: rows.advance(env, actor, jnp.int32(0)), jax.eval_shape(partial(rows.begin, env), KEY)
    )
    actor, row, ended = run
    shapes = [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(actor)]
    before = jax.eval_shape(partial(rows.begin, env), KEY)
    assert shapes == [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(before)]
    assert (row.observation.shape, row.observation.dtype) == tuple(env.observation)
    assert [leaf.dtype.name for leaf in row[1:]] == ["bool", "bool", "float32", "bool"]
    assert [leaf.dtype.name for leaf in ended] == ["bool", "float32", "int32"]
    assert env.max_return is None or isinstance(env.max_return, float)
    step = jax.eval_shape(env.step, actor.state, jax.ShapeDtypeStruct((), jnp.int32), KEY)
    assert [leaf.dtype.name for leaf in step[2:]] == ["float32", "bool", "bool"]


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ("pocket/cartpol", "Did you mean pocket/cartpole?"),
        ("breakout", "Did you mean minatar/breakout?"),
        ("minatar/spaceinvaders", "Did you mean minatar/space_invaders?"),
        ("zzz", "gymnasium/<id>"),
        ("gymnasium/", "gymnasium/<id>"),
        ("ALE/Pong-v5", "Did you mean atari/pong?"),
        ("gymnasium/ALE/Pongg-v5", "atari/pong?"),
        ("ALE/SpaceInvaders-v5", "Did you mean atari/space_invaders?"),
        ("MsPacmanNoFrameskip-v4", "Did you mean atari/ms_pacman?"),
        ("gymnasium/CartPol-v1", "Did you mean: `CartPole`, or pocket/cartpole?"),
    ],
)
def test_unknown_names_get_close_ones(wrong: str, hint: str) -> None:
    """One hint, Gymnasium's or ours."""
    with pytest.raises(ValueError) as refused:
        make(wrong)
    assert hint in str(refused.value)
    assert str(refused.value).count("Did you mean") <= 1


def test_unknown_options_are_refused() -> None:
    with pytest.raises(TypeError, match="colour"):
        make("pocket/catch", colour="red")
    with pytest.raises(TypeError, match="name of an environment"):
        make(3)


def test_importing_the_room_loads_no_suite() -> None:
    code = "import sys, offtrace.environments; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"jax", "pgx", "gymnasium"} & set(loaded)
    assert inspect.getdoc(environments)
