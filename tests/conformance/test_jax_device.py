"""JAX on a real GPU: the same numbers as in float64 on the CPU. See `make test-gpu`."""

from typing import Any

import jax
import numpy as np
import pytest
from builders import windows
from precision import double_precision

import offtrace as ot

if jax.default_backend() != "gpu":
    pytest.skip("JAX sees no GPU", allow_module_level=True)

SHAPES = [
    (16, 4, 18),
    (16, 1024, 18),
    (128, 4096, 18),
    (1024, 1024, 18),
    (65536, 16, 18),
    (128, 16384, 4),
    (32, 65536, 6),
    (433, 1915, 7),
    (64, 4096, 32),
    (64, 4096, 33),
    (300007, 1, 3),
]
Arrays = dict[str, Any]


def window(shape: tuple[int, int, int]) -> Arrays:
    """Return a float32 window with ends, and NaN in masked rows."""
    n, batch, num_actions = shape
    arrays = windows.window(n, (batch,), num_actions, dtype="float32", terminated=0.01)
    return windows.with_invalid_masked_rows(windows.with_ends(arrays))


def in_double(w: Arrays) -> Arrays:
    return {name: value.astype("float64") if value.dtype.kind == "f" else value for name, value in w.items()}


def assert_close(got: Any, expected: Any) -> None:
    expected = np.asarray(expected)
    error = np.abs(np.asarray(got, "float64") - expected).max() / np.abs(expected).max()
    assert error <= 1e-5, f"relative error {error:.1e}"


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_targets_and_gradients(shape: tuple[int, int, int]) -> None:
    w = window(shape)
    weights = np.random.default_rng(3).normal(size=shape[:2]).astype("float32")

    @jax.jit
    def targets_and_gradients(w: Arrays, weights: Any) -> tuple:
        def total(q: Any, pi: Any) -> tuple:
            given = {**w, "q": q, "pi": pi}
            out = ot.targets(**given, trace=ot.Retrace(0.95), validate=False, stop_gradient=False)
            return (weights * out).sum(), out

        gradients, out = jax.grad(total, argnums=(0, 1), has_aux=True)(w["q"], w["pi"])
        return out, *gradients

    found = targets_and_gradients(w, weights)
    with double_precision(), jax.default_device(jax.devices("cpu")[0]):
        expected = targets_and_gradients(in_double(w), weights.astype("float64"))
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other)


@pytest.mark.parametrize("name", ot.TRACES)
def test_every_trace(name: str) -> None:
    w = window((200, 300, 7))
    trace = ot.as_trace(name, 0.5)
    expected = ot.targets(**in_double(w), trace=trace)
    on_device = {key: jax.device_put(value) for key, value in w.items()}
    assert_close(ot.targets(**on_device, trace=trace), expected)
    assert_close(jax.jit(lambda given: ot.targets(**given, trace=trace))(on_device), expected)
