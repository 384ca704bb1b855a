"""Schedules against a plain Python simulation of Appendix F."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offtrace.agent import schedules
from offtrace.agent.schedules import ScheduleState, SwitchingEpsilon

ADVANCE = jax.jit(schedules.advance, static_argnums=(0, 3))
EPSILON = jax.jit(schedules.epsilon, static_argnums=0)
ROUNDING = 1e-6
"""The rounding error of a float32 near 1 after three operations."""


@settings(max_examples=50, deadline=None)
@given(
    step=st.integers(0, 2_000_000),
    start=st.floats(0, 1, width=32),
    end=st.floats(0, 1, width=32),
    duration=st.integers(1, 1_000_000),
)
def test_linear_is_its_formula(step: int, start: float, end: float, duration: int) -> None:
    expected = start + (end - start) * min(1.0, step / duration)
    assert float(schedules.linear(step, start=start, end=end, duration=duration)) == pytest.approx(
        expected, abs=ROUNDING
    )


def test_the_numbers_of_the_papers() -> None:
    """The step size falls to 0 over 3·10⁸ frames, and DQN's ε to 0.1 over a million."""
    step_size = {"start": 9.12e-5, "end": 0.0, "duration": 300_000_000}
    values = [float(schedules.linear(f, **step_size)) for f in (0, 150_000_000, 300_000_000, 2**31 - 1)]
    assert values == pytest.approx([9.12e-5, 4.56e-5, 0, 0])
    epsilon = {"start": 1.0, "end": 0.1, "duration": 1_000_000}
    values = [float(schedules.linear(f, **epsilon)) for f in (0, 500_000, 1_000_000, 10_000_000)]
    assert values == pytest.approx([1, 0.55, 0.1, 0.1])
    spec = SwitchingEpsilon()
    assert (spec.ends, spec.probabilities, spec.start) == ((0.5, 0.1, 0.01), (0.3, 0.4, 0.3), 1.0)
    assert (spec.duration, spec.period, spec.shared_position) == (250_000, 50_000, False)


