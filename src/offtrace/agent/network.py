"""Networks from observations to Q(x, ·): a perceptron, MinAtar's network and DQN's.

Each maps observations with any leading axes, (…, *shape), to (…, A). Observations are bool, uint8
(divided by 255) or float. On an accelerator, under `vmap` over members, every layer is a batched
product.

Initial weights and biases are uniform in ±1/√(inputs), as in Torch, which the papers of all three
used.
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
    """The layer y = x W + b on the last axis."""

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
    """XLA's convolution. The fastest one for large images, but slow under `vmap`, and on a CPU inside a loop."""
    layout = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(_floats(x, weight), weight, (stride, stride), "VALID", dimension_numbers=layout)


def _library_stack_convolution(x: Array, weight: Array, stride: int) -> Array:
    return library_convolution(jnp.moveaxis(x, 1, -1), weight, stride)


def patch_convolution(x: Array, weight: Array, stride: int) -> Array:
    """The same as one matrix product: the inputs of each output, side by side, times the flat weights.

        x    a b c        patches of 2×2      a b d e       · weight, (4·C, C′)
             d e f                            b c e f
             g h i                            d e g h
                                              e f h i

    On a CPU, inside a compiled loop, it is many times faster for images as small as MinAtar's.
    """
    size = weight.shape[0]
    rows, columns = (stride * ((length - size) // stride) + 1 for length in x.shape[1:3])
    shifted = [x[:, i : i + rows : stride, j : j + columns : stride] for i in range(size) for j in range(size)]
    return _floats(jnp.concatenate(shifted, axis=-1), weight) @ weight.reshape(-1, weight.shape[-1])


def block_convolution(x: Array, weight: Array, stride: int) -> Array:
    """The same for a size that is a multiple of the stride, as a product of whole blocks of pixels.

        x, 4×4, stride 2      blocks of 2×2, their pixels as channels      a filter of 4×4 pixels is one of 2×2 blocks

        a b c d               [a b e f]  [c d g h]
        e f g h
        i j k l               [i j m n]  [k l o p]
        m n o p

    Patches of few large blocks are copied in long pieces. On an accelerator, under `vmap` over
    members, this is many times faster than the library's convolution.
    """
    rows, columns = (length // stride for length in x.shape[1:3])
    x = x[:, : rows * stride, : columns * stride].reshape(x.shape[0], rows, stride, columns, stride, x.shape[3])
    return _convolved_blocks(x.transpose(0, 1, 3, 2, 4, 5), weight)


def stack_convolution(x: Array, weight: Array, stride: int) -> Array:
    """The same for stacks of images (B, k, H, W), whose frames are the channels: one transposition instead of two."""
    rows, columns = (length // stride for length in x.shape[2:])
    x = x[:, :, : rows * stride, : columns * stride].reshape(*x.shape[:2], rows, stride, columns, stride)
    return _convolved_blocks(x.transpose(0, 2, 4, 3, 5, 1), weight)


def _convolved_blocks(blocks: Array, weight: Array) -> Array:
    """Convolve blocks (B, rows, columns, stride, stride, C) with filters of whole blocks."""
    size, _, num_inputs, num_outputs = weight.shape
    stride = blocks.shape[3]
    num = size // stride
    filters = weight.reshape(num, stride, num, stride, num_inputs, num_outputs)
    filters = filters.transpose(0, 2, 1, 3, 4, 5).reshape(num, num, -1, num_outputs)
    return patch_convolution(blocks.reshape(*blocks.shape[:3], -1), filters, 1)


def row_convolution(x: Array, weight: Array, stride: int) -> Array:
    """The same with a stride of 1, for narrow images: a row of outputs is one product.

    `size` rows of the image, which are contiguous in memory, are multiplied by the weights repeated
    along a band:

        rows 1–3 of x, flat      band, for outputs      left   middle  right
        a b c d e                                       w₁     0       0
        f g h i j                                       w₂     w₁      0
        k l m n o                                       w₃     w₂      w₁
                                                        0      w₃      w₂
                                                        0      0       w₃

    Most of the band is zero, but the product is large enough for tensor units, and little is
    copied.
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
    """Fully connected layers of the given sizes with ReLU between them.

    Observations are flattened, and multiplied by `scale` if there is one.
    """

    layers: tuple[Linear, ...]
    shape: tuple[int, ...] = eqx.field(static=True)
    scale: tuple[float, ...] = eqx.field(static=True)

    def __init__(
        self,
        shape: Sequence[int],
        num_actions: int,
        key: Array,
        *,
        hidden_sizes: Sequence[int] = (64, 64),
        scale: Sequence[float] = (),
    ) -> None:
        self.shape = tuple(shape)
        self.scale = tuple(scale)
        num_inputs = math.prod(self.shape)
        if len(self.scale) not in (0, num_inputs):
            raise ValueError(
                f"`observation_scale` must have a number for each of the {num_inputs} entries of an observation; "
                f"got {len(self.scale)}."
            )
        sizes = (num_inputs, *hidden_sizes, num_actions)
        keys = jax.random.split(key, len(sizes) - 1)
        self.layers = tuple(Linear(*pair, k) for *pair, k in zip(sizes[:-1], sizes[1:], keys, strict=True))

    def __call__(self, obs: Array) -> Array:
        def values(x: Array) -> Array:
            x = _floats(x.reshape(x.shape[0], -1), self.layers[0].weight)
            if self.scale:
                x = x * jnp.asarray(self.scale, x.dtype)
            return _perceptron(self.layers, x)

        return _batched(self.shape, obs, values)


class MinAtarNet(eqx.Module):
    """The network of Young and Tian (2019) for images (H, W, C): 16 filters of 3×3, then 128 units."""

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
            convolve = patch_convolution if jax.default_backend() == "cpu" else row_convolution
            x = jax.nn.relu(self.convolution(x, convolve))
            return _perceptron(self.layers, x.reshape(x.shape[0], -1))

        return _batched(self.shape, obs, values)


class DQNNet(eqx.Module):
    """The network of Mnih et al. (2015) for stacks of images (k, H, W).

    Filters: 32 of 8×8 with stride 4, 64 of 4×4 with stride 2, 64 of 3×3; then 512 units.
    """

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
            convolve, first = block_convolution, stack_convolution
            if jax.default_backend() == "cpu":
                convolve, first = library_convolution, _library_stack_convolution
            x = jax.nn.relu(self.convolutions[0](x, first))
            for convolution in self.convolutions[1:]:
                x = jax.nn.relu(convolution(x, convolve))
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
    observation_scale: Sequence[float] = (),
) -> Network:
    """Return a network for observations of this shape and dtype.

    `kind="auto"` selects `mlp` for vectors, `minatar` for bool images (H, W, C), and `dqn` for
    stacks (k, H, W) of 36×36 or more. `hidden_sizes` are the layers of `mlp`, and `observation_scale` are factors for
    its inputs.

    >>> network = make_network((10, 10, 4), bool, num_actions=6, key=jax.random.key(0))
    >>> type(network).__name__, num_parameters(network)
    ('MinAtarNet', 132566)
    >>> network(jnp.zeros((17, 4, 10, 10, 4), bool)).shape
    (17, 4, 6)
    """
    shape = tuple(space_shape)
    dtype = np.dtype(dtype)
    if not (dtype in (np.bool_, np.uint8) or np.issubdtype(dtype, np.floating)):
        raise TypeError(f"`dtype` must be bool, uint8 or a float; got {dtype}. Encode other numbers one-hot.")
    if num_actions < 1:
        raise ValueError(f"`num_actions` must be at least 1; got {num_actions}.")
    if kind == "auto":
        kind = _kind(shape, dtype)
    if kind == "mlp":
        return MLP(shape, num_actions, key, hidden_sizes=hidden_sizes, scale=observation_scale)
    if kind not in KINDS:
        raise ValueError(f"`kind` must be one of {', '.join(KINDS)}; got {kind!r}.")
    if observation_scale:
        raise ValueError(f"`observation_scale` must be left out for the network {kind!r}; only 'mlp' has it.")
    if len(shape) != 3:
        raise ValueError(f"`space_shape` must have three axes for `kind={kind!r}`; got {shape}.")
    if kind == "minatar":
        return MinAtarNet(shape, num_actions, key)
    return DQNNet(shape, num_actions, key)


def num_parameters(network: Network) -> int:
    """Return the number of learned parameters."""
    return sum(leaf.size for leaf in jax.tree.leaves(network))


def _kind(shape: tuple[int, ...], dtype: np.dtype) -> str:
    if len(shape) <= 1:
        return "mlp"
    if len(shape) == 3 and dtype == np.bool_ and min(shape[:2]) >= 3:
        return "minatar"
    if len(shape) == 3 and min(shape[1:]) >= 36:
        return "dqn"
    raise ValueError(
        f"`kind` must be given for observations {shape} of {dtype}: 'auto' knows vectors, bool images (H, W, C) and "
        "stacks (k, H, W) of 36×36 or more. 'mlp' flattens any shape."
    )


def _batched(shape: tuple[int, ...], obs: Array, values: Callable[[Array], Array]) -> Array:
    """Apply `values` with the leading axes merged into one, so that every layer is one product."""
    lead = obs.shape[: obs.ndim - len(shape)]
    if obs.shape[len(lead) :] != shape:
        raise ValueError(f"`obs` must be (…, {', '.join(map(str, shape))}); got {obs.shape}.")
    out = values(obs.reshape(math.prod(lead), *shape))
    return out.reshape(*lead, out.shape[-1])


def _floats(x: Array, weight: Array) -> Array:
    """Return inputs in the dtype of the weights: bytes divided by 255, bools as 0 and 1."""
    floats = x.astype(weight.dtype)
    if x.dtype == np.uint8:
        return floats / 255
    return floats


def _perceptron(layers: tuple[Linear, ...], x: Array) -> Array:
    for layer in layers[:-1]:
        x = jax.nn.relu(layer(x))
    return layers[-1](x)


def _uniform(shape: tuple[int, ...], num_inputs: int, key: Array) -> tuple[Array, Array]:
    """Return weights of this shape and a bias per output."""
    bound = 1 / math.sqrt(num_inputs)
    for_weight, for_bias = jax.random.split(key)
    weight = jax.random.uniform(for_weight, shape, minval=-bound, maxval=bound)
    return weight, jax.random.uniform(for_bias, shape[-1:], minval=-bound, maxval=bound)
