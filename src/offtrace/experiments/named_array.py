"""An array whose axes have names and values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class NamedArray:
    """An array whose axes have names and values. An entry without a value, such as a missing run, is nan.

    >>> scores = NamedArray(np.array([[1.0, 2.0], [3.0, np.nan]]), {"trace": ("retrace", "dqn"), "seed": (0, 1)})
    >>> scores.select(trace="retrace").values
    array([1., 2.])
    >>> scores.columns()["trace"].tolist()
    ['retrace', 'retrace', 'dqn']
    """

    values: NDArray[np.float64]
    axes: Mapping[str, tuple[Any, ...]]
    """The values of every axis, in the order of the array's axes."""

    def __post_init__(self) -> None:
        sizes = tuple(len(values) for values in self.axes.values())
        if sizes != self.values.shape:
            raise ValueError(f"`axes` must have the sizes of `values`, {self.values.shape}; got {sizes}.")

    def __repr__(self) -> str:
        axes = ", ".join(f"{name} {len(values)}" for name, values in self.axes.items())
        return f"NamedArray({axes}; {np.isfinite(self.values).sum():,} values)"

    def select(self, **where: Any) -> "NamedArray":
        """Return the part at these values, without their axes."""
        index: list[Any] = [slice(None)] * len(self.axes)
        for name, value in where.items():
            if name not in self.axes:
                raise ValueError(f"`{name}` must be an axis; got none of that name among {', '.join(self.axes)}.")
            if value not in self.axes[name]:
                raise ValueError(f"`{name}` must be one of {self.axes[name]}; got {value!r}.")
            index[list(self.axes).index(name)] = self.axes[name].index(value)
        axes = {name: values for name, values in self.axes.items() if name not in where}
        return NamedArray(np.asarray(self.values[tuple(index)]), axes)

    def columns(self) -> dict[str, np.ndarray]:
        """Return the long form, for a data frame: one row per value that is not nan, one column per axis."""
        places = np.nonzero(~np.isnan(self.values))
        found = {}
        for (name, values), place in zip(self.axes.items(), places, strict=True):
            column = np.empty(len(values), dtype=object)
            column[:] = values
            found[name] = np.array(column[place].tolist()) if _are_plain(values) else column[place]
        return {**found, "value": self.values[places]}


def _are_plain(values: tuple[Any, ...]) -> bool:
    """Return whether values are numbers or texts only, which NumPy has a type for."""
    return all(isinstance(value, str) for value in values) or all(isinstance(value, int | float) for value in values)
