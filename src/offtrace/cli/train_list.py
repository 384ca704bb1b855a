"""`offtrace train --list`: what can be trained, and what is installed."""

from rich.text import Text

from offtrace.cli.extras import AGENT, missing, remedy
from offtrace.cli.streams import Console, print_json
from offtrace.cli.tables import new_table

OWN = (
    "Your own: my_module:my/Env-v0, an id that my_module registers, or my_module:MyEnv, a class or a function. The "
    "module is installed, or in the current folder. Actions must be discrete."
)


def print_environments(*, as_json: bool) -> None:
    """Print the names of all environments, by suite, and how to install those that are missing."""
    from offtrace.environments.catalogue import catalogue

    groups = catalogue()
    if as_json:
        print_json([{**group._asdict(), "install": group.install or None} for group in groups])
        return
    console = Console()
    table = new_table()
    for name in ("suite", "installed", "environments"):
        table.add_column(name, no_wrap=name != "environments")
    for group in groups:
        prefix = f"{group.suite}/"
        words = [name.removeprefix(prefix) for name in group.names]
        is_suite = all(name.startswith(prefix) for name in group.names)
        listed = ", ".join(words)
        if len(words) > 20:
            listed = f"{len(words)} games: {listed}"
        state = Text("yes", style="green")
        if not group.installed:
            state = Text("no", style="yellow")
            listed += f"\n{group.install}"
        table.add_row(Text(prefix if is_suite else group.suite), state, Text(listed))
    console.print(table)
    console.print()
    console.print(Text(OWN, style="dim"))
    if absent := missing(AGENT):
        console.print(Text(f"Training needs {remedy(absent)}", style="yellow"))
