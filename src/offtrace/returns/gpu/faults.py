"""What happens after a kernel has seen a number that may break a rule."""

import torch
from torch import Tensor

from offtrace.returns import checks
from offtrace.returns import torch as on_torch
from offtrace.returns.window import Window, coefficients
from offtrace.traces import Trace


def is_capturing() -> bool:
    """Return whether a CUDA graph is captured, which must not wait for the device: then nothing is checked."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def raise_fault(given: Window, trace: Trace, out: Tensor, c: Tensor | None = None) -> None:
    """Raise the error for the rule that is broken, if one is; `c` if it was computed."""
    with torch.no_grad():
        window, tolerance = on_torch.ready(given)
        checks.check(window, trace, tol=tolerance)
        if trace.markov:
            if c is None:
                c = coefficients(window, trace)
            checks.check_coefficients(window, trace, c, tol=tolerance)
        checks.check_result(window, out)
