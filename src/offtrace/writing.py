"""Files written whole or not at all."""

import os
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Generator[Path, None, None]:
    """Yield a temporary path beside `path`, which replaces `path` at the end and is removed after an error.

    A reader sees the old file or the new one, never a part. The suffix is kept: some programs go by it.
    """
    temporary = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    temporary.unlink(missing_ok=True)  # left by a killed process of the same number, or a link put there
    try:
        yield temporary
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def write_whole(path: Path, pieces: Iterable[bytes], *, sync: bool = False) -> None:
    """Write a file whole or not at all. A link at `path` is replaced, not followed.

    With `sync` the content is on the disk before the old file is replaced: it survives a power failure.
    """
    with replacing(path) as temporary, open(temporary, "xb") as file:
        file.writelines(pieces)
        if sync:
            file.flush()
            os.fsync(file.fileno())
