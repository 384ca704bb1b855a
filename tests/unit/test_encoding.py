"""Observations and actions that are not arrays and numbers: what is expected is written out by hand."""

import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from builders.games import newest
from gymnasium import spaces
from loops import each

from offtrace.environments import finding, full_name, own, reference
from offtrace.environments.encoding import count_actions, encode, nth_action, observation_box
from offtrace.environments.finding import find
from offtrace.environments.gymnasium import GymnasiumRows

MIXED = spaces.Dict(
    b=spaces.Box(-1, 1, (2,), np.float32), a=spaces.Tuple([spaces.Discrete(2, start=5), spaces.MultiBinary(2)])
)
"""A dict's order is its own: Gymnasium sorts the keys of a plain dict, and keeps the order of keywords."""
OBSERVATIONS = [
    (spaces.Discrete(4), 2, [0, 0, 1, 0], bool),
    (spaces.Discrete(3, start=-1), -1, [1, 0, 0], bool),
    (spaces.MultiDiscrete([2, 3]), np.array([1, 2]), [0, 1, 0, 0, 1], bool),
    (spaces.MultiBinary(3), np.array([1, 0, 1], np.int8), [1, 0, 1], bool),
    (spaces.Tuple([spaces.Discrete(2), spaces.Discrete(2)]), (1, 0), [0, 1, 1, 0], bool),
    (spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 9, (2, 1))]), (0, np.float32([[3], [4]])), [1, 0, 3, 4], float),
]


@each(("space", "value", "expected", "kind"), OBSERVATIONS)
def test_observations_are_vectors(space: Any, value: Any, expected: list[float], kind: type) -> None:
    box = observation_box(space, "x")
    encoded = encode(space, box, value)
    assert encoded.tolist() == expected
    assert (box.shape, encoded.dtype) == ((len(expected),), box.dtype)
    assert np.issubdtype(box.dtype, np.bool_ if kind is bool else np.floating)


def test_parts_of_a_dict_are_in_its_order() -> None:
    value = {"a": (6, np.array([0, 1], np.int8)), "b": np.float32([0.5, -0.5])}
    by_key = {"a": [0, 1, 0, 1], "b": [0.5, -0.5]}
    expected = [number for key in MIXED for number in by_key[key]]
    assert encode(MIXED, observation_box(MIXED, "x"), value).tolist() == expected


WRONG = [
    (spaces.Discrete(4), -1, "in Discrete(4); got -1"),  # Gymnasium's `flatten` would take the last one
    (spaces.Discrete(4), 4, "in Discrete(4); got 4"),
    (spaces.MultiDiscrete([2, 3]), np.array([2, 0]), "in MultiDiscrete([2 3])"),  # … the first of the second entry
    (spaces.Tuple([spaces.Discrete(2)]), (0, 0), "a tuple of 1 parts"),
    (spaces.Dict(a=spaces.Discrete(2)), {"b": 0}, "a dict with the keys a"),
    (spaces.Dict(a=spaces.Box(0, 1, (2,))), {"a": np.zeros(3, np.float32)}, "its space's shape, (2,); got (3,)"),
]


@each(("space", "value", "text"), WRONG)
def test_observations_outside_of_their_space(space: Any, value: Any, text: str) -> None:
    with pytest.raises(ValueError) as raised:
        encode(space, observation_box(space, "x"), value)
    assert text in str(raised.value)


ACTIONS = [
    (spaces.MultiDiscrete([3, 2]), [[0, 0], [0, 1], [1, 0], [1, 1], [2, 0], [2, 1]]),
    (spaces.MultiDiscrete([1, 2], start=[7, 3]), [[7, 3], [7, 4]]),
    (spaces.MultiBinary(2), [[0, 0], [0, 1], [1, 0], [1, 1]]),
    (spaces.Tuple([spaces.Discrete(2, start=4), spaces.Discrete(2)]), [(4, 0), (4, 1), (5, 0), (5, 1)]),
    (spaces.Dict(a=spaces.Discrete(1), b=spaces.Discrete(2)), [{"a": 0, "b": 0}, {"a": 0, "b": 1}]),
]


@each(("space", "expected"), ACTIONS)
def test_combinations_of_actions_are_numbered(space: Any, expected: list) -> None:
    assert count_actions(space, "x") == len(expected)
    made = [nth_action(space, number) for number in range(len(expected))]
    assert all(space.contains(action) for action in made)
    assert [action.tolist() if isinstance(action, np.ndarray) else action for action in made] == expected


REFUSED_ACTIONS = [
    (spaces.MultiDiscrete([16, 17]), "at most 256 actions; x has MultiDiscrete([16 17]), which are 272 combinations"),
    (spaces.MultiBinary(40), "1,099,511,627,776 combinations"),
    (
        spaces.Box(-1, 1, (2,)),
        "gymnasium.wrappers.DiscretizeAction. For continuous actions, use `ot.targets`",
    ),
    (spaces.Tuple([spaces.Discrete(2), spaces.Box(-1, 1)]), "actions that can be numbered"),
    (spaces.Text(3), "actions that can be numbered; x has Text("),
]


@each(("space", "text"), REFUSED_ACTIONS)
def test_actions_that_cannot_be_numbered(space: Any, text: str) -> None:
    with pytest.raises(ValueError) as raised:
        count_actions(space, "x")
    assert text in str(raised.value)


@each("space", [spaces.Text(3), spaces.Sequence(spaces.Discrete(2)), spaces.Dict(a=spaces.Text(3))])
def test_observations_that_are_no_numbers(space: Any) -> None:
    with pytest.raises(ValueError, match="`env` must have observations that consist of numbers; x has"):
        observation_box(space, "x")


