"""From the arguments of `targets` to a job for the kernels: which trace, which tensors, which layout in memory.

Nothing is copied if all tensors are time-major, (n, …), or all are views of batch-major ones, (…, n). Dtypes stay as
they are: the kernels read float16, bfloat16, float32 and float64, and compute in float32 or float64.
"""

import torch
from torch import Tensor

from offtrace.returns.gpu.launch import MOST_ACTIONS, MOST_STEPS, READ_MU, TRAJECTORY_AWARE, Job
from offtrace.returns.gpu.rows import Inputs
from offtrace.returns.torch import step_tensor
from offtrace.returns.window import (
    BOOLEAN,
    INTEGER,
    WITH_ACTIONS,
    Window,
    coefficients,
    likelihoods_of,
    without_unread_rows,
)
from offtrace.traces import Trace, formulas


def job_for(window: Window, trace: Trace, *, tolerance: float | None) -> Job | None:
    """Return the job for a window of tensors on one device; None if the kernels do not serve it."""
    kind = formulas.KINDS.get(type(trace), formulas.GIVEN)
    rows = window.pi if window.q is None else window.q
    if window.r.numel() == 0 or (rows is not None and rows.shape[-1] > MOST_ACTIONS):
        return None
    if window.r.shape[0] > MOST_STEPS:
        return None
    if not trace.markov and kind == formulas.GIVEN:  # a user's own β
        return None
    parameter = getattr(trace, formulas.PARAMETERS.get(type(trace), ""), 1.0)
    if not isinstance(parameter, int | float):
        return None
    c = None
    if kind == formulas.GIVEN:
        wide = widened(window)
        if trace.reads_q:
            wide = without_unread_rows(wide)
        c = step_tensor("c", coefficients(wide, trace), wide)
    pi_a, mu_a, logs = _likelihoods(window, kind)
    number, lambdas = _lambda_of(trace, kind, window.r)
    given = {
        "r": window.r,
        "discount": window.discount,
        "q": window.q,
        "pi": window.pi,
        "a": window.a,
        "q_a": window.q_a,
        "expected_q": window.expected_q,
        "pi_a": pi_a,
        "mu_a": mu_a,
        "c": c,
        "lambda_": lambdas,
        "reset": window.reset,
        "mask": window.mask,
    }
    batch_major, tensors = _in_one_layout(given)
    return Job(
        Inputs(**tensors),
        kind,
        lambda_=number,
        parameter=float(parameter),
        logs=logs,
        lambda_per_step=lambdas is not None and lambdas.ndim == 1,
        batch_major=batch_major,
        tolerance=tolerance,
        dtype=_dtype_of(window),
    )


def corrections_job(window: Window, c: Tensor, *, tolerance: float | None) -> Job:
    """Return the job for corrections from given coefficients."""
    names = ("r", "discount", "q_a", "expected_q", "reset", "mask")
    batch_major, tensors = _in_one_layout({name: getattr(window, name) for name in names} | {"c": c})
    return Job(
        Inputs(**tensors),
        formulas.GIVEN,
        batch_major=batch_major,
        corrections=True,
        tolerance=tolerance,
        dtype=_dtype_of(window),
    )


def dtype_of_coefficients(c: object, window: Window) -> torch.dtype:
    """Return the dtype in which given coefficients are read: their own if they are floats."""
    if isinstance(c, Tensor) and c.dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        return c.dtype
    return _dtype_of(window)


def _dtype_of(window: Window) -> torch.dtype:
    """Return the widest floating dtype of a window, at least float32."""
    is_double = any(value is not None and value.dtype is torch.float64 for value in window)
    return torch.float64 if is_double else torch.float32


def widened(window: Window) -> Window:
    """Return the window with all floats in the dtype of the result."""
    dtype = _dtype_of(window)
    floats = {
        name: value.to(dtype)
        for name, value in zip(window._fields, window, strict=True)
        if value is not None and name not in (*INTEGER, *BOOLEAN)
    }
    return window._replace(**floats)


def has_both_forms(window: Window) -> bool:
    """Return whether π and μ are given as probabilities and as logarithms; the kernels see one form of each."""
    is_probability = window.pi_a is not None or window.mu_a is not None
    is_logarithm = window.log_pi_a is not None or window.log_mu_a is not None
    return is_logarithm and (is_probability or window.log_pi_a is None)


def _likelihoods(window: Window, kind: int) -> tuple[Tensor | None, Tensor | None, bool]:
    """Return π(a|x) and μ(a|x) as far as they are given and read, and whether they are logarithms.

    π is passed on even if the trace does not read it, as it is checked. Where both forms are given, trajectory-aware
    traces read logarithms and the others probabilities, as in `Likelihoods`.
    """
    reads_mu = kind in READ_MU
    has_logs = window.log_pi_a is not None and (window.log_mu_a is not None or not reads_mu)
    has_probabilities = window.log_pi_a is None or window.pi_a is not None
    has_probabilities = has_probabilities and (window.mu_a is not None or not reads_mu)
    if has_logs and (kind in TRAJECTORY_AWARE or not has_probabilities):
        return window.log_pi_a, window.log_mu_a if reads_mu else None, True
    if has_probabilities:
        return window.pi_a, window.mu_a if reads_mu else None, False
    both = likelihoods_of(widened(window))  # one of each kind: both become logarithms
    return both.log_pi_a, both.log_mu_a, True


def _lambda_of(trace: Trace, kind: int, r: Tensor) -> tuple[float, Tensor | None]:
    """Return λ as a number, or as a tensor on the device: (n,), or the shape of `r`. A given c has it already."""
    if kind == formulas.GIVEN:
        return 1.0, None
    if isinstance(trace.lambda_, int | float):
        return float(trace.lambda_), None
    values = torch.as_tensor(trace.lambda_, device=r.device)
    if not values.is_floating_point():
        values = values.to(r.dtype)
    if values.ndim == 0:
        values = values.expand(r.shape[0])
    if values.ndim == 1:
        values = values.contiguous()
    return 1.0, values


def _in_one_layout(given: dict[str, Tensor | None]) -> tuple[bool, dict[str, Tensor]]:
    """Return whether the window is batch-major in memory, and its tensors, copied if they have no common layout."""
    tensors = {name: value.resolve_neg() for name, value in given.items() if value is not None}
    if all(value.is_contiguous() for value in tensors.values()):
        return False, tensors
    if all(_is_batch_major(name, value) for name, value in tensors.items()):
        return True, tensors
    return False, {name: value.contiguous() for name, value in tensors.items()}


def _is_batch_major(name: str, value: Tensor) -> bool:
    if value.ndim == 1:
        return value.is_contiguous()
    return value.movedim(0, -2 if name in WITH_ACTIONS else -1).is_contiguous()
