"""The input checks of finite MDPs: wrong, unusual and hostile models, policies and logged transitions.

An error is checked for its type and for what its text names: the argument in backticks, the value and the place;
never for the whole sentence. `docs/reliability.md` lists what each kind of input gets.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from builders.windows import Arrays, changed
from loops import each
from refusals import refusal, says

from offtrace.mdp import (
    FiniteMDP,
    bifurcated_grid,
    chain,
    cliff_walking,
    episodic,
    from_data,
    from_dictionary,
    from_gymnasium,
    garnet,
    grid_world,
    icu_sepsis,
)
from offtrace.mdp.finite import checked_policy

NAN, INF = np.nan, np.inf
X, A = 4, 3
AT = "(x, a) = (2, 1)"
"""Where the faults are put."""
PLACE = 2, 1


# -- helpers --------------------------------------------------------------------------------------------------


def model() -> Arrays:
    """Valid arguments of a FiniteMDP, with the terminating share per transition."""
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(X), (X, A))
    return {
        "p": p,
        "r": rng.normal(size=(X, A, X)),
        "gamma": 0.9,
        "terminates": rng.random((X, A, X)),
        "start": np.full(X, 1 / X),
    }


def sparse(arrays: Arrays) -> Arrays:
    named = ("p", "r", "terminates")
    return arrays | {name: scipy.sparse.csr_array(np.reshape(arrays[name], (X * A, X))) for name in named}


def lists() -> Arrays:
    """The arguments of `from_transitions`: 2 states, 1 action."""
    return {
        "probability": np.array([0.5, 0.5, 1.0]),
        "successor": np.array([0, 1, 1]),
        "first": np.array([0, 2, 3]),
        "num_actions": 1,
        "r": np.array([0.0, 1.0, 2.0]),
        "gamma": 0.9,
    }


def data() -> Arrays:
    return {
        "states": np.array([0, 1, 1, 2]),
        "actions": np.array([0, 1, 0, 1]),
        "rewards": np.array([0.0, 1.0, 0.5, 2.0]),
        "next_states": np.array([1, 2, 1, 0]),
        "terminated": np.array([False, False, False, True]),
        "gamma": 0.9,
    }


BOTH_FORMS = pytest.mark.parametrize("form", [dict, sparse], ids=["dense", "sparse"])


def test_the_arguments_that_these_tests_change_are_valid() -> None:
    for arrays in (model(), sparse(model())):
        assert FiniteMDP(**arrays).shape == (X, A)
    assert FiniteMDP.from_transitions(**lists()).shape == (2, 1)
    assert from_data(**data()).mdp.shape == (3, 2)


# -- rows of P are distributions ------------------------------------------------------------------------------


@BOTH_FORMS
@each("total", [0.9, 1.1, 0.999, 2.0])
def test_rows_of_p_must_sum_to_1(form: Callable, total: float) -> None:
    arrays = model()
    arrays["p"][PLACE] *= total
    says(refusal(FiniteMDP, **form(arrays)), "`p`", "sum to 1", f"{total:g}", AT, "`terminates`")


@BOTH_FORMS
def test_a_row_of_p_must_not_be_zero(form: Callable) -> None:
    says(refusal(FiniteMDP, **form(changed(model(), "p", PLACE, 0.0))), "`p`", "sum to 1", "got 0", AT)


@BOTH_FORMS
@each("value", [NAN, -0.1, -1e-3, -INF])
def test_p_must_hold_probabilities(form: Callable, value: float) -> None:
    says(refusal(FiniteMDP, **form(changed(model(), "p", (*PLACE, 3), value))), "`p`", f"{value:.6g}", AT)


@BOTH_FORMS
def test_p_must_be_finite(form: Callable) -> None:
    says(refusal(FiniteMDP, **form(changed(model(), "p", (*PLACE, 3), INF))), "`p`", "inf", AT)


@BOTH_FORMS
def test_p_may_be_negative_by_rounding_and_is_not_changed(form: Callable) -> None:
    arrays = changed(model(), "p", PLACE, [-1e-12, 0.5, 0.5, 0.0])
    assert FiniteMDP(**form(arrays)).dense()[(*PLACE, 0)] == -1e-12


@each(("dtype", "off", "passes"), [("float32", 1e-5, True), ("float64", 1e-5, False)])
def test_sums_of_p_may_be_off_by_the_rounding_of_their_dtype(dtype: str, off: float, passes: bool) -> None:
    arrays = model()
    arrays["p"][PLACE] *= 1 + off
    arrays["p"] = arrays["p"].astype(dtype)
    if passes:
        FiniteMDP(**arrays)
    else:
        says(refusal(FiniteMDP, **arrays), "`p`", "sum to 1", AT)


@each("shape", [(), (X,), (X, X), (A, X, X), (X, A, X + 1), (X, A, X, 1), (0, A, 0), (X, 0, X)])
def test_p_must_have_its_shape(shape: tuple[int, ...]) -> None:
    says(refusal(FiniteMDP, **model() | {"p": np.zeros(shape)}), "`p`", "(X, A, X)", str(shape))


@each("shape", [(X * A + 1, X), (X, X * A), (X - 1, X)])
def test_a_sparse_p_must_have_its_shape(shape: tuple[int, int]) -> None:
    arrays = sparse(model()) | {"p": scipy.sparse.csr_array(shape)}
    says(refusal(FiniteMDP, **arrays), "`p`", "(X·A, X)", str(shape))


@each(
    ("entries", "parts"),
    [
        ([(0.5, 0, 0.0, False)], ("`p`", "sum to 1", "0.5")),
        ([], ("`p`", "sum to 1", "got 0")),
        ([(NAN, 0, 0.0, False)], ("`p`", "nan")),
        ([(-0.5, 0, 0.0, False), (1.5, 0, 0.0, False)], ("`p`", "-0.5")),
        ([(1.0, 2, 0.0, False)], ("`p`", "[0, 2)", "got 2")),
        ([(1.0, -1, 0.0, False)], ("`p`", "[0, 2)", "got -1")),
        ([(1.0, 0, NAN, False)], ("`r`", "nan")),
        ([(1.0, 0, 0.0)], ("`p`", "terminated")),
        ([(1.0, 0.5, 0.0, False)], ("`p`", "next state", "0.5")),
        ([(1.0, 0, "much", False)], ("`p`", "reward", "much")),
        ([(1.0, 0, 0.0, "no")], ("`p`", "True or False", "no")),
        ([(1.0, 0, 0.0, 0.5)], ("`p`", "True or False", "0.5")),
        ([1.0], ("`p`", "1.0")),
    ],
)
def test_dictionaries_of_transitions_are_checked(entries: list, parts: tuple[str, ...]) -> None:
    fine = [(1.0, 0, 0.0, False)]
    says(refusal(from_dictionary, {0: {0: fine, 1: fine}, 1: {0: fine, 1: entries}}, gamma=0.9), *parts, "(1, 1)")


@each(
    ("table", "parts"),
    [
        ({}, ("states", "0 is missing")),
        ({1: {0: [(1.0, 1, 0.0, False)]}}, ("states", "0 is missing")),
        ({0: {1: [(1.0, 0, 0.0, False)]}}, ("`p[0]`", "actions", "0 is missing")),
        ({0: {0: [(1.0, 0, 0.0, False)]}, 1: {}}, ("same 1 actions", "got 0 at x = 1")),
    ],
)
def test_dictionaries_of_transitions_must_have_no_gaps(table: dict, parts: tuple[str, ...]) -> None:
    says(refusal(from_dictionary, table, gamma=0.9), *parts)


@each(
    ("name", "value", "parts"),
    [
        ("probability", [0.5, 0.4, 1.0], ("`p`", "sum to 1", "0.9", "(0, 0)")),
        ("probability", [0.5, 0.5], ("2 probabilities", "3 successors")),
        ("successor", [0, 2, 1], ("`successor`", "[0, 2)", "got 2")),
        ("successor", [0, -1, 1], ("`successor`", "[0, 2)", "got -1")),
        ("first", [0, 3, 3], ("`p`", "sum to 1", "(1, 0)")),
        ("first", [1, 2, 3], ("`first`", "1 … 3")),
        ("first", [0, 2, 4], ("`first`", "0 … 4")),
        ("first", [0, 4, 3], ("`first`",)),
        ("first", [0], ("`first`", "(1,)")),
        ("first", [[0, 2, 3]], ("`first`", "(1, 3)")),
        ("num_actions", 3, ("`first`", "3 actions")),
        ("num_actions", 0, ("`num_actions`", "at least 1", "got 0")),
        ("r", [0.0, 1.0], ("`r`", "(2, 1)", "(2,)")),
        ("r", [0.0, NAN, 0.0], ("`r`", "nan", "(0, 0)")),
        ("ends", [0.0, 1.0], ("`ends`", "3", "(2,)")),
        ("ends", [0.0, 0.0, 1.5], ("1.5", "(1, 0)")),
    ],
)
def test_lists_of_transitions_are_checked(name: str, value: Any, parts: tuple[str, ...]) -> None:
    says(refusal(FiniteMDP.from_transitions, **lists() | {name: value}), *parts)


def test_successors_must_be_whole_numbers() -> None:
    arrays = lists() | {"successor": np.array([0.0, 1.0, 1.0])}
    says(refusal(FiniteMDP.from_transitions, error=TypeError, **arrays), "`successor`", "float64")


# -- rewards are finite ---------------------------------------------------------------------------------------


@BOTH_FORMS
@each("value", [NAN, INF, -INF])
def test_rewards_by_transition_must_be_finite(form: Callable, value: float) -> None:
    says(refusal(FiniteMDP, **form(changed(model(), "r", (*PLACE, 3), value))), "`r`", f"{value}", AT)


@each("value", [NAN, INF, -INF])
def test_rewards_by_pair_must_be_finite(value: float) -> None:
    arrays = changed(model() | {"r": np.zeros((X, A))}, "r", PLACE, value)
    says(refusal(FiniteMDP, **arrays), "`r`", f"{value}", AT)


def test_rewards_of_impossible_transitions_are_not_read() -> None:
    arrays = changed(model(), "p", PLACE, [0.0, 0.5, 0.5, 0.0])
    arrays["r"][(*PLACE, 0)], arrays["terminates"][(*PLACE, 3)] = NAN, NAN
    assert np.isfinite(FiniteMDP(**arrays).r).all()


# -- γ is in [0, 1] -------------------------------------------------------------------------------------------

MAKERS: dict[str, Callable[[Any], FiniteMDP]] = {
    "FiniteMDP": lambda gamma: FiniteMDP(**model() | {"gamma": gamma}),
    "from_transitions": lambda gamma: FiniteMDP.from_transitions(**lists() | {"gamma": gamma}),
    "with_gamma": lambda gamma: FiniteMDP(**model()).with_gamma(gamma),
    "from_dictionary": lambda gamma: from_dictionary({0: {0: [(1.0, 0, 0.0, False)]}}, gamma=gamma),
    "from_gymnasium": lambda gamma: from_gymnasium("FrozenLake-v1", gamma=gamma),
    "from_data": lambda gamma: from_data(**data() | {"gamma": gamma}).mdp,
    "garnet": lambda gamma: garnet(3, 2, 2, gamma=gamma, seed=0),
    "episodic": lambda gamma: episodic(3, 2, 2, gamma=gamma, seed=0),
    "chain": lambda gamma: chain(gamma=gamma),
    "cliff_walking": lambda gamma: cliff_walking(gamma=gamma),
}
EVERY_MAKER = each("make", MAKERS)


@EVERY_MAKER
@each("gamma", [-0.1, 1.0001, NAN, INF])
def test_gamma_must_be_in_the_unit_interval(make: Callable, gamma: float) -> None:
    says(refusal(make, gamma), "`gamma`", "[0, 1]", f"{gamma:g}")


@EVERY_MAKER
@each("gamma", [None, "high", [0.9], 1j])
def test_gamma_must_be_a_number(make: Callable, gamma: Any) -> None:
    says(refusal(make, gamma, error=TypeError), "`gamma`", repr(gamma))


@EVERY_MAKER
@each("gamma", [0, 1, np.float32(0.5)])
def test_gamma_may_be_0_or_1(make: Callable, gamma: Any) -> None:
    assert make(gamma).gamma == gamma


# -- policies are distributions -------------------------------------------------------------------------------


def policy() -> np.ndarray:
    return np.random.default_rng(0).dirichlet(np.ones(A), X)


@each("name", ["pi", "mu"])
@each("total", [0.9, 1.1])
def test_rows_of_a_policy_must_sum_to_1(name: str, total: float) -> None:
    pi = policy() / 1.2  # so that no entry is above 1
    pi[0], pi[1], pi[3] = 1 / A, 1 / A, 1 / A
    pi[2] *= total / pi[2].sum()
    says(refusal(checked_policy, pi, (X, A), name), f"`{name}`", "sum to 1", f"{total:g}", "x = 2")


@each("value", [-1e-3, -1.0, NAN, INF, -INF, 1.1, -2.3])
def test_a_policy_must_hold_probabilities(value: float) -> None:
    pi = policy()
    pi[PLACE] = value
    says(refusal(checked_policy, pi, (X, A), "pi"), "`pi`", "[0, 1]", f"{value:.6g}", AT)


def test_a_policy_may_be_off_by_rounding_and_is_not_changed() -> None:
    pi = np.tile([0.5, 0.5, 0.0], (X, 1))
    pi[PLACE], pi[2, 0] = 1 + 1e-12, -1e-12
    pi[2, 2] = 0
    before = pi.copy()
    np.testing.assert_array_equal(checked_policy(pi, (X, A), "pi"), before)
    np.testing.assert_array_equal(pi, before)


# -- shapes must match; nothing broadcasts --------------------------------------------------------------------


@each("shape", [(), (A,), (1, A), (X, 1), (A, X), (X, A, 1), (1, X, A)])
def test_policies_must_have_the_shape_of_the_model(shape: tuple[int, ...]) -> None:
    says(refusal(checked_policy, np.ones(shape), (X, A), "mu"), "`mu`", str((X, A)), str(shape))


@each(
    ("name", "shape"),
    [
        *(("r", shape) for shape in [(), (X,), (X, 1), (1, A), (A, X), (X, A, 1), (1, A, X), (X * A, X)]),
        *(("terminates", shape) for shape in [(), (1,), (A,), (X, 1), (1, A), (X, A, 1), (X * A, X)]),
        *(("start", shape) for shape in [(), (1,), (X + 1,), (X, 1), (1, X)]),
    ],
)
def test_nothing_broadcasts(name: str, shape: tuple[int, ...]) -> None:
    says(refusal(FiniteMDP, **model() | {name: np.zeros(shape)}), f"`{name}`", str(X), str(shape))


@each("name", ["r", "terminates"])
def test_sparse_arguments_must_have_the_shape_of_p(name: str) -> None:
    arrays = sparse(model()) | {name: scipy.sparse.csr_array((X, X))}
    says(refusal(FiniteMDP, **arrays), f"`{name}`", str((X * A, X)), str((X, X)))


@each("grid", [(1, 3), (2, 3), (0, 4)])
def test_a_grid_must_have_the_cells_of_the_model(grid: tuple[int, int]) -> None:
    says(refusal(FiniteMDP, **model(), grid=grid), "`grid`", f"{X} cells", str(grid))


@each("name", ["states", "actions", "rewards", "next_states", "terminated"])
@each("change", [lambda v: v[:1], lambda v: v[:-1], lambda v: v[:, None], lambda v: v[0]])
def test_columns_of_data_must_have_one_length(name: str, change: Callable) -> None:
    arrays = data()
    arrays[name] = np.asarray(change(arrays[name]))
    says(refusal(from_data, **arrays), f"`{name}` {arrays[name].shape}", "(4,)")


# -- terminates and start -------------------------------------------------------------------------------------


@BOTH_FORMS
@each("value", [NAN, -0.1, 1.1, INF])
def test_terminates_is_a_share(form: Callable, value: float) -> None:
    arrays = form(changed(model(), "terminates", (*PLACE, 3), value))
    says(refusal(FiniteMDP, **arrays), "`terminates`", "[0, 1]", f"{value:.6g}", AT)


def test_terminates_by_pair_says_the_pair() -> None:
    arrays = changed(model() | {"terminates": np.zeros((X, A))}, "terminates", PLACE, 2.0)
    says(refusal(FiniteMDP, **arrays), "`terminates`", "2", AT)


@each("start", [[0.25, 0.25, 0.25, 0.15], [0.5, 0.5, 0.5, -0.5], [NAN, 0.0, 0.0, 1.0], [1, 1, 1, 1]])
def test_start_is_a_distribution(start: list[float]) -> None:
    says(refusal(FiniteMDP, **model() | {"start": start}), "`start`", "distribution")


# -- states and actions are whole numbers of their range ------------------------------------------------------


@each("name", ["states", "actions", "next_states"])
def test_states_and_actions_must_not_be_negative(name: str) -> None:
    says(refusal(from_data, **changed(data(), name, 2, -1)), f"`{name}`", "-1", "t = 2")


@each("kind", [float, bool, str, object, complex])
@each("name", ["states", "actions", "next_states"])
def test_states_and_actions_must_be_whole_numbers(name: str, kind: type) -> None:
    arrays = data()
    arrays[name] = arrays[name].astype(kind)
    says(refusal(from_data, error=TypeError, **arrays), f"`{name}`", "whole numbers", str(arrays[name].dtype))


@each(("name", "size"), [("states", "num_states"), ("next_states", "num_states"), ("actions", "num_actions")])
def test_states_and_actions_must_be_below_the_size_that_is_given(name: str, size: str) -> None:
    says(refusal(from_data, **changed(data(), name, 2, 7), **{size: 3}), f"`{name}`", f"`{size}` = 3", "7", "t = 2")


@each("value", [0, -1, 2.0, True, "4"])
@each("size", ["num_states", "num_actions"])
def test_sizes_must_be_positive_whole_numbers(size: str, value: Any) -> None:
    error = ValueError if value in (0, -1) else TypeError
    says(refusal(from_data, error=error, **data(), **{size: value}), f"`{size}`", repr(value))


@each("value", [NAN, INF, -INF])
def test_rewards_of_data_must_be_finite(value: float) -> None:
    says(refusal(from_data, **changed(data(), "rewards", 3, value)), "`rewards`", "finite", "t = 3")


@each("kind", [int, float, str])
def test_data_terminated_is_boolean(kind: type) -> None:
    arrays = data()
    arrays["terminated"] = arrays["terminated"].astype(kind)
    says(refusal(from_data, error=TypeError, **arrays), "`terminated`", "boolean", "== 1")


def test_data_must_not_be_empty() -> None:
    arrays = {name: value[:0] if isinstance(value, np.ndarray) else value for name, value in data().items()}
    says(refusal(from_data, **arrays), "`states`", "must not be empty")


# -- unusual arrays: the right model or an error; inputs are never modified -----------------------------------


@each("value", ["p", ["a", "b"], [[[1.0], [1.0, 0.0]]], [[None]], {"x": 1}, [1j], object()])
@each("name", ["p", "r", "terminates", "start"])
def test_arguments_must_be_arrays_of_numbers(name: str, value: Any) -> None:
    says(refusal(FiniteMDP, error=TypeError, **model() | {name: value}), f"`{name}`", "numbers")


@each("value", ["p", None, [[1.0], [0.5, 0.5]], [[object()]]])
def test_policies_must_be_arrays_of_numbers(value: Any) -> None:
    says(refusal(checked_policy, value, (X, A), "mu", error=TypeError), "`mu`", "numbers")


@each("name", ["states", "actions", "rewards", "next_states", "terminated"])
def test_data_must_not_be_ragged(name: str) -> None:
    says(refusal(from_data, error=TypeError, **data() | {name: [[1], [1, 2]]}), f"`{name}`", "array")


def _strided(array: np.ndarray) -> np.ndarray:
    return np.repeat(array, 2, axis=0)[::2]


def _read_only(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flags.writeable = False
    return array


ODD = {
    "list": lambda array: array.tolist(),
    "big-endian": lambda array: array.astype(array.dtype.newbyteorder(">")),
    "read-only": _read_only,
    "strided": _strided,
    "Fortran": np.asfortranarray,
    "longdouble": lambda array: array.astype(np.longdouble) if array.dtype.kind == "f" else array,
}


@each("odd", ODD)
def test_unusual_arrays_give_the_same_model(odd: Callable) -> None:
    plain, expected = model(), FiniteMDP(**model())
    given = {name: odd(value) if isinstance(value, np.ndarray) else value for name, value in plain.items()}
    mdp = FiniteMDP(**given)
    for name in ("probability", "successor", "first", "ends", "reward", "start"):
        np.testing.assert_array_equal(getattr(mdp, name), getattr(expected, name))
        assert getattr(mdp, name).dtype.isnative
    np.testing.assert_array_equal(checked_policy(odd(policy()), (X, A), "pi"), policy())
    counted = from_data(**{name: odd(v) if isinstance(v, np.ndarray) else v for name, v in data().items()})
    np.testing.assert_array_equal(counted.mdp.dense(), from_data(**data()).mdp.dense())
    for name, value in model().items():
        np.testing.assert_array_equal(plain[name], value)


def test_arguments_may_be_whole_numbers_and_booleans() -> None:
    p = np.zeros((2, 1, 2), np.uint8)
    p[0, 0, 1] = p[1, 0, 1] = 1
    r = np.array([[200], [100]], np.uint8)
    mdp = FiniteMDP(p=p, r=r, terminates=np.array([False, True]), gamma=1)
    assert (mdp.probability.dtype, mdp.r.tolist()) == (np.float64, [[200.0], [100.0]])


@BOTH_FORMS
def test_inputs_are_never_modified(form: Callable) -> None:
    arrays = form(model())
    before = {name: value.copy() if hasattr(value, "copy") else value for name, value in arrays.items()}
    mdp = FiniteMDP(**arrays)
    _ = mdp.continuing, mdp.rows, mdp.dense(), mdp.with_gamma(0.1)
    for name, value in before.items():
        left, right = (np.asarray(v.todense() if hasattr(v, "todense") else v) for v in (arrays[name], value))
        np.testing.assert_array_equal(left, right)


# -- arguments of the textbook models -------------------------------------------------------------------------


@each(
    ("call", "parts"),
    [
        (lambda: garnet(0, 2, 1, gamma=0.9, seed=0), ("`num_states`", "at least 1", "0")),
        (lambda: garnet(3, 0, 1, gamma=0.9, seed=0), ("`num_actions`", "at least 1", "0")),
        (lambda: garnet(3, 2, 4, gamma=0.9, seed=0), ("`num_successors`", "4", "3")),
        (lambda: garnet(9, 2, 4, gamma=0.9, seed=0, local=1), ("`num_successors`", "4", "2·local + 1 = 3")),
        (lambda: garnet(4, 2, 1, gamma=0.9, seed=0, local=2), ("`local`", "2", "4 states")),
        (lambda: garnet(4, 2, 1, gamma=0.9, seed=0, reward_sparsity=1.5), ("`reward_sparsity`", "1.5")),
        (lambda: episodic(3, 2, 4, gamma=0.9, seed=0), ("`num_steps`", "4", "3 states")),
        (lambda: episodic(3, 2, 2, gamma=0.9, seed=0, early=NAN), ("`early`", "nan")),
        (lambda: chain(3, slip=-0.1), ("`slip`", "-0.1")),
        (lambda: chain(3, ends="neither"), ("`ends`", "neither")),
        (lambda: chain(3, right_reward=NAN), ("`r`", "nan")),
        (lambda: grid_world(["S.", "G"]), ("`layout`", "[2, 1]")),
        (lambda: grid_world([]), ("`layout`", "[]")),
        (lambda: grid_world(["S?", ".G"]), ("`layout`", "'?'", "(0, 1)")),
        (lambda: grid_world(["##", "#G"]), ("`layout`", "start")),
        (lambda: grid_world(["CS", "SG"]), ("`layout`", "one S", "2")),
        (lambda: grid_world(["C.", ".G"]), ("`layout`", "one S", "0")),
        (lambda: grid_world((3, 3), goal=(3, 0)), ("`goal`", "3 × 3", "(3, 0)")),
        (lambda: grid_world((3, 3), walls=[(1,)]), ("`walls`", "(1,)")),
        (lambda: grid_world((3, 3), start=(1, 1), goal=(1, 1)), ("`start`", "(1, 1)")),
        (lambda: grid_world(slip=1.1), ("`slip`", "1.1")),
        (lambda: bifurcated_grid(goal_row=4), ("`goal_row`", "4", "height of 5")),
        (lambda: bifurcated_grid(width=2), ("`width`", "at least 3", "2")),
    ],
)
def test_arguments_of_the_textbook(call: Callable, parts: tuple[str, ...]) -> None:
    says(refusal(call), *parts)


@each(
    ("call", "parts"),
    [
        (lambda: garnet(3.0, 2, 1, gamma=0.9, seed=0), ("`num_states`", "3.0")),
        (lambda: garnet(3, True, 1, gamma=0.9, seed=0), ("`num_actions`", "True")),
        (lambda: garnet(3, 2, 1, gamma=0.9, seed=None), ("`seed`", "Generator", "NoneType")),
        (lambda: garnet(3, 2, 1, gamma=0.9, seed=np.random.RandomState(0)), ("`seed`", "RandomState")),
        (lambda: chain(3, slip="often"), ("`slip`", "often")),
        (lambda: grid_world((3, 3, 3)), ("`layout`", "(3, 3, 3)")),
        (lambda: from_gymnasium(3, gamma=0.9), ("`env`", "int")),
        (lambda: from_gymnasium(_without_model(), gamma=0.9, size=3), ("size",)),
    ],
)
def test_arguments_of_the_wrong_type(call: Callable, parts: tuple[str, ...]) -> None:
    says(refusal(call, error=TypeError), *parts)


# -- Gymnasium: no model, unknown id, missing package ---------------------------------------------------------


def _without_model() -> Any:
    import gymnasium

    return gymnasium.make("CartPole-v1")


@each("name", ["CartPole-v1", "Blackjack-v1"])
def test_an_environment_without_a_model(name: str) -> None:
    says(refusal(from_gymnasium, name, gamma=0.9), "`env.unwrapped.P`", name, "from_data")


@each("name", ["NoSuchThing-v1", "not an id", "../../etc/passwd", ""])
def test_no_such_environment(name: str) -> None:
    says(refusal(from_gymnasium, name, gamma=0.9), "`env`", repr(name))


@each(
    ("package", "module", "call"),
    [
        ("'offtrace[agent]'", "gymnasium", lambda: from_gymnasium("FrozenLake-v1", gamma=0.9)),
        ("icu-sepsis", "icu_sepsis", icu_sepsis),
    ],
)
def test_a_missing_package(monkeypatch: pytest.MonkeyPatch, package: str, module: str, call: Callable) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    says(refusal(call, error=ImportError), f"pip install {package}")


def test_icu_sepsis_needs_a_rule_for_inadmissible_actions() -> None:
    says(refusal(icu_sepsis, inadmissible="raise_exception"), "`inadmissible`", "mean", "terminate")


# -- a number that would need too much memory; an environment id that imports a module ------------------------


@each("name", ["states", "next_states", "actions"])
def test_a_stray_number_is_refused_before_memory_is_taken(name: str) -> None:
    says(refusal(from_data, **changed(data(), name, 1, 10**15)), "pairs", "1,000,000,000,000,001", "np.unique")


def test_an_environment_id_imports_the_module_that_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "registering_plugin.py").write_text(
        "from gymnasium.envs.registration import register\n"
        "from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv as Lake\n"
        "register('Plugin-v0', entry_point='gymnasium.envs.toy_text.frozen_lake:FrozenLakeEnv')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    says(refusal(from_gymnasium, "no_such_plugin:Plugin-v0", gamma=0.9), "no_such_plugin", "the current folder")
    assert "registering_plugin" not in sys.modules
    assert from_gymnasium("registering_plugin:Plugin-v0", gamma=0.9).shape == (16, 4)
    assert from_gymnasium("registering_plugin:Lake", gamma=0.9, map_name="8x8").shape == (64, 4)
    assert "registering_plugin" in sys.modules
    del sys.modules["registering_plugin"]


# -- lists, grids and shares that earlier versions accepted ---------------------------------------------------


@each("name", ["probability", "successor"])
def test_lists_of_transitions_must_have_one_axis(name: str) -> None:
    arrays = lists() | {"r": [[0.0], [0.0]]}
    says(refusal(FiniteMDP.from_transitions, **arrays | {name: arrays[name][:, None]}), f"`{name}`", "(3, 1)")


@each(
    ("name", "value"),
    [
        ("first", [0.0, 2.0, 3.0]),
        ("probability", ["a", "b", "c"]),
        ("probability", ["1", "0", "1"]),
        ("num_actions", 1.0),
    ],
)
def test_lists_of_transitions_must_have_their_types(name: str, value: Any) -> None:
    says(refusal(FiniteMDP.from_transitions, error=TypeError, **lists() | {name: value}), f"`{name}`")


@each("grid", [(-2, -2), (2, 1, 2), (2.0, 2.0)])
def test_a_grid_must_be_two_positive_whole_numbers(grid: Any) -> None:
    says(refusal(FiniteMDP, **model(), grid=grid), "`grid`", str(grid))


def test_start_may_be_off_by_rounding() -> None:
    FiniteMDP(**model() | {"start": [1 + 1e-12, -1e-12, 0.0, 0.0]})


def test_a_negative_start_says_where() -> None:
    says(refusal(FiniteMDP, **model() | {"start": [0.5, 0.75, -0.25, 0.0]}), "`start`", "-0.25", "x = 2")


def test_terminates_may_be_off_by_rounding() -> None:
    """A share that was computed, one ulp above 1."""
    FiniteMDP(**model() | {"terminates": np.full(X, np.nextafter(1.0, 2.0))})


@pytest.mark.parametrize("p", [scipy.sparse.coo_array(np.ones(1)), scipy.sparse.csr_array(np.array([[1 + 1j]]))])
def test_a_sparse_p_must_be_a_real_matrix(p: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="`p`"):
        FiniteMDP(p=p, r=[[0.0]], gamma=0.9)
