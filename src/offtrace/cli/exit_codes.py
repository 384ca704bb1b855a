"""Exit codes of the command line."""

DONE = 0
WRONG_INPUT = 2
BROKEN = 3
"""Something failed while running; what was saved can be resumed."""
INTERRUPTED = 130
