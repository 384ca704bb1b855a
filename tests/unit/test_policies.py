"""Policies from values: by hand, in three array libraries, and what they refuse. Their lemmas are in `theorem/`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from precision import double_precision

from offtrace import policies

MAKERS = {
    "greedy": policies.greedy,
    "shared": lambda q: policies.greedy(q, ties="share"),
    "uniform": policies.uniform,
    "epsilon_greedy": lambda q: policies.epsilon_greedy(q, 0.3),
    "softmax": lambda q: policies.softmax(q, 2.0),
}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_three_libraries_give_one_policy(name: str, dtype: type) -> None:
    q = np.random.default_rng(0).integers(-2, 3, (5, 4, 3)).astype(dtype)  # with ties
    q[0, 0, 1] = -np.inf
    expected = MAKERS[name](q)
    assert expected.dtype == dtype
    assert expected.sum(-1) == pytest.approx(np.ones((5, 4)), abs=1e-6)
    assert expected[0, 0, 1] == 0
    found = MAKERS[name](torch.as_tensor(q))
    assert found.numpy() == pytest.approx(expected, abs=1e-6)
    with double_precision():
        assert np.asarray(jax.jit(MAKERS[name])(jnp.asarray(q))) == pytest.approx(expected, abs=1e-6)


@given(arrays(np.float64, (4, 3), elements=st.floats(-1e3, 1e3)), st.floats(0, 1))
def test_epsilon_greedy_is_what_it_says(q: np.ndarray, epsilon: float) -> None:
    pi = policies.epsilon_greedy(q, epsilon)
    best = q.argmax(-1)
    expected = np.full((4, 3), epsilon / 3)
    expected[np.arange(4), best] += 1 - epsilon
    assert pi == pytest.approx(expected, abs=1e-12)


@given(arrays(np.float64, 3, elements=st.floats(-5, 5)), st.floats(0, 5))
def test_softmax_by_the_formula(q: np.ndarray, beta: float) -> None:
    weight = np.exp(beta * q)
    assert policies.softmax(q, beta) == pytest.approx(weight / weight.sum(), abs=1e-12)


def test_softmax_does_not_overflow() -> None:
    assert policies.softmax(np.array([1e308, 0.0, -1e308]), 1e3).tolist() == [1.0, 0.0, 0.0]


def test_epsilon_by_state() -> None:
    q = np.array([[1.0, 0.0], [1.0, 0.0]])
    assert policies.epsilon_greedy(q, np.array([0.0, 1.0])).tolist() == [[1.0, 0.0], [0.5, 0.5]]


def test_illegal_actions_share_nothing() -> None:
    q = np.array([1.0, -np.inf, 3.0])
    assert policies.epsilon_greedy(q, 0.2) == pytest.approx([0.1, 0.0, 0.9])
    assert policies.softmax(q, 0.0) == pytest.approx([0.5, 0.0, 0.5])


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: policies.greedy(np.array([[0.0, np.nan]])), r"`q` must be numbers below \+inf.*nan at x = 0"),
        (lambda: policies.greedy(np.array([[0.0, np.inf]])), r"`q` must be numbers below \+inf"),
        (lambda: policies.greedy(np.full((2, 2), -np.inf)), "`q` must have a legal action in every state"),
        (
            lambda: policies.greedy(np.zeros((2, 0))),
            r"`q` must have the actions on its last axis; got shape \(2, 0\)",
        ),
        (lambda: policies.greedy(np.zeros(2), ties="last"), "`ties` must be one of first, share; got 'last'"),
        (lambda: policies.epsilon_greedy(np.zeros(2), 1.1), r"`epsilon` must be in \[0, 1\]; got 1.1"),
        (lambda: policies.epsilon_greedy(np.zeros(2), np.nan), r"`epsilon` must be in \[0, 1\]; got nan"),
        (lambda: policies.epsilon_greedy(np.zeros((3, 2)), np.zeros(2)), r"`epsilon` must be a number or have shape"),
        (lambda: policies.softmax(np.zeros(2), -1.0), "`beta` must be a number of at least 0; got -1"),
        (lambda: policies.mixture(np.array([1.0, 0.0]), np.array([1.0, 0.0]), 0.1), "`mu` must have mass on actions"),
        (
            lambda: policies.increasingly_greedy_gap([], []),
            "`policies` and `qs` must have the same length, at least 2",
        ),
    ],
)
def test_refusals(call, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        call()
