"""Input checks of a sweep, before anything is written."""

from collections.abc import Sequence
from contextlib import suppress

from offtrace.agent.settings import check_trace, explain_missing_package, program_spec
from offtrace.agent.spec import Plan
from offtrace.environments import NAMES, with_options


def check_runs(specs: Sequence[Plan], *, here: bool = True) -> None:
    """Raise the error that training would raise, for settings that do not fit together, traces and environments.

    Each environment is made once. With `here=False`, for a cluster, packages that are missing on this machine are no
    error: its nodes have their own.
    """
    for spec in specs:
        program_spec(spec)
    for spec in {repr((spec.trace, spec.trace_options)): spec for spec in specs}.values():
        check_trace(spec)
    for spec in {repr((spec.env, spec.options)): spec for spec in specs}.values():
        if here:
            with explain_missing_package(spec):
                make = with_options(spec.env, spec.options)
                if spec.env.startswith("gymnasium/"):
                    make(num_actors=1, seed=spec.seed).close()
        elif spec.env not in NAMES:  # making a known one with pgx would start an accelerator here
            with suppress(ImportError):
                with_options(spec.env, spec.options)
