"""For all tests."""

import sys
from collections.abc import Generator

import pytest


@pytest.fixture(autouse=True, scope="module")
def _compiled_programs_are_let_go() -> Generator[None]:
    """XLA keeps every program that it compiled in maps of its own, and a process may have 65,530 of those."""
    yield
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()
