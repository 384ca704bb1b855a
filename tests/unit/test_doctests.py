"""Every example in a docstring runs, and gives what it shows."""

import doctest
import importlib
import pkgutil

import pytest

import offtrace

MODULES = [
    info.name
    for info in pkgutil.walk_packages(offtrace.__path__, "offtrace.")
    if not info.name.startswith("offtrace.benchmarks")
]


@pytest.mark.parametrize("name", ["offtrace", *MODULES])
def test_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
