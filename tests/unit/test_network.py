"""Networks against plain NumPy formulas, and both convolutions against the definition."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offtrace.agent import network
from offtrace.agent.network import MLP, DQNNet, Linear, MinAtarNet, make_network, num_parameters

MAKE = jax.jit(make_network, static_argnums=(0, 1, 2))
VALUES = jax.jit(lambda net, obs: net(obs))
ROUNDING = 1e-5
"""Rounding error of a sum of up to a few thousand float32 products of numbers below 1."""


def close(given: Any, expected: Any) -> None:
    np.testing.assert_allclose(given, expected, atol=ROUNDING * max(1.0, float(np.abs(expected).max())), rtol=0)


def numpy_convolution(x: np.ndarray, weight: np.ndarray, stride: int) -> np.ndarray:
    """y[b, i, j, f] = Σ_{u, v, c} x[b, i·stride + u, j·stride + v, c] w[u, v, c, f], in float64."""
    size = weight.shape[0]
    height, width = ((length - size) // stride + 1 for length in x.shape[1:3])
    out = np.zeros((x.shape[0], height, width, weight.shape[-1]))
    for i in range(height):
        for j in range(width):
            patch = x[:, i * stride : i * stride + size, j * stride : j * stride + size].astype(np.float64)
            out[:, i, j] = np.tensordot(patch, weight.astype(np.float64), 3)
    return out


def dense(layers: tuple[Linear, ...], x: np.ndarray) -> np.ndarray:
    for k, layer in enumerate(layers):
        x = x @ np.asarray(layer.weight, np.float64) + np.asarray(layer.bias, np.float64)
        x = np.maximum(x, 0) if k < len(layers) - 1 else x
    return x


def observations(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return observations as an environment gives them, and as the numbers that a network should see."""
    if dtype == "float32":
        values = rng.normal(size=shape).astype(np.float32)
        return values, values
    if dtype == "uint8":
        values = rng.integers(0, 256, shape).astype(np.uint8)
        return values, values / 255
    return rng.random(shape) < 0.3, np.zeros(0)


@settings(max_examples=8, deadline=None)
@given(
    size=st.integers(1, 4),
    stride=st.integers(1, 3),
    extra=st.tuples(st.integers(0, 4), st.integers(0, 4)),
    channels=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    seed=st.integers(0, 1000),
)
def test_convolutions_are_the_definition(size: int, stride: int, extra: Any, channels: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.random((2, size + extra[0], size + extra[1], channels[0]), dtype=np.float32)
    weight = rng.normal(size=(size, size, *channels)).astype(np.float32)
    expected = numpy_convolution(x, weight, stride)
    functions = [network.patch_convolution, network.library_convolution]
    if size % stride == 0:
        functions.append(network.block_convolution)
    for function in functions:
        close(jax.jit(function, static_argnums=2)(x, weight, stride), expected)


@pytest.mark.parametrize("channels", [4, 10])
def test_patches_and_lax_have_the_same_values_and_gradients(channels: int) -> None:
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.random((8, 10, 10, channels)) < 0.2)
    weight = jnp.asarray(rng.normal(size=(3, 3, channels, 16)).astype(np.float32))

    def loss(weight: Any, function: Any) -> Any:
        values = function(x, weight, 1)
        return (values**2).mean(), values

    both = jax.jit(jax.grad(loss, has_aux=True), static_argnums=1)
    found = [both(weight, each) for each in (network.patch_convolution, network.library_convolution)]
    for one, other in zip(*found, strict=True):
        assert one.dtype == other.dtype == jnp.float32
        close(one, np.asarray(other))


@pytest.mark.parametrize(
    ("dtype", "hidden_sizes"), [("float32", ()), ("float32", (7, 3)), ("uint8", (5,)), ("bool", (5,))]
)
def test_mlp_is_its_formula(dtype: str, hidden_sizes: tuple[int, ...]) -> None:
    obs, values = observations(np.random.default_rng(0), (6, 2, 3), dtype)
    values = obs.astype(np.float64) if dtype == "bool" else values
    net = jax.jit(lambda key: MLP((2, 3), 4, key, hidden_sizes=hidden_sizes))(jax.random.key(0))
    assert [layer.weight.shape for layer in net.layers] == list(
        zip((6, *hidden_sizes), (*hidden_sizes, 4), strict=True)
    )
    close(VALUES(net, obs), dense(net.layers, values.reshape(6, 6)))


def test_mlp_multiplies_its_inputs_by_their_factors() -> None:
    obs, values = observations(np.random.default_rng(0), (6, 2, 3), "float32")
    scale = (1.0, 14.0, 0.5, 3.0, 0.25, 2.0)
    net = MLP((2, 3), 4, jax.random.key(0), hidden_sizes=(5,), scale=scale)
    close(VALUES(net, obs), dense(net.layers, values.reshape(6, 6) * np.array(scale)))
    in_half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), net)
    assert in_half(obs).dtype == jnp.bfloat16


def test_minatar_net_is_its_formula() -> None:
    obs = np.random.default_rng(0).random((3, 10, 10, 4)) < 0.2
    net = MAKE((10, 10, 4), "bool", 3, jax.random.key(1))
    hidden = numpy_convolution(obs, np.asarray(net.convolution.weight), 1) + np.asarray(net.convolution.bias)
    close(VALUES(net, obs), dense(net.layers, np.maximum(hidden, 0).reshape(3, -1)))


