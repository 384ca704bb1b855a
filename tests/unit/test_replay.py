"""Replay against a naive one: a list of dicts per actor, with the observations that the actor saw."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offtrace.agent import replay
from offtrace.agent.replay import ReplaySpec, ReplayState, Rows, Windows

WRITE = jax.jit(replay.add)
SAMPLE = jax.jit(replay.sample, static_argnums=(2, 3))
STARTS = jax.jit(lambda *given: (replay.can_sample(*given), replay.num_starts(*given)), static_argnums=1)
CHI_SQUARE = 4.5
"""Accepted standard deviations of χ² above its mean; about 1 in 100,000 sets of samples exceeds it."""


def rows_of(rng: np.random.Generator, spec: ReplaySpec, length: int, *, end: float = 0.2) -> Rows:
    """Episodes of about 1/`end` steps; an end is a termination or, with a dummy row after it, a truncation.

    kind      step  step  last  dummy  step (reset) …
    """
    shape = length, spec.num_actors
    fields = {name: np.zeros(shape, bool) for name in ("reset", "mask", "continues")}
    for actor in range(spec.num_actors):
        kind = "reset"
        for t in range(length):
            ends = kind != "dummy" and rng.random() < end
            truncated = ends and rng.random() < 0.5
            fields["reset"][t, actor] = kind == "reset"
            fields["mask"][t, actor] = kind != "dummy"
            fields["continues"][t, actor] = kind != "dummy" and (not ends or truncated)
            dummy_follows = truncated or (ends and rng.random() < 0.5)
            kind = "dummy" if dummy_follows else "reset" if ends or kind == "dummy" else "step"
    frames = rng.integers(0, 256, (*shape, *spec.shape))
    return Rows(
        observation=frames > 128 if spec.packed else frames.astype(spec.dtype),
        **fields,
        reward=rng.normal(size=shape).astype(np.float32),
        action=rng.integers(0, 256, shape),
        mu_a=rng.uniform(0.01, 1, shape).astype(np.float32),
    )


class Naive:
    """One list of dicts per actor, as long as the run; overwritten rows are those before the last `capacity`."""

    def __init__(self, spec: ReplaySpec) -> None:
        self.spec = spec
        self.lists: list[list[dict[str, Any]]] = [[] for _ in range(spec.num_actors)]

    def add(self, rows: Rows, t: int) -> None:
        for actor, written in enumerate(self.lists):
            row = {name: value[t, actor] for name, value in rows._asdict().items()}
            blank = [np.zeros(self.spec.shape, self.spec.dtype)] * self.spec.stack
            before = blank if row["reset"] or not written else written[-1]["frames"]
            row["frames"] = [*before[1:], row["observation"]]
            written.append(row)

    def starts(self, length: int) -> range:
        """Return the times where a window can start: its n+1 rows and the first one's older frames are stored."""
        num_steps = len(self.lists[0])
        alive = [t for t in range(num_steps) if t >= num_steps - self.spec.capacity]

        def complete(t: int) -> bool:
            return t - self.spec.stack + 1 in alive or alive[0] == 0

        good = [t for t in alive if t + length in alive and complete(t)]
        return range(good[0], good[-1] + 1) if good else range(0)

    def window(self, actor: int, start: int, length: int) -> dict[str, np.ndarray]:
        rows = self.lists[actor][start : start + length + 1]
        seen = [row["frames"] if self.spec.stack > 1 else row["frames"][0] for row in rows]
        names = {"a": "action", "r": "reward", **{k: k for k in ("continues", "reset", "mask", "mu_a")}}
        window = {short: np.array([row[name] for row in rows[:-1]]) for short, name in names.items()}
        age = len(self.lists[0]) - 1 - np.arange(start, start + length)
        return {"obs": np.array(seen), **window, "age": age}


