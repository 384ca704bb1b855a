"""Input checks of a sweep, before anything is written."""

from collections.abc import Callable, Sequence
from contextlib import suppress

from offtrace.agent.settings import check_trace, explain_missing_package, program_spec
from offtrace.agent.spec import Plan
from offtrace.environments import NAMES, with_options
from offtrace.environments.own import check_saveable


def check_runs(specs: Sequence[Plan], *, here: bool = True, tell: Callable[[str], None] = lambda _: None) -> None:
    """Raise the error that training would raise, for settings that do not fit together, traces and environments.

    Each environment is made once. With `here=False`, for a cluster, packages that are missing on this machine are no
    error: its nodes have their own. `tell` is called with a line for each module that is imported, and with what is
    said about observations or actions that are encoded.
    """
    for spec in specs:
        check_saveable(spec.env)
        program_spec(spec)
    for spec in {repr((spec.trace, spec.trace_options)): spec for spec in specs}.values():
        check_trace(spec)
    for spec in {repr((spec.env, spec.options)): spec for spec in specs}.values():
        if here:
            with explain_missing_package(spec):
                make = with_options(spec.env, spec.options, tell)
                if spec.env.startswith("gymnasium/"):
                    with make(num_actors=1, seed=spec.seed) as rows:
                        for note in rows.notes:
                            tell(f"{spec.env.removeprefix('gymnasium/')}: {note}")
        elif spec.env not in NAMES:  # making a known one with pgx would start an accelerator here
            with suppress(ImportError):
                with_options(spec.env, spec.options, tell)
