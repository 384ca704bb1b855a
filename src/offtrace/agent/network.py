"""Networks from observations to Q(x, ·): a perceptron, MinAtar's, and that of DQN.

Each takes observations with any leading axes, (…, *shape) to (…, A), as bool, uint8 or float; bytes are divided by
255. Under `vmap` over parameters with a leading axis of members every layer but DQN's convolutions is a batched
product.

Weights and biases start uniform in ±1/√(inputs), as in Torch, which the papers of all three used.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

KINDS = ("auto", "mlp", "minatar", "dqn")


class Linear(eqx.Module):
    """y = x W + b on the last axis, whatever the others are."""

    weight: Array
    """(num_inputs, num_outputs)"""
    bias: Array

    def __init__(self, num_inputs: int, num_outputs: int, key: Array) -> None:
        self.weight, self.bias = _uniform((num_inputs, num_outputs), num_inputs, key)

    def __call__(self, x: Array) -> Array:
        return x @ self.weight + self.bias


class Convolution(eqx.Module):
    """A square convolution without padding, (B, H, W, C) to (B, H′, W′, C′)."""

    weight: Array
    """(size, size, C, C′)"""
    bias: Array
    stride: int = eqx.field(static=True)

    def __init__(self, num_inputs: int, num_outputs: int, *, size: int, stride: int, key: Array) -> None:
        shape = size, size, num_inputs, num_outputs
        self.weight, self.bias = _uniform(shape, math.prod(shape[:-1]), key)
        self.stride = stride

    def __call__(self, x: Array, convolve: Callable[[Array, Array, int], Array]) -> Array:
        return convolve(x, self.weight, self.stride) + self.bias


def library_convolution(x: Array, weight: Array, stride: int) -> Array:
    """XLA's own. The faster one for large images, but on a CPU not inside a loop, and not under `vmap`."""
    layout = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(_floats(x, weight), weight, (stride, stride), "VALID", dimension_numbers=layout)


