"""Errors of wrong input: that they are raised, and what their texts name."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest


def refusal(call: Callable, *args: Any, error: type[Exception] = ValueError, **options: Any) -> str:
    """Return the text of the error. Any other exception, a warning or a changed input fails the test."""
    before = {name: value.copy() for name, value in options.items() if isinstance(value, np.ndarray)}
    with pytest.raises(error) as caught:
        call(*args, **options)
    assert type(caught.value) is error
    for name, value in before.items():
        np.testing.assert_array_equal(options[name], value, err_msg=f"{name} was changed")
    return str(caught.value)


def says(text: str, *parts: str) -> None:
    """Check that the text has every part."""
    missing = [part for part in parts if part not in text]
    assert not missing, f"{missing} is missing from: {text}"