def both(spec: ReplaySpec, rows: Rows, chunks: list[int]) -> tuple[ReplayState, Naive]:
    """Drive the real and the naive replay by the same script of chunk lengths; 0 stands for a single step."""
    state, naive, t = replay.init(spec), Naive(spec), 0
    for chunk in chunks:
        length = max(chunk, 1)
        part = Rows(*(value[t] if chunk == 0 else value[t : t + length] for value in rows))
        state = WRITE(state, part)
        for i in range(t, t + length):
            naive.add(rows, i)
        t += length
    return state, naive


def assert_all_windows_are_right(state: ReplayState, naive: Naive, length: int, num_windows: int = 400) -> None:
    """Every drawn window is one of the naive replay's, and all of those are drawn, about equally often."""
    starts = naive.starts(length)
    can_sample, num_starts = STARTS(state, length)
    assert bool(can_sample) == (len(starts) > 0)
    assert int(num_starts) == len(starts)
    if not starts:
        return
    batch = SAMPLE(state, jax.random.key(7), num_windows, length)
    batch = Windows(*map(np.asarray, batch))
    counts: dict[tuple[int, int], int] = {}
    places = {tuple(naive.window(i, t, length)["mu_a"]): (i, t) for i in range(len(naive.lists)) for t in starts}
    assert len(places) == len(naive.lists) * len(starts)  # so a window is known by its probabilities
    for b in range(num_windows):
        place = places[tuple(batch.mu_a[:, b])]
        assert place[0] == batch.actor[b]
        counts[place] = counts.get(place, 0) + 1
        if counts[place] == 1:
            for name, expected in naive.window(*place, length).items():
                given = getattr(batch, name)[:, b]
                np.testing.assert_array_equal(given, expected, err_msg=f"{name} of {place}")
    expected_count = num_windows / len(places)
    if expected_count >= 5:
        seen = np.array([counts.get(place, 0) for place in places.values()])
        chi_square, df = ((seen - expected_count) ** 2 / expected_count).sum(), len(places) - 1
        assert chi_square <= df + CHI_SQUARE * np.sqrt(2 * max(df, 1))
        assert set(counts) == set(places.values()) or expected_count < 10


FRAMES = {"bits": ((3, 3, 4), bool), "bytes": ((5, 7), "uint8"), "vector": ((4,), "float32")}


@pytest.mark.parametrize(
    ("kind", "stack", "num_actors"),
    [("bits", 1, 1), ("bits", 4, 3), ("bytes", 4, 1), ("vector", 1, 3)],
)
def test_agrees_with_the_naive_structure(kind: str, stack: int, num_actors: int) -> None:
    """Before the ring is full, when it is just full, one row later, and after several turns; in chunks and steps."""
    shape, dtype = FRAMES[kind]
    spec = ReplaySpec(capacity=23, num_actors=num_actors, shape=shape, dtype=dtype, stack=stack)
    rows = rows_of(np.random.default_rng(stack), spec, 100)
    rows.reset[0] = kind != "vector"  # a run may begin in the middle of an episode
    short = [[0], [0] * 3, [7], [7, 0]]
    about_full = [[7, 7, 7, 0], [23], [7, 7, 7, 0, 0], [23, 0], [0] * 24]
    for chunks in (*short, *about_full, [7] * 5, [7, 7, 0, 7, 0, 7, 7, 23, 0], [23] * 4):
        state, naive = both(spec, rows, chunks)
        for length in (1, 3):
            assert_all_windows_are_right(state, naive, length)


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_any_script_agrees(data: st.DataObject) -> None:
    """Few shapes, so that few programs are compiled; any script, episodes and window."""
    stack, capacity = data.draw(st.sampled_from([(1, 7), (4, 13)]))
    spec = ReplaySpec(capacity=capacity, num_actors=2, shape=(2,), dtype="uint8", stack=stack)
    chunks = data.draw(st.lists(st.sampled_from([0, 2, 7]), min_size=1, max_size=14))
    end = data.draw(st.sampled_from([0.0, 0.1, 0.5, 1.0]))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    rows = rows_of(rng, spec, sum(max(chunk, 1) for chunk in chunks), end=end)
    assert_all_windows_are_right(*both(spec, rows, chunks), length=data.draw(st.sampled_from([1, capacity - stack])))


