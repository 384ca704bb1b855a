"""The table style of all commands, and cells that several of them have."""

from rich import box
from rich.table import Table
from rich.text import Text

VERDICT_STYLES = {"holds": "green", "does not hold": "red", "cannot tell": "dim"}


def new_table(title: str = "", caption: str = "", *, is_dense: bool = False) -> Table:
    """Return an empty table: a line under the header, no frame, title and caption at the left.

    Columns are two spaces apart, or one if the table is dense.
    """
    return Table(
        title=Text(title, style="bold") if title else None,
        caption=Text(caption, style="dim") if caption else None,
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 0 if is_dense else 1, 0, 0),
    )