def patch_convolution(x: Array, weight: Array, stride: int) -> Array:
    """The same as one matrix product: every output's inputs side by side, times the flat weights.

        x    a b c        patches of 2×2      a b d e       · weight, (4·C, C′)
             d e f                            b c e f
             g h i                            d e g h
                                              e f h i

    On a CPU and for images as small as MinAtar's, many times faster inside a compiled loop.
    """
    size = weight.shape[0]
    rows, columns = (stride * ((length - size) // stride) + 1 for length in x.shape[1:3])
    shifted = [x[:, i : i + rows : stride, j : j + columns : stride] for i in range(size) for j in range(size)]
    return _floats(jnp.concatenate(shifted, axis=-1), weight) @ weight.reshape(-1, weight.shape[-1])


def row_convolution(x: Array, weight: Array, stride: int) -> Array:
    """The same with a stride of 1, for narrow images: a whole row of outputs is one product.

    `size` rows of the image, which lie side by side in memory, times the weights repeated along a band:

        rows 1–3 of x, flat      band, for outputs      left   middle  right
        a b c d e                                       w₁     0       0
        f g h i j                                       w₂     w₁      0
        k l m n o                                       w₃     w₂      w₁
                                                        0      w₃      w₂
                                                        0      0       w₃

    Most of the band is zero, but the product is large enough for tensor units, and little is copied.
    """
    if stride != 1:
        raise ValueError(f"`stride` must be 1; got {stride}.")
    size, _, num_inputs, num_outputs = weight.shape
    height, width = x.shape[1:3]
    rows, columns = height - size + 1, width - size + 1
    shifts = [jnp.pad(weight, ((0, 0), (j, columns - 1 - j), (0, 0), (0, 0))) for j in range(columns)]
    band = jnp.stack(shifts, axis=-2).reshape(size * width * num_inputs, columns * num_outputs)
    flat = x.reshape(-1, height, width * num_inputs)
    strips = jnp.concatenate([flat[:, i : i + rows] for i in range(size)], axis=-1)
    return (_floats(strips, weight) @ band).reshape(-1, rows, columns, num_outputs)


class MLP(eqx.Module):
    """Fully connected layers with ReLU between them, of the given sizes; observations are flattened."""

    layers: tuple[Linear, ...]
    shape: tuple[int, ...] = eqx.field(static=True)

    def __init__(
        self, shape: Sequence[int], num_actions: int, key: Array, *, hidden_sizes: Sequence[int] = (64, 64)
    ) -> None:
        self.shape = tuple(shape)
        sizes = (math.prod(self.shape), *hidden_sizes, num_actions)
        keys = jax.random.split(key, len(sizes) - 1)
        self.layers = tuple(Linear(*pair, k) for *pair, k in zip(sizes[:-1], sizes[1:], keys, strict=True))

    def __call__(self, obs: Array) -> Array:
        def values(x: Array) -> Array:
            return _perceptron(self.layers, _floats(x.reshape(x.shape[0], -1), self.layers[0].weight))

        return _batched(self.shape, obs, values)


class MinAtarNet(eqx.Module):
    """Young and Tian (2019): 16 filters of 3×3, then 128 units; for (H, W, C), with the channels last."""

    convolution: Convolution
    layers: tuple[Linear, ...]
    shape: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, shape: Sequence[int], num_actions: int, key: Array) -> None:
        height, width, channels = self.shape = tuple(shape)
        if min(height, width) < 3:
            raise ValueError(f"`shape` must be (H, W, C) with images of 3×3 or more; got {self.shape}.")
        keys = jax.random.split(key, 3)
        self.convolution = Convolution(channels, 16, size=3, stride=1, key=keys[0])
        self.layers = Linear((height - 2) * (width - 2) * 16, 128, keys[1]), Linear(128, num_actions, keys[2])

    def __call__(self, obs: Array) -> Array:
        def values(x: Array) -> Array:
            on_cpu = jax.default_backend() == "cpu"
            x = jax.nn.relu(self.convolution(x, patch_convolution if on_cpu else row_convolution))
            return _perceptron(self.layers, x.reshape(x.shape[0], -1))

        return _batched(self.shape, obs, values)


class DQNNet(eqx.Module):
    """Mnih et al. (2015): 32 filters of 8×8 by 4, 64 of 4×4 by 2, 64 of 3×3, then 512 units; for stacks (k, H, W)."""

    convolutions: tuple[Convolution, ...]
    layers: tuple[Linear, ...]
    shape: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, shape: Sequence[int], num_actions: int, key: Array) -> None:
        num_frames, height, width = self.shape = tuple(shape)
        if min(height, width) < 36:
            raise ValueError(f"`shape` must be (k, H, W) with images of 36×36 or more; got {self.shape}.")
        keys = jax.random.split(key, 5)
        filters = ((num_frames, 32, 8, 4), (32, 64, 4, 2), (64, 64, 3, 1))
        convolutions = []
        for (num_inputs, num_outputs, size, stride), k in zip(filters, keys, strict=False):
            convolutions.append(Convolution(num_inputs, num_outputs, size=size, stride=stride, key=k))
            height, width = ((length - size) // stride + 1 for length in (height, width))
        self.convolutions = tuple(convolutions)
        self.layers = Linear(height * width * 64, 512, keys[3]), Linear(512, num_actions, keys[4])

    def __call__(self, obs: Array) -> Array:
        def values(x: Array) -> Array:
            x = jnp.moveaxis(x, 1, -1)
            for convolution in self.convolutions:
                x = jax.nn.relu(convolution(x, library_convolution))
            return _perceptron(self.layers, x.reshape(x.shape[0], -1))

        return _batched(self.shape, obs, values)


Network = MLP | MinAtarNet | DQNNet


def make_network(
    space_shape: Sequence[int],
    dtype: Any,
    num_actions: int,
    key: Array,
    kind: str = "auto",
    *,
    hidden_sizes: Sequence[int] = (64, 64),
) -> Network:
    """The network for observations of this shape and dtype.

    `kind="auto"` takes `mlp` for vectors, `minatar` for bool images (H, W, C), `dqn` for stacks (k, H, W) of 36×36 or
    more; `hidden_sizes` are those of the perceptron.

    >>> network = make_network((10, 10, 4), bool, num_actions=6, key=jax.random.key(0))
    >>> type(network).__name__, num_parameters(network)
    ('MinAtarNet', 132566)
    >>> network(jnp.zeros((17, 4, 10, 10, 4), bool)).shape
    (17, 4, 6)
    """
    shape, dtype = tuple(space_shape), np.dtype(dtype)
    if not (dtype in (np.bool_, np.uint8) or np.issubdtype(dtype, np.floating)):
        raise TypeError(f"`dtype` must be bool, uint8 or a float; got {dtype}. Encode other numbers one-hot.")
    if num_actions < 1:
        raise ValueError(f"`num_actions` must be at least 1; got {num_actions}.")
    if kind == "auto":
        kind = _kind(shape, dtype)
    if kind == "mlp":
        return MLP(shape, num_actions, key, hidden_sizes=hidden_sizes)
    if kind not in KINDS:
        raise ValueError(f"`kind` must be one of {', '.join(KINDS)}; got {kind!r}.")
    if len(shape) != 3:
        raise ValueError(f"`space_shape` must have three axes for `kind={kind!r}`; got {shape}.")
    return (MinAtarNet if kind == "minatar" else DQNNet)(shape, num_actions, key)


def num_parameters(network: Network) -> int:
    """How many numbers are learned."""
    return sum(leaf.size for leaf in jax.tree.leaves(network))


def _kind(shape: tuple[int, ...], dtype: np.dtype) -> str:
    if len(shape) <= 1:
        return "mlp"
    if len(shape) == 3 and dtype == np.bool_ and min(shape[:2]) >= 3:
        return "minatar"
    if len(shape) == 3 and min(shape[1:]) >= 36:
        return "dqn"
    raise ValueError(
        f"`kind` cannot be told from `space_shape` {shape} of {dtype}: vectors, bool images (H, W, C) and stacks "
        "(k, H, W) of 36×36 or more can. Give `kind`, for example 'mlp', which flattens."
    )


def _batched(shape: tuple[int, ...], obs: Array, values: Callable[[Array], Array]) -> Array:
    """Leading axes as one, so that every layer is one product."""
    lead = obs.shape[: obs.ndim - len(shape)]
    if obs.shape[len(lead) :] != shape:
        raise ValueError(f"`obs` must be (…, {', '.join(map(str, shape))}); got {obs.shape}.")
    out = values(obs.reshape(math.prod(lead), *shape))
    return out.reshape(*lead, out.shape[-1])


def _floats(x: Array, weight: Array) -> Array:
    """In the dtype of the weights; bytes as shares of 255, bools as 0 and 1."""
    return x.astype(weight.dtype) / 255 if x.dtype == np.uint8 else x.astype(weight.dtype)


def _perceptron(layers: tuple[Linear, ...], x: Array) -> Array:
    for layer in layers[:-1]:
        x = jax.nn.relu(layer(x))
    return layers[-1](x)


def _uniform(shape: tuple[int, ...], num_inputs: int, key: Array) -> tuple[Array, Array]:
    """Weights of this shape and a bias for each output."""
    bound = 1 / math.sqrt(num_inputs)
    for_weight, for_bias = jax.random.split(key)
    weight = jax.random.uniform(for_weight, shape, minval=-bound, maxval=bound)
    return weight, jax.random.uniform(for_bias, shape[-1:], minval=-bound, maxval=bound)