def test_sampling_is_uniform_over_actors_and_starts() -> None:
    spec = ReplaySpec(capacity=31, num_actors=3, shape=(1,), dtype="float32", stack=4)
    state, naive = both(spec, rows_of(np.random.default_rng(0), spec, 71), [31, 31, 9])
    assert_all_windows_are_right(state, naive, 5, num_windows=40_000)


def test_a_single_window_fits_exactly() -> None:
    spec = ReplaySpec(capacity=8, num_actors=1, shape=(1,), dtype="float32", stack=4)
    state, naive = both(spec, rows_of(np.random.default_rng(0), spec, 20), [8, 8, 4])
    assert list(naive.starts(4)) == [15]
    assert_all_windows_are_right(state, naive, 4)
    with pytest.raises(ValueError, match="`capacity` must be at least `length` \\+ `stack`"):
        replay.sample(state, jax.random.key(0), 1, 5)


@settings(max_examples=20, deadline=None)
@given(size=st.sampled_from([8, 9]), seed=st.integers(0, 2**32))
def test_packing_is_exact(size: int, seed: int) -> None:
    spec = ReplaySpec(capacity=3, num_actors=2, shape=(size,), dtype=bool)
    rows = rows_of(np.random.default_rng(seed), spec, 2)
    batch = SAMPLE(WRITE(replay.init(spec), rows), jax.random.key(0), 8, 1)
    assert batch.obs.dtype == np.bool_
    for b in range(8):
        actor = int(np.flatnonzero(rows.mu_a[0] == batch.mu_a[0, b])[0])
        np.testing.assert_array_equal(batch.obs[:, b], rows.observation[:, actor])


@pytest.mark.parametrize("dtype", [bool, "float32"])
def test_push_shows_what_sampling_gives_back(dtype: Any) -> None:
    """An actor sees the stack that it later learns from, also in dummy rows."""
    spec = ReplaySpec(capacity=50, num_actors=2, shape=(3,), dtype=dtype, stack=3)
    rows = rows_of(np.random.default_rng(2), spec, 40)
    stack = jnp.zeros((2, *spec.observation_shape), spec.dtype)
    push, seen = jax.jit(replay.push), []
    for t in range(40):
        stack = push(stack, jnp.asarray(rows.observation[t]), jnp.asarray(rows.reset[t]))
        seen.append(np.asarray(stack))
    batch = SAMPLE(WRITE(replay.init(spec), rows), jax.random.key(1), 100, 5)
    for b in range(100):
        t, actor = (int(i) for i in np.argwhere(rows.mu_a == batch.mu_a[0, b])[0])
        np.testing.assert_array_equal(batch.obs[:, b], np.stack(seen[t : t + 6])[:, actor])


def test_members_together_are_members_alone() -> None:
    """`vmap` over a leading axis of states, keys and rows, bit for bit; also with one clock for all."""
    spec = ReplaySpec(capacity=11, num_actors=2, shape=(5,), dtype=bool, stack=2)
    rows = [rows_of(np.random.default_rng(member), spec, 30) for member in range(3)]
    keys = jax.random.split(jax.random.key(0), 3)
    alone = []
    for member in range(3):
        state = replay.init(spec)
        for t in range(30):
            state = WRITE(state, Rows(*(value[t] for value in rows[member])))
        alone.append((state, SAMPLE(state, keys[member], 4, 3)))
    together = jax.vmap(lambda _: replay.init(spec))(jnp.arange(3))
    axes = ReplayState(frames=0, records=0, num_steps=None, spec=spec)
    lockstep = ReplayState(together.frames, together.records, jnp.int32(0), spec)
    add = jax.jit(jax.vmap(replay.add))
    add_in_lockstep = jax.jit(jax.vmap(replay.add, in_axes=(axes, 0), out_axes=axes))
    for t in range(30):
        step = Rows(*(np.stack(values)[:, t] for values in zip(*rows, strict=True)))
        together, lockstep = add(together, step), add_in_lockstep(lockstep, step)
    batch = jax.jit(jax.vmap(lambda s, k: replay.sample(s, k, 4, 3)))(together, keys)
    for member, expected in enumerate(alone):
        for state in (together, ReplayState(lockstep.frames, lockstep.records, together.num_steps, spec)):
            for x, y in zip(jax.tree.leaves((state, batch)), jax.tree.leaves(expected), strict=True):
                np.testing.assert_array_equal(np.asarray(x)[member], y)