def test_dqn_net_is_its_formula() -> None:
    obs = np.random.default_rng(0).integers(0, 256, (2, 4, 84, 84)).astype(np.uint8)
    net = MAKE((4, 84, 84), "uint8", 6, jax.random.key(2))
    x = np.moveaxis(obs, 1, -1) / 255
    for convolution, stride in zip(net.convolutions, (4, 2, 1), strict=True):
        x = np.maximum(numpy_convolution(x, np.asarray(convolution.weight), stride) + np.asarray(convolution.bias), 0)
    assert x.shape == (2, 7, 7, 64)
    close(VALUES(net, obs), dense(net.layers, x.reshape(2, -1)))


def shapes_of(shape: tuple[int, ...], dtype: Any, num_actions: int, **options: Any) -> Any:
    """Return the network with shapes in place of arrays."""
    return jax.eval_shape(lambda key: make_network(shape, dtype, num_actions, key, **options), jax.random.key(0))


def test_parameter_counts() -> None:
    """Weights and biases of each layer, counted by hand; DQN's count for Pong is the one usually quoted."""
    assert num_parameters(shapes_of((4,), "float32", 2)) == (4 + 1) * 64 + (64 + 1) * 64 + (64 + 1) * 2
    minatar = (9 * 4 + 1) * 16 + (8 * 8 * 16 + 1) * 128 + (128 + 1) * 6
    assert num_parameters(shapes_of((10, 10, 4), bool, 6)) == minatar == 132_566
    assert num_parameters(shapes_of((4, 84, 84), "uint8", 6)) == 1_687_206


def test_auto_and_its_refusals() -> None:
    key = jax.random.key(0)
    cases = {MLP: ((4,), "float32"), MinAtarNet: ((10, 10, 7), bool), DQNNet: ((4, 84, 84), "uint8")}
    for cls, (shape, dtype) in cases.items():
        assert type(shapes_of(shape, dtype, 3)) is cls
    assert type(shapes_of((10, 10, 4), bool, 3, kind="mlp", hidden_sizes=(8,))) is MLP
    assert type(shapes_of((10, 10, 4), "float32", 3, kind="minatar")) is MinAtarNet
    for arguments, text in (
        (((10, 10), bool, 3, key), "`kind` must be given for"),
        (((4, 20, 20), "uint8", 3, key), "`kind` must be given for"),
        (((4, 20, 20), "uint8", 3, key, "dqn"), r"`shape` must be \(k, H, W\) with images of 36×36"),
        (((2, 10, 4), bool, 3, key, "minatar"), "3×3 or more"),
        (((4,), "float32", 3, key, "dqn"), "`space_shape` must have three axes"),
        (((4,), "float32", 3, key, "conv"), "`kind` must be one of auto, mlp, minatar, dqn; got 'conv'"),
        (((4,), "float32", 0, key), "`num_actions` must be at least 1"),
        (((4,), "int32", 3, key), "`dtype` must be bool, uint8 or a float; got int32"),
    ):
        with pytest.raises((ValueError, TypeError), match=text):
            make_network(*arguments)
    for shape, text in (
        ((4,), "a number for each of the 4 entries.*; got 2"),
        ((10, 10, 4), "left out for .*'minatar'"),
    ):
        with pytest.raises(ValueError, match=f"`observation_scale` must (have|be) {text}"):
            make_network(shape, bool, 3, key, observation_scale=(1.0, 2.0))
    with pytest.raises(ValueError, match=r"`obs` must be \(…, 4\); got \(3, 5\)"):
        jax.eval_shape(lambda key, obs: make_network((4,), "float32", 2, key)(obs), key, jnp.zeros((3, 5)))


@pytest.mark.parametrize(("shape", "dtype"), [((4,), "float32"), ((10, 10, 4), "bool")])
def test_leading_axes_and_members(shape: tuple[int, ...], dtype: str) -> None:
    """Any leading axes, also none; and members under `vmap` equal members alone, up to the order of sums."""
    nets = [MAKE(shape, dtype, 3, key) for key in jax.random.split(jax.random.key(0), 2)]
    obs, _ = observations(np.random.default_rng(0), (2, 5, 3, *shape), dtype)
    members = jax.tree.map(lambda *leaves: jnp.stack(leaves), *nets)
    together = jax.jit(jax.vmap(lambda net, x: net(x)))(members, obs)
    assert together.shape == (2, 5, 3, 3)
    for member, net in enumerate(nets):
        close(together[member], np.asarray(VALUES(net, obs[member])))
        close(together[member, 1, 2], np.asarray(VALUES(net, obs[member, 1, 2])))


def test_a_member_axis_gives_batched_products() -> None:
    """No convolution appears for a population on MinAtar: XLA's grouped ones are slow."""
    make = jax.vmap(lambda key: MinAtarNet((10, 10, 4), 3, key))
    members = jax.eval_shape(make, jax.random.split(jax.random.key(0), 2))
    program = jax.make_jaxpr(jax.vmap(lambda net, x: net(x)))(members, jnp.zeros((2, 5, 10, 10, 4), bool))
    assert "conv_general_dilated" not in str(program)
    assert str(program).count("dot_general") == 3


def test_initial_weights_are_uniform_within_the_bound() -> None:
    layer = jax.jit(lambda key: Linear(100, 200, key))(jax.random.key(0))
    weight, bias = np.asarray(layer.weight), np.asarray(layer.bias)
    for values in (weight, bias):
        assert np.abs(values).max() <= 0.1
    assert weight.std() == pytest.approx(0.2 / np.sqrt(12), rel=0.02)  # 20,000 draws: 0.3 % is one σ
    two = MAKE((4,), "float32", 3, jax.random.key(1)), MAKE((4,), "float32", 3, jax.random.key(1))
    assert eqx.tree_equal(*two)
