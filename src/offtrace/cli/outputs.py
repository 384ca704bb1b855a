"""The folder that a command writes pictures to."""

from pathlib import Path


def prepare_output(output: Path) -> None:
    """Make the folder and check that pictures can be drawn, before anything is computed."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        import offtrace.report.charts  # noqa: F401
    except OSError as error:
        raise ValueError(
            f"`output` must be a folder that can be made; got {str(output)!r} ({error.strerror})."
        ) from None
    except ImportError as error:
        raise ValueError(f"`output`: {error}") from None
