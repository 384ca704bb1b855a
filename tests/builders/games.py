"""Gymnasium's games by name."""

from gymnasium.envs.registration import find_highest_version


def newest(name: str) -> str:
    """Return the id of the newest version of a game; the versions differ from one release of Gymnasium to another."""
    return f"{name}-v{find_highest_version(None, name)}"
