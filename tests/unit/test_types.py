"""Static types of the public functions: `make check` fails if a type checker infers anything else."""

from typing import assert_type

import numpy as np

import offtrace as ot


def test_targets_of_arrays_and_lists_are_arrays() -> None:
    array = ot.targets(r=np.zeros(2), q_a=np.zeros(2), expected_q=np.zeros(2), discount=np.zeros(2), trace="one_step")
    of_list = ot.targets(r=[0.0, 0.0], q_a=[0.0, 0.0], expected_q=[0.0, 0.0], discount=[0.0, 0.0], trace="one_step")
    assert_type(of_list, np.ndarray)
    array.sum()  # an unknown attribute would be an error here
    assert isinstance(array, np.ndarray)
    assert isinstance(of_list, np.ndarray)


def types_of_train(spec: ot.TrainSpec) -> None:
    assert_type(ot.train(spec), ot.Result)
    assert_type(ot.train([spec, spec]), list[ot.Result])
