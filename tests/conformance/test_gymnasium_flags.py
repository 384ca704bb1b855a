"""`flags_from_gymnasium`: targets on the rows of a vector environment against each episode on its own.

The oracle rolls every episode by hand from the rules of the environment, pure functions below, and sums TD errors
with plain loops as in Eq. 3. It knows nothing of rows, masks and resets.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from loops import each

import offtrace as ot

NUM_STATES, NUM_ENVS, NUM_ROWS, GAMMA = 7, 3, 60, 0.9
TIME_LIMIT = 4
RNG = np.random.default_rng(0)
Q = RNG.normal(size=(NUM_STATES, 2))
PI = RNG.dirichlet(np.ones(2), NUM_STATES)
MU = RNG.dirichlet(np.ones(2), NUM_STATES)
COEFFICIENT = {
    "retrace": lambda pi, mu: 0.9 * min(1.0, pi / mu),
    "tree_backup": lambda pi, mu: 0.9 * pi,
    "q_lambda": lambda pi, mu: 0.9,
    "importance_sampling": lambda pi, mu: 0.9 * pi / mu,
}
MODES = {"next_step": AutoresetMode.NEXT_STEP, "same_step": AutoresetMode.SAME_STEP}


# -- the environment -----------------------------------------------------------------------------------------


def first_state(episode: int) -> int:
    return episode % 3


def after(x: int, a: int) -> tuple[int, float, bool]:
    """Return the next state, the reward, and whether the episode terminates: it does in state 6."""
    following = (2 * x + a + 1) % NUM_STATES
    return following, float(x - 2 * a), following == 6


class Walk(gymnasium.Env):
    """The rules above. Episodes of more than `TIME_LIMIT` steps are truncated; some end by both rules at once."""

    observation_space = gymnasium.spaces.Discrete(NUM_STATES)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, first_episode: int) -> None:
        self.episode = first_episode - 1

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict]:
        self.episode += 1
        self.x = first_state(self.episode)
        self.num_steps = 0
        return self.x, {}

    def step(self, a: int) -> tuple[int, float, bool, bool, dict]:
        self.x, reward, terminated = after(self.x, int(a))
        self.num_steps += 1
        return self.x, reward, terminated, self.num_steps == TIME_LIMIT, {}


# -- rows, as a user's loop writes them ----------------------------------------------------------------------


class Rows(NamedTuple):
    x: np.ndarray
    """(n+1, B)"""
    a: np.ndarray
    r: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    true_next: np.ndarray
    """(n, B): the state that the step led to; in a dummy row anything."""

    def cut(self, start: int, stop: int) -> "Rows":
        return Rows(self.x[start : stop + 1], *(values[start:stop] for values in self[1:]))

    def ended_before(self, start: int) -> np.ndarray:
        return (self.terminated | self.truncated)[start - 1] if start else np.zeros(NUM_ENVS, bool)


def record(mode: str) -> Rows:
    actions = np.random.default_rng(1).integers(2, size=(NUM_ROWS, NUM_ENVS))
    makers = [lambda first=i: Walk(first) for i in range(NUM_ENVS)]
    envs = SyncVectorEnv(makers, autoreset_mode=MODES[mode])
    assert ot.returns.flags._mode(envs.metadata["autoreset_mode"]) == mode
    x, _ = envs.reset()
    states, columns = [x], []
    for a in actions:
        x, r, terminated, truncated, info = envs.step(a)
        true_next = x.copy()
        if "final_obs" in info:  # as docs/returns.md has it
            ended = info["_final_obs"]
            true_next[ended] = np.stack(info["final_obs"][ended])
        states.append(x)
        columns.append((r, terminated, truncated, true_next))
    r, terminated, truncated, true_next = (np.stack(column) for column in zip(*columns, strict=True))
    return Rows(np.stack(states), actions, r, terminated, truncated, true_next)


def record_by_hand() -> Rows:
    """Record single environments whose loop calls `reset`, as users without a vector environment do."""
    actions = np.random.default_rng(1).integers(2, size=(NUM_ROWS, NUM_ENVS))
    every = []
    for i in range(NUM_ENVS):
        env = Walk(i)
        x, _ = env.reset()
        states, rows = [x], []
        for a in actions[:, i]:
            x, r, terminated, truncated, _ = env.step(a)
            rows.append((r, terminated, truncated, x))
            if terminated or truncated:
                x, _ = env.reset()
            states.append(x)
        every.append((states, *zip(*rows, strict=True)))
    x, r, terminated, truncated, true_next = (np.array(column).T for column in zip(*every, strict=True))
    return Rows(x, actions, r, terminated, truncated, true_next)


RECORDS = {"next_step": record("next_step"), "same_step": record("same_step"), "disabled": record_by_hand()}


# -- the oracle: episodes by hand, Eq. 3 on each -------------------------------------------------------------


class Step(NamedTuple):
    row: int
    x: int
    a: int
    r: float
    following: int
    terminated: bool
    truncated: bool


def episodes(env: int, actions: np.ndarray, *, dummy: bool) -> Iterator[list[Step]]:
    """Yield the steps of each episode of one environment; with `dummy`, the action after an end is not used."""
    row, number = 0, env
    while row < len(actions):
        x, steps = first_state(number), []
        while row < len(actions):
            a = int(actions[row])
            following, r, terminated = after(x, a)
            steps.append(Step(row, x, a, r, following, terminated, len(steps) + 1 == TIME_LIMIT))
            x, row = following, row + 1
            if steps[-1].terminated or steps[-1].truncated:
                row += dummy
                break
        yield steps
        number += 1


def exact_targets(mode: str, trace: str, start: int, stop: int, *, without_truncated: bool) -> np.ndarray:
    """Return Q(x_t, a_t) + Σ_s γ^{s−t} (Π_{i=t+1..s} c_i) δ_s for the steps in rows start … stop − 1, else NaN."""
    out = np.full((NUM_ROWS, NUM_ENVS), np.nan)
    for env in range(NUM_ENVS):
        for episode in episodes(env, RECORDS[mode].a[:, env], dummy=mode == "next_step"):
            steps = [step for step in episode if start <= step.row < stop]
            if without_truncated:
                steps = [step for step in steps if step.terminated or not step.truncated]
            for t, step in enumerate(steps):
                total, weight = Q[step.x, step.a], 1.0
                for later in steps[t:]:
                    if later is not step:
                        weight *= GAMMA * COEFFICIENT[trace](PI[later.x, later.a], MU[later.x, later.a])
                    value = 0.0 if later.terminated else float(PI[later.following] @ Q[later.following])
                    total += weight * (later.r + GAMMA * value - Q[later.x, later.a])
                out[step.row, env] = total
    return out[start:stop]


def test_the_episodes_have_every_kind_of_end() -> None:
    """And some are cut by a border of the windows below, directly after an end as well."""
    kinds = set()
    for env in range(NUM_ENVS):
        for episode in episodes(env, RECORDS["same_step"].a[:, env], dummy=False):
            kinds.add((episode[-1].terminated, episode[-1].truncated))
    assert {(True, False), (False, True), (True, True)} <= kinds
    ended = RECORDS["next_step"].terminated | RECORDS["next_step"].truncated
    assert ended[[start - 1 for start, _ in BORDERS if start]].any()


BORDERS = [(0, NUM_ROWS), *((start, start + 11) for start in range(0, NUM_ROWS - 11, 4))]


@each("mode", list(RECORDS))
@each("trace", list(COEFFICIENT))
@each("keeps", [False, True])
def test_targets_equal_those_of_each_episode(mode: str, trace: str, keeps: bool) -> None:
    """For the whole record and for windows that start and stop anywhere. Sums of a few terms: 1e-12 is rounding."""
    num_compared = 0
    for start, stop in BORDERS:
        rows = RECORDS[mode].cut(start, stop)
        flags = ot.flags_from_gymnasium(
            terminated=rows.terminated,
            truncated=rows.truncated,
            gamma=GAMMA,
            autoreset=mode,
            ended_before=RECORDS[mode].ended_before(start),
            keep_truncated=keeps,
        )
        # The value of the true successor is needed only where it is in no row.
        successors = {}
        if keeps and mode != "next_step":
            successors = {"expected_q": (PI * Q).sum(-1)[rows.true_next]}
        found = ot.targets(
            q=Q[rows.x],
            pi=PI[rows.x],
            a=rows.a,
            r=rows.r,
            mu_a=MU[rows.x[:-1], rows.a],
            trace=ot.as_trace(trace, 0.9),
            **successors,
            **flags._asdict(),
        )
        lost = not keeps and mode != "next_step"
        exact = exact_targets(mode, trace, start, stop, without_truncated=lost)
        np.testing.assert_array_equal(flags.mask, ~np.isnan(exact))
        np.testing.assert_allclose(found, np.where(flags.mask, exact, 0), rtol=0, atol=1e-12)
        num_compared += flags.mask.sum()
    assert num_compared > 300


def test_without_the_last_observation_a_kept_truncated_step_is_refused() -> None:
    rows = RECORDS["same_step"]
    flags = ot.flags_from_gymnasium(
        terminated=rows.terminated,
        truncated=rows.truncated,
        gamma=GAMMA,
        autoreset=AutoresetMode.SAME_STEP,
        keep_truncated=True,
    )
    with pytest.raises(ValueError, match=r"`discount` must be 0 before a row with `reset`.*Give `expected_q`"):
        ot.targets(q=Q[rows.x], pi=PI[rows.x], a=rows.a, r=rows.r, trace=ot.OneStep(), **flags._asdict())


# -- libraries, shapes, dtypes -------------------------------------------------------------------------------


@each("mode", list(RECORDS))
def test_libraries_and_shapes_agree(mode: str) -> None:
    rows = RECORDS[mode].cut(5, 17)
    before = RECORDS[mode].ended_before(5)
    given = {"terminated": rows.terminated, "truncated": rows.truncated, "ended_before": before}
    expected = ot.flags_from_gymnasium(**given, gamma=np.float32(0.5), autoreset=mode)
    assert expected.discount.dtype == np.float32
    for kind, convert in ((torch.Tensor, torch.tensor), (jax.Array, jnp.asarray)):
        flags = ot.flags_from_gymnasium(
            **{name: convert(value) for name, value in given.items()}, gamma=0.5, autoreset=mode
        )
        for found, wanted in zip(flags, expected, strict=True):
            assert isinstance(found, kind)
            np.testing.assert_array_equal(np.asarray(found), wanted)
            assert np.asarray(found).dtype == wanted.dtype
    for i in range(NUM_ENVS):  # one environment, (n,), and lists
        column = {name: value[..., i].tolist() for name, value in given.items()}
        flags = ot.flags_from_gymnasium(**column, gamma=0.5, autoreset=mode)
        for found, wanted in zip(flags, expected, strict=True):
            np.testing.assert_array_equal(found, wanted[:, i])


def test_inside_jit_and_with_a_gamma_per_step() -> None:
    rows = RECORDS["next_step"]
    gamma = np.linspace(0, 1, NUM_ROWS * NUM_ENVS).reshape(NUM_ROWS, NUM_ENVS)
    given = {"terminated": rows.terminated, "truncated": rows.truncated, "ended_before": np.zeros(NUM_ENVS, bool)}
    expected = ot.flags_from_gymnasium(**given, gamma=gamma, autoreset="next_step")
    np.testing.assert_array_equal(expected.discount, np.where(rows.terminated, 0, gamma))
    found = jax.jit(lambda gamma, **flags: ot.flags_from_gymnasium(**flags, gamma=gamma, autoreset="next_step"))(
        gamma.astype(np.float32), **given
    )
    np.testing.assert_array_equal(found.mask, expected.mask)
    np.testing.assert_array_equal(found.reset, expected.reset)


def test_edges() -> None:
    none = np.zeros((0, 2), bool)
    flags = ot.flags_from_gymnasium(
        terminated=none, truncated=none, gamma=1, autoreset="next_step", ended_before=True
    )
    assert [values.shape for values in flags] == [(0, 2)] * 3
    assert flags.discount.dtype == np.float64  # γ = 1 as an integer too
    for name in ("next_step", "NextStep", AutoresetMode.NEXT_STEP):
        flags = ot.flags_from_gymnasium(
            terminated=[False, True], truncated=[False, False], gamma=0.5, autoreset=name, ended_before=True
        )
        assert flags.mask.tolist() == [False, True]


# -- refusals ------------------------------------------------------------------------------------------------

FALSE = np.zeros((4, 2), bool)
END = np.array([[False, False], [True, False], [True, False], [False, False]])
VALID = {"terminated": FALSE, "truncated": FALSE, "gamma": 0.9, "autoreset": "next_step", "ended_before": False}
REFUSALS = {
    "float flags": ({"terminated": FALSE * 1.0}, TypeError, "`terminated` must be bool; got float64. Convert it"),
    "a single flag": ({"terminated": False}, ValueError, r"`terminated` must have a time axis, shape \(n, …\)"),
    "shapes": ({"truncated": FALSE[:3]}, ValueError, r"`truncated` must have the shape .*\(4, 2\); got \(3, 2\)"),
    "gamma": ({"gamma": 1.5}, ValueError, r"`gamma` must be in \[0, 1\]; got 1.5"),
    "gamma of nan": ({"gamma": float("nan")}, ValueError, r"`gamma` must be in \[0, 1\]; got nan"),
    "gamma's shape": ({"gamma": [0.9, 0.8]}, ValueError, r"`gamma` must be one number, .*\(4, 2\); got \(2,\)"),
    "mode": (
        {"autoreset": "NEXT"},
        ValueError,
        "`autoreset` must be one of 'next_step', 'same_step', 'disabled'; got",
    ),
    "no mode": ({"autoreset": None}, ValueError, "use 'disabled' if your loop calls `reset` itself"),
    "no start": ({"ended_before": None}, TypeError, "`ended_before` must be given for next-step autoreset"),
    "start's shape": (
        {"ended_before": [True, False, True]},
        ValueError,
        r"`ended_before` must be one bool or have the shape \(2,\), one per environment; got \(3,\)",
    ),
    "two ends in a row": (
        {"terminated": END},
        ValueError,
        r"must be False in the row after an end, .* at t = 2, \[0\]. If the rows have no dummy rows",
    ),
}


@each(("change", "kind", "text"), REFUSALS)
def test_refusals(change: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        ot.flags_from_gymnasium(**VALID | change)
