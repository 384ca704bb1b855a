"""Static types of the public functions: `make check` fails where one of these is not what a type checker infers."""

from typing import assert_type

import numpy as np

import offtrace as ot


def test_targets_have_the_type_of_the_rewards() -> None:
    window = {"q_a": np.zeros(2), "expected_q": np.zeros(2), "discount": np.zeros(2)}
    of_array = ot.targets(r=np.zeros(2), trace=ot.OneStep(), **window)
    of_list = ot.targets(r=[0.0, 0.0], trace=ot.OneStep(), **window)
    assert_type(of_list, np.ndarray)
    assert isinstance(of_array, np.ndarray)
    assert isinstance(of_list, np.ndarray)