def test_one_hot_of_many_states_is_refused() -> None:
    with pytest.raises(ValueError, match="1 to 100,000 numbers; x has Discrete\\(1000000\\), which are 1,000,000"):
        observation_box(spaces.Discrete(1_000_000), "x")


def test_rows_of_toy_text() -> None:
    """The rows of two actors against plain environments: the one-hot vector of the state, or of each part."""
    for id_, size in (("FrozenLake-v1", 16), (newest("Taxi"), 500), ("Blackjack-v1", 32 + 11 + 2)):
        with GymnasiumRows(id_, 2, 3) as rows:
            actor = rows.begin()
            assert rows.observation == ((size,), np.bool_)
            assert rows.notes == (f"Observations are {note(id_)}, {size} numbers.",)
            for i, env in enumerate(map(gymnasium.make, [id_, id_])):
                state, _ = env.reset(seed=3 + i)
                assert np.flatnonzero(actor.observation[i]).tolist() == ones(state)
                state, reward, *_ = env.step(1)
                after, row, _ = rows.advance(np.array([1, 1]))
                if i == 0:  # the other actor has taken two steps by then
                    assert np.flatnonzero(after.observation[i]).tolist() == ones(state)
                    assert row.reward[i] == reward


def note(id_: str) -> str:
    if id_ == "Blackjack-v1":
        return "Tuple(Discrete(32), Discrete(11), Discrete(2)): flattened, discrete parts one-hot"
    return f"{gymnasium.make(id_).observation_space}: one-hot"


def ones(state: Any) -> list[int]:
    if isinstance(state, tuple):  # Blackjack: the sum, the dealer's card, a usable ace
        return [state[0], 32 + state[1], 32 + 11 + state[2]]
    return [state]


# -- names ---------------------------------------------------------------------------------------------------


@each(
    ("name", "full", "referred"),
    [
        ("my/Env-v0", "gymnasium/my/Env-v0", ""),
        ("my_module:my/Env-v0", "gymnasium/my_module:my/Env-v0", "my_module:my/Env-v0"),
        ("my_module:MyEnv", "gymnasium/my_module:MyEnv", "my_module:MyEnv"),
        ("mdp/chain", "mdp/chain", ""),
        ("pocket/no_such", "pocket/no_such", ""),
    ],
)
def test_full_names(name: str, full: str, referred: str) -> None:
    assert full_name(name) == full_name(full) == full
    assert reference(name) == reference(full) == referred


class Given(gymnasium.Env):
    """An environment of this module."""


def test_names_of_values() -> None:
    assert own.name_of(gymnasium.make("CartPole-v1")) == "gymnasium/CartPole-v1"
    assert own.name_of(gymnasium.make("CartPole-v1", render_mode="rgb_array")) == "gymnasium/CartPole-v1"
    for value, text in (
        (lambda: Given(), "gymnasium/<lambda>"),
        (gymnasium.make("CartPole-v1", sutton_barto_reward=True), "gymnasium/CartPole-v1"),
        (gymnasium.wrappers.TimeLimit(gymnasium.make("CartPole-v1"), 9), "gymnasium/CartPole-v1"),
    ):
        name = own.name_of(value)
        assert isinstance(name, own.LocalName)
        assert (name, full_name(name)) == (text, name)
        with pytest.raises(ValueError, match="`env` must have a name to be saved"):
            own.check_saveable(name)


class Unrecorded(gymnasium.Wrapper):
    """A wrapper that does not record its arguments."""


@each(
    ("value", "text"),
    [
        (Given(), r"was not made by `gymnasium.make`. Pass its class, `env=Given`"),
        (Unrecorded(gymnasium.make("CartPole-v1")), "its wrapper Unrecorded does not record its arguments"),
        (3, "`env` must be the name of an environment, its class, a function that makes one"),
    ],
)
def test_values_that_cannot_be_made_again(value: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        own.name_of(value)


# -- plug-ins ------------------------------------------------------------------------------------------------


def plugin(folder: Path, name: str) -> None:
    """Make a package that registers `NAME/Lake-v0` through an entry point, and leaves a file when it is imported."""
    (folder / f"{name}_package.py").write_text(
        "from pathlib import Path\nimport gymnasium\n"
        "Path(__file__).with_suffix('.imported').touch()\n"
        "def register():\n"
        "    gymnasium.register('Lake-v0', 'gymnasium.envs.toy_text.frozen_lake:FrozenLakeEnv')\n"
    )
    info = folder / f"{name}_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}_package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[gymnasium.envs]\n{name} = {name}_package:register\n")


def test_ids_of_installed_plug_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed, here = tmp_path / "installed", tmp_path / "here"
    for folder, name in ((installed, "plugged"), (here, "hostile")):
        folder.mkdir()
        plugin(folder, name)
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", [*filter(None, sys.path), str(installed), str(here)])
    told: list[str] = []
    try:
        assert find("plugged/Lake-v0", told.append).id == "plugged/Lake-v0"
        assert told == ["Loaded the plug-in plugged_package:register for Gymnasium."]
        with pytest.raises(ValueError, match=r"`offtrace train --list` shows .* my_module:MyEnv for a class"):
            find("hostile/Lake-v0")
        assert not (here / "hostile_package.imported").exists()  # the current folder is not installed
    finally:
        gymnasium.registry.pop("plugged/Lake-v0", None)
        sys.modules.pop("plugged_package", None)
        finding._loaded.clear()
