"""Files written whole or not at all."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from offtrace.writing import replacing, write_whole


def breaking() -> Iterator[bytes]:
    yield b"half of it"
    raise OSError("no space left")


@pytest.mark.parametrize("sync", [False, True])
def test_a_file_is_there_whole_or_as_it_was(tmp_path: Path, sync: bool) -> None:
    path = tmp_path / "numbers.json"
    write_whole(path, [b"the ", b"old one"], sync=sync)
    with pytest.raises(OSError, match="no space left"):
        write_whole(path, breaking(), sync=sync)
    assert path.read_bytes() == b"the old one"
    write_whole(path, [b"new"], sync=sync)
    assert path.read_bytes() == b"new"
    assert [*tmp_path.iterdir()] == [path]


def test_links_are_replaced_and_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("thesis")
    path = tmp_path / "film.gif"
    path.symlink_to(victim)
    with replacing(path) as temporary:
        assert (temporary.parent, temporary.suffix) == (tmp_path, ".gif")
        name = temporary.name
        temporary.write_bytes(b"")
    assert not path.is_symlink()
    path.unlink()
    path.symlink_to(victim)
    (tmp_path / name).symlink_to(victim)
    write_whole(path, [b"new"])
    assert victim.read_text() == "thesis"
    assert not path.is_symlink()
    assert path.read_bytes() == b"new"
