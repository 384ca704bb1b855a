"""States as named arrays, as checkpoints hold them.

A leaf is named by its path: `learner.params.layers[0].weight`. Random keys are stored as the
numbers behind them.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def to_arrays(state: Any, prefix: str = "") -> dict[str, np.ndarray]:
    """Return every leaf of a state by its path.

    >>> to_arrays({"a": jnp.ones(2)}, prefix="member.")
    {"member.['a']": array([1., 1.], dtype=float32)}
    """
    return {f"{prefix}{name}": np.asarray(_key_data(leaf)) for name, leaf in _named_leaves(state)}


def from_arrays(template: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """Return a state with the template's structure from its named arrays."""
    leaves = []
    for name, leaf in _named_leaves(template):
        expected = jax.eval_shape(_key_data, leaf)
        found = jnp.array(checked_array(arrays, name, expected.dtype, expected.shape))
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            found = jax.random.wrap_key_data(found)
        leaves.append(found)
    return jax.tree.unflatten(jax.tree.structure(template), leaves)


def checked_array(arrays: Mapping[str, np.ndarray], name: str, dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Return an array of a checkpoint if it has this dtype and shape; −1 stands for any size."""
    found = arrays.get(name)
    if (
        found is not None
        and found.dtype == dtype
        and found.ndim == len(shape)
        and all(size in (-1, actual) for size, actual in zip(shape, found.shape, strict=True))
    ):
        return found
    actual = "nothing" if found is None else f"{found.dtype}{list(found.shape)}"
    raise ValueError(
        f"the checkpoint has {actual} for {name}, where this version needs {np.dtype(dtype)}{list(shape)}: it was "
        "written by another version."
    )


def under(prefix: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays whose names begin with `prefix`, without it."""
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}


def members_of(arrays: Mapping[str, np.ndarray], number: int) -> list[dict[str, np.ndarray]]:
    """Return the arrays of each member from arrays with a leading axis of members.

    >>> members_of({"weight": np.array([[1, 2], [3, 4]])}, 2)[1]
    {'weight': array([3, 4])}
    """
    return [{name: value[member] for name, value in arrays.items()} for member in range(number)]


def _named_leaves(tree: Any) -> list[tuple[str, Any]]:
    return [
        (jax.tree_util.keystr(path).lstrip("."), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]


def _key_data(leaf: Any) -> Any:
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(leaf)
    return leaf