def simulated(spec: SwitchingEpsilon, drawn: list[int], frames: int, step: int) -> list[float]:
    """Return ε of one actor every `step` frames, simulated frame by frame; `drawn` are the schedules in order."""
    position = dict.fromkeys(range(len(spec.ends)), 0)
    seen = []
    for frame in range(frames):
        current = drawn[frame // spec.period]
        if frame % step == 0:
            spent = sum(position.values()) if spec.shared_position else position[current]
            done = min(1.0, spent / spec.duration)
            seen.append(spec.start + (spec.ends[current] - spec.start) * done)
        position[current] += 1
    return seen


def run(spec: SwitchingEpsilon, num_actors: int, num_steps: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Return ε and the current schedule, both (num_steps, num_actors)."""
    first, rest = jax.random.split(jax.random.key(3))

    def body(following: ScheduleState, key: jax.Array) -> tuple[ScheduleState, tuple[jax.Array, jax.Array]]:
        now = schedules.epsilon(spec, following), following.current
        return schedules.advance(spec, following, key, step), now

    start = schedules.init(spec, first, num_actors)
    _, (epsilon, current) = jax.jit(lambda s: jax.lax.scan(body, s, jax.random.split(rest, num_steps)))(start)
    return np.asarray(epsilon), np.asarray(current)


@pytest.mark.parametrize("shared_position", [False, True])
def test_switching_is_the_simulation(shared_position: bool) -> None:
    """Frame by frame, with periods that are a multiple of the step, until every schedule has ended."""
    spec = SwitchingEpsilon(duration=60, period=20, shared_position=shared_position)
    epsilon, current = run(spec, num_actors=5, num_steps=150, step=4)
    for actor in range(5):
        drawn = [int(value) for value in current[:: spec.period // 4, actor]]
        assert (np.repeat(drawn, spec.period // 4)[:150] == current[:, actor]).all()
        np.testing.assert_allclose(epsilon[:, actor], simulated(spec, drawn, 600, 4), atol=ROUNDING, rtol=0)
    assert epsilon[0].tolist() == [1.0] * 5
    ended = np.array(spec.ends, np.float32)[current[-1]]
    assert epsilon[-1].tolist() == ended.tolist()


def test_schedules_go_on_where_they_were_left() -> None:
    """By hand: schedule 0 for 20 frames, 1 for 20, then 0 again, from 20 of 100."""
    spec = SwitchingEpsilon(ends=(0.0, 0.5), probabilities=(1.0, 0.0), duration=100, period=20)
    following = ScheduleState(jnp.array([0]), jnp.array([[0, 0]]), jnp.array([0]))
    after = ADVANCE(spec, following, jax.random.key(0), 20)
    assert after.position.tolist() == [[20, 0]]
    away = ADVANCE(spec, after._replace(current=jnp.array([1])), jax.random.key(0), 20)
    assert (away.current.tolist(), away.position.tolist()) == ([0], [[20, 20]])
    assert float(EPSILON(spec, away)[0]) == pytest.approx(0.8)
    shared = SwitchingEpsilon(
        ends=(0.0, 0.5), probabilities=(1.0, 0.0), duration=100, period=20, shared_position=True
    )
    assert float(EPSILON(shared, away)[0]) == pytest.approx(0.6)


def test_proportions_of_switching() -> None:
    """First and later draws are within four standard deviations of (0.3, 0.4, 0.3)."""
    spec = SwitchingEpsilon(period=4, duration=100)
    _, current = run(spec, num_actors=400, num_steps=50, step=4)
    for draws in (current[:1], current[1:]):
        shares = np.bincount(draws.ravel(), minlength=3) / draws.size
        probabilities = np.array(spec.probabilities)
        np.testing.assert_array_less(
            np.abs(shares - probabilities), 4 * np.sqrt(probabilities * (1 - probabilities) / draws.size)
        )
    transitions = np.zeros((3, 3))
    np.add.at(transitions, (current[:-1].ravel(), current[1:].ravel()), 1)
    rows = transitions / transitions.sum(1, keepdims=True)
    np.testing.assert_allclose(rows, np.tile(spec.probabilities, (3, 1)), atol=0.03)  # 4 σ of the least of 3 rows


def test_a_schedule_of_probability_zero_is_never_drawn() -> None:
    for probabilities, allowed in (((0.5, 0.0, 0.5), {0, 2}), ((0.0, 0.0, 1.0), {2})):
        _, current = run(SwitchingEpsilon(probabilities=probabilities, period=1), 50, 50, 1)
        assert set(current.ravel().tolist()) == allowed


def test_a_step_that_goes_past_the_period() -> None:
    spec = SwitchingEpsilon(ends=(0.0,), probabilities=(1.0,), duration=100, period=10)
    following = schedules.init(spec, jax.random.key(0), 1)
    for frames in (4, 8, 2, 6):
        following = ADVANCE(spec, following, jax.random.key(0), 4)
        assert following.frames.tolist() == [frames]


def test_positions_stop_before_they_overflow() -> None:
    spec = SwitchingEpsilon(shared_position=True)
    far = ScheduleState(jnp.array([0]), jnp.full((1, 3), schedules.MAX_STEPS // 3), jnp.array([0]))
    after = ADVANCE(spec, far, jax.random.key(0), 2**29)
    assert (after.position >= 0).all()
    assert float(EPSILON(spec, after)[0]) == pytest.approx(spec.ends[int(after.current[0])])


def test_members_together_are_members_alone() -> None:
    spec = SwitchingEpsilon(period=8, duration=40)
    keys = jax.random.split(jax.random.key(0), 3)

    def after_five_steps(key: jax.Array) -> tuple[ScheduleState, jax.Array]:
        following = schedules.init(spec, key, 4)
        for step in jax.random.split(key, 5):
            following = schedules.advance(spec, following, step, 4)
        return following, schedules.epsilon(spec, following)

    together = jax.jit(jax.vmap(after_five_steps))(keys)
    for member, key in enumerate(keys):
        alone = jax.jit(after_five_steps)(key)
        for x, y in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
            np.testing.assert_array_equal(np.asarray(x)[member], y)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"ends": (0.5,)}, "`probabilities` must have one entry per entry of `ends`; got 3 for 1"),
        ({"probabilities": (0.3, 0.3, 0.3)}, "`probabilities` must add up to 1; got 0.9"),
        ({"probabilities": (1.5, -0.5, 0.0)}, r"`probabilities` must be in \[0, 1\]; got 1.5"),
        ({"start": float("nan")}, r"`start` must be in \[0, 1\]; got nan"),
        ({"duration": 0}, "`duration` must be at least 1 step"),
        ({"period": 0}, "`period` must be at least 1 step"),
    ],
)
def test_wrong_numbers_are_refused(arguments: dict, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        SwitchingEpsilon(**arguments)