def test_a_part_is_the_memory_of_its_actors() -> None:
    """Three members with two actors each share a memory; each draws what it would draw from its own."""

    def written(spec: ReplaySpec, rows: Rows) -> ReplayState:
        state = replay.init(spec)
        for chunk in (slice(0, 20), slice(20, 33)):
            state = WRITE(state, Rows(*(value[chunk] for value in rows)))
        return state

    spec = ReplaySpec(capacity=20, num_actors=6, shape=(3, 4), dtype="uint8", stack=2)
    rows = rows_of(np.random.default_rng(1), spec, 33)
    shared = written(spec, rows)
    key = jax.random.key(5)
    for member in range(3):
        columns = slice(2 * member, 2 * member + 2)
        alone = written(dataclasses.replace(spec, num_actors=2), Rows(*(value[:, columns] for value in rows)))
        part = replay.part(shared, jnp.int32(2 * member), 2)
        for found, expected in zip(SAMPLE(part, key, 50, 4), SAMPLE(alone, key, 50, 4), strict=True):
            assert np.array_equal(found, expected)
        assert replay.largest_reward(part) == replay.largest_reward(alone) == abs(rows.reward[13:, columns]).max()


def test_a_scan_writes_and_samples_what_a_loop_does() -> None:
    spec = ReplaySpec(capacity=9, num_actors=2, shape=(3,), dtype="uint8", stack=2)
    rows = Rows(*map(jnp.asarray, rows_of(np.random.default_rng(0), spec, 25)))
    keys = jax.random.split(jax.random.key(0), 25)

    def step(state: ReplayState, given: tuple[Rows, Any]) -> tuple[ReplayState, Any]:
        state = replay.add(state, given[0])
        return state, replay.sample(state, given[1], 2, 2)

    final, batches = jax.jit(lambda s: jax.lax.scan(step, s, (rows, keys)), donate_argnums=0)(replay.init(spec))
    state = replay.init(spec)
    rows = Rows(*map(np.asarray, rows))
    for t in range(25):
        state = WRITE(state, Rows(*(value[t] for value in rows)))
        if t >= 3:
            expected = SAMPLE(state, keys[t], 2, 2)
            for x, y in zip(batches, expected, strict=True):
                np.testing.assert_array_equal(np.asarray(x)[t], y)
    for x, y in zip(jax.tree.leaves(final), jax.tree.leaves(state), strict=True):
        np.testing.assert_array_equal(x, y)


def test_the_memory_is_donated_not_copied() -> None:
    spec = ReplaySpec(capacity=64, num_actors=2, shape=(3,), dtype="uint8")
    rows = Rows(*map(jnp.asarray, rows_of(np.random.default_rng(0), spec, 1)))
    state = replay.init(spec)
    place = state.frames.unsafe_buffer_pointer()
    written = jax.jit(replay.add, donate_argnums=0)(state, rows)
    assert written.frames.unsafe_buffer_pointer() == place
    assert state.frames.is_deleted()


