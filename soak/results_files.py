"""Damage to a results file, or edited values in it; then a report is made from it.

Every number of the report must be the same, or the file must be refused.
"""

import random
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

import damage
import reference
from children import Case, Outcome, one_line

KINDS = (damage.flip,) * 8 + (damage.cut, damage.hole, damage.hole, damage.longer, damage.doubled, damage.empty)
KINDS += (damage.link, damage.fifo, damage.directory)


def cases(num: int, seed: int, home: Path) -> Iterator[Case]:
    rng = random.Random(seed)
    home = home / "results_files"
    reference.made(reference.SWEEP, home)
    reference.made(reference.REPORT, home)
    whole = reference.data(home / "report")
    for number in range(num):
        folder = Path(tempfile.mkdtemp(prefix="results-", dir=home))
        path = folder / reference.RESULTS
        shutil.copy(home / reference.RESULTS, path)
        what = _edited(path, rng) if rng.random() < 0.4 else rng.choice(KINDS)(path, rng)

        def check(done: Outcome, folder: Path = folder) -> str:
            if (wrong := one_line(done)) or done.code != 0:
                return wrong
            return "" if reference.data(folder / "report") == whole else "the numbers differ"

        clean = lambda folder=folder: shutil.rmtree(folder)  # noqa: E731
        yield Case(what, reference.REPORT, folder, check, clean=clean, number=number)


def _edited(path: Path, rng: random.Random) -> str:
    """Change one value of one row of one table through SQLite."""
    connection = sqlite3.connect(path)
    try:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        filled = [name for name in tables if connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0]]
        table = rng.choice(filled)
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        rows = [row for (row,) in connection.execute(f"SELECT rowid FROM {table}")]
        column = rng.choice(columns)
        row = rng.choice(rows)
        value = rng.choice(damage.ODD)
        if not isinstance(value, int | float | str | None) or (isinstance(value, int) and abs(value) > 2**63 - 1):
            value = str(value)
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (value, row))
        connection.commit()
    except sqlite3.Error as error:  # a constraint
        return f"refused by SQLite: {error}"
    finally:
        connection.close()
    return f"{table}.{column} = {value!r:.20}"