def test_bytes_per_transition() -> None:
    """App. F has 62,500 rows for each of 16 actors; the limits are 150 bytes on MinAtar and 7.3 kB on Atari."""
    size = {"capacity": 62_500, "num_actors": 16}
    planes = {4: 50, 6: 75, 7: 88, 10: 125}  # Breakout and Asterix, Space Invaders, Freeway, Seaquest
    for channels, packed in planes.items():
        taken = replay.bytes_per_transition(ReplaySpec(**size, shape=(10, 10, channels), dtype=bool))
        assert taken == pytest.approx(packed + 12, rel=1e-4)  # one zero row in 62,500
        assert taken <= 150
    atari = ReplaySpec(**size, shape=(84, 84), dtype="uint8", stack=4)
    assert replay.bytes_per_transition(atari) == pytest.approx(84 * 84 + 12, rel=1e-4)
    spec = ReplaySpec(capacity=10, num_actors=3, shape=(4,), dtype="float32")
    leaves = jax.tree.leaves(replay.init(spec))
    assert sum(leaf.nbytes for leaf in leaves if leaf.ndim) / 30 == replay.bytes_per_transition(spec)


# -- input checks ---------------------------------------------------------------------------------------------

SMALL = ReplaySpec(capacity=5, num_actors=2, shape=(3,), dtype="uint8")


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("observation", np.zeros((2, 4), np.uint8), r"`observation` must have the shape \(1, 2, 3\)"),
        ("observation", np.zeros((2, 3), np.float32), "`observation` must be uint8; got float32"),
        ("reset", np.zeros(2, np.int32), "`reset` must be bool; got int32"),
        ("action", np.zeros(2, np.float32), "`action` must be whole numbers"),
        ("action", np.array([0, 256]), r"`action` must be 0 to 255; got 256 at t = 0, \[1\]"),
        ("mu_a", np.array([0.5, 0.0], np.float32), r"`mu_a` must be in \(0, 1\], .*; got 0 at t = 0, \[1\]"),
        ("mu_a", np.array([np.nan, 0.5], np.float32), "`mu_a`"),
        ("reward", np.array([0.0, np.inf], np.float32), "`reward` must be finite"),
    ],
)
def test_wrong_rows_are_refused(field: str, value: Any, text: str) -> None:
    rows = Rows(*(array[0] for array in rows_of(np.random.default_rng(0), SMALL, 1)))
    with pytest.raises((ValueError, TypeError), match=text):
        replay.add(replay.init(SMALL), rows._replace(**{field: value}))


def test_a_masked_row_may_hold_anything() -> None:
    rows = Rows(*(array[0] for array in rows_of(np.random.default_rng(0), SMALL, 1)))
    rows = rows._replace(mask=np.array([True, False]), mu_a=np.array([0.5, np.nan], np.float32))
    rows = rows._replace(reset=np.array([False, False]), continues=np.array([True, False]), action=np.array([3, -1]))
    state = WRITE(replay.add(replay.init(SMALL), rows), rows)
    batch = Windows(*map(np.asarray, SAMPLE(state, jax.random.key(0), 20, 1)))
    masked = np.asarray(batch.actor) == 1
    assert masked.any()
    assert not (batch.mask | batch.continues | batch.reset)[0, masked].any()
    assert batch.mask[0, ~masked].all()
    assert not batch.reset[0, ~masked].any()


def test_too_much_and_too_early_are_refused() -> None:
    state = replay.init(SMALL)
    with pytest.raises(ValueError, match="`rows` must be 1 to 5 steps, the capacity; got 6"):
        replay.add(state, rows_of(np.random.default_rng(0), SMALL, 6))
    with pytest.raises(ValueError, match="`state` must hold a window of 2 steps"):
        replay.sample(state, jax.random.key(0), 1, 2)
    for name in ("capacity", "num_actors", "stack"):
        sizes = {"capacity": 5, "num_actors": 2, "stack": 1} | {name: 0}
        with pytest.raises(ValueError, match=f"`{name}` must be a whole number of at least 1"):
            ReplaySpec(**sizes, shape=(3,), dtype="uint8")
    with pytest.raises(ValueError, match="under 2³¹"):
        ReplaySpec(capacity=2**30, num_actors=2, shape=(3,), dtype="uint8")
