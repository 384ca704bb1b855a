"""The JAX backend: pure functions that work inside `jit`, `vmap`, `grad` and `scan`.

The recursion is linear, G_t = b_t + m_t G_{t+1}, so it can be computed step by step (`lax.scan`) or as a tree
(`lax.associative_scan`): O(n) steps of little work, or O(log n) steps of more. `_fold` uses the form that was
measured to be faster; docs/returns.md has the table.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from offtrace.arrays import Array, expectation, is_concrete, joint_product, lead, product, take_action
from offtrace.likelihoods import TOLERANCE
from offtrace.returns import checks
from offtrace.returns import numpy as on_cpu
from offtrace.returns.window import (
    BOOLEAN,
    INTEGER,
    Window,
    actions_taken,
    check_given,
    coefficients,
    likelihoods_of,
    shape,
    value_of_taken,
    without_unread_rows,
)
from offtrace.traces import TRACES, Trace
from offtrace.traces.beta import BetaState, advance
from offtrace.traces.parameters import register_with_jax

for _cls in TRACES.values():
    register_with_jax(_cls)

MOST_AT_ONCE = 32
"""On a GPU, longer rows are not read faster at once."""


def targets(given: Window, trace: Trace, *, validate: bool, stop_gradient: bool) -> Array:
    """Return Q(x_t, a_t) + Δ_t for every row of a window."""
    window, tol = ready(given)
    shape(window)
    check_given(window, trace)
    is_ours = type(trace) in TRACES.values()  # a user's code may not be traceable, so it is called outside `jit`
    validate = validate and is_concrete(*window)
    if validate:
        on_host = Window(*(None if value is None else np.asarray(value) for value in window))
        checks.check(on_host, trace, tol=tol)
    if not stop_gradient:
        window = without_unread_rows(window)
    if not trace.markov:
        out = _trajectory_aware(window, trace) if is_ours else _any_trajectory_aware(window, trace)
    elif is_ours and not validate:
        out = _targets(window, trace)
    else:
        c = _coefficients(window, trace) if is_ours else coefficients(window, trace)
        c = step_array("c", c, window)
        if validate and is_concrete(c):
            checks.check_coefficients(on_host, trace, np.asarray(c), tol=tol)
        out = _targets_given(window, c)
    if validate and is_concrete(out):
        checks.check_result(on_host, np.asarray(out))
    return lax.stop_gradient(out) if stop_gradient else out


def corrections(given: Window, c: Array, *, validate: bool) -> Array:
    """Return Δ_t for every row of a window, from given coefficients."""
    window, _ = ready(given)
    shape(window)
    c = step_array("c", c, window)
    if validate and is_concrete(c, *window):
        on_host = Window(*(None if value is None else np.asarray(value) for value in window))
        checks.check_steps(on_host, np.asarray(c))
    return _corrections(window, c)


_coefficients = jax.jit(coefficients)


@jax.jit
def _targets(window: Window, trace: Any) -> Array:
    window = _with_rows_read(window, with_pi_a=trace.needs_pi)
    return _targets_given(window, jnp.asarray(coefficients(window, trace), window.r.dtype))


@jax.jit
def _targets_given(window: Window, c: Array) -> Array:
    window = _with_rows_read(window, with_pi_a=False)
    window, c = _cut(window, c)
    ahead = product(window.discount[:-1], c[1:])
    one_step = _one_step(window)
    before_last = one_step[:-1] - product(ahead, value_of_taken(window)[1:])
    return _finish(window, _fold(ahead, before_last, one_step[-1:]))


@jax.jit
def _corrections(window: Window, c: Array) -> Array:
    window, c = _cut(window, c)
    delta = _one_step(window) - window.q_a
    return _finish(window, _fold(product(window.discount[:-1], c[1:]), delta[:-1], delta[-1:]))


def _trajectory_aware_targets(window: Window, trace: Any) -> Array:
    """The double sum, all starts at once: at lag k, start s looks at step s + k, so rows move up by one."""
    window, _ = _cut(window, window.r)
    goes_on = jnp.ones_like(window.r, bool) if window.reset is None else ~window.reset
    goes_on = goes_on if window.mask is None else goes_on & window.mask
    one_step = _one_step(window)
    ratios = likelihoods_of(window).log_ratio()
    one = jnp.ones_like(one_step)
    lambdas = jnp.broadcast_to(lead(jnp.asarray(trace.lambda_, one.dtype), one.ndim), one.shape)

    def at_lag(state: tuple, _: None) -> tuple[tuple, None]:
        discount, delta, ratios, lambdas, goes_on, reach, betas, total = state
        reach = jnp.where(_next(goes_on), product(reach, discount), 0)
        discount, delta, ratios = _next(discount), _next(delta), _next(ratios)
        lambdas, goes_on = _next(lambdas), _next(goes_on)
        betas = advance(trace, jnp, betas, log_ratio=ratios, lambda_=lambdas)
        total = total + product(product(reach, betas.beta), delta)
        return (discount, delta, ratios, lambdas, goes_on, reach, betas, total), None

    delta = one_step - value_of_taken(window)
    betas = BetaState.start(jnp, one_step)
    state = (window.discount, delta, ratios, lambdas, goes_on, one, betas, one_step)
    if one_step.shape[0] > 1:
        state, _ = lax.scan(at_lag, state, None, length=one_step.shape[0] - 1)
    return _finish(window, state[-1])


_any_trajectory_aware = _trajectory_aware_targets
_trajectory_aware = jax.jit(_trajectory_aware_targets)


def _fold(m: Array, b: Array, last: Array) -> Array:
    """Solve G_t = b_t + m_t G_{t+1} for n rows, the last of which is given: m and b (n−1, …), last (1, …)."""
    if b.shape[0] == 0:
        return last
    on_cpu_form = _step_by_step if b.shape[0] + 1 < 4096 else _as_tree
    return lax.platform_dependent(m, b, last, cpu=on_cpu_form, default=_as_tree)


def _step_by_step(m: Array, b: Array, last: Array) -> Array:
    def step(later: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
        now = row[1] + product(row[0], later)
        return now, now

    return jnp.concatenate([lax.scan(step, last[0], (m, b), reverse=True)[1], last])


def _as_tree(m: Array, b: Array, last: Array) -> Array:
    def join(later: tuple[Array, Array], earlier: tuple[Array, Array]) -> tuple[Array, Array]:
        return joint_product(earlier[0], later[0]), earlier[1] + joint_product(earlier[0], later[1])

    m, b = jnp.concatenate([m, jnp.zeros_like(last)]), jnp.concatenate([b, last])
    return lax.associative_scan(join, (m, b), reverse=True)[1]


def _with_rows_read(window: Window, *, with_pi_a: bool) -> Window:
    """Return the window with what is read of the rows of Q and π: `expected_q`, `q_a` and, if wanted, `pi_a`."""
    if window.expected_q is not None or window.q is None or window.pi is None or window.a is None:
        return window
    names = ["expected_q"]
    if window.q_a is None:
        names.append("q_a")
    if with_pi_a and window.pi_a is None and window.log_pi_a is None:
        names.append("pi_a")
    read = _read_at_once if _is_for_gpu() and window.q.shape[-1] <= MOST_AT_ONCE else _read_apart
    return window._replace(**read(window.q, window.pi, actions_taken(window), names=names))


def _is_for_gpu() -> bool:
    """Return whether JAX's default device is a GPU. Both forms give the same numbers, so only speed depends on it.

    With `lax.platform_dependent` instead, a gradient outside of `jit` would keep what both forms need.
    """
    device: Any = jax.config.jax_default_device  # ty: ignore[missing-attribute]
    if device is None:
        return jax.default_backend() == "gpu"
    return getattr(device, "platform", device) in ("gpu", "cuda", "rocm")


def _read_apart(q: Array, pi: Array, a: Array, *, names: list[str]) -> dict[str, Array]:
    """Read rows for the expectation, and the entries of the actions taken."""
    found = {"expected_q": expectation(q[1:], pi[1:])}
    if "q_a" in names:
        found["q_a"] = take_action(q[:-1], a)
    if "pi_a" in names:
        found["pi_a"] = take_action(pi[:-1], a)
    return found


def _read_at_once(q: Array, pi: Array, a: Array, *, names: list[str]) -> dict[str, Array]:
    """Read rows once on a GPU, by sums over them: XLA would read them again for the actions taken.

    state           x_0   x_1   …   x_{n−1}   x_n
    expected_q       ·     0    …    n−2      n−1       step of the entry
    q_a, pi_a        0     1    …    n−1       ·
    """
    num_actions = q.shape[-1]
    is_valid = (a >= 0) & (a < num_actions)
    last = jnp.full_like(a[:1], -1)
    actions = lax.broadcasted_iota(a.dtype, (1,) * a.ndim + (num_actions,), a.ndim)
    is_taken = jnp.concatenate([a, last])[..., None] == actions
    is_successor = lead(jnp.arange(q.shape[0]) > 0, q.ndim)  # what is not read of state 0 must not reach a gradient
    cells = {"expected_q": product(pi, jnp.where(is_successor, q, 0))}
    if "q_a" in names:
        cells["q_a"] = jnp.where(is_taken, q, 0)
    if "pi_a" in names:
        cells["pi_a"] = jnp.where(is_taken, pi, 0)
    found = _sums(cells)
    taken = {name: jnp.where(is_valid, found[name][:-1], jnp.nan) for name in names[1:]}
    return {"expected_q": found["expected_q"][1:], **taken}


@jax.custom_jvp
def _sums(cells: dict[str, Array]) -> dict[str, Array]:
    """Return sums over the last axis.

    On a GPU, XLA makes one kernel of them if the length of a row divides 32, the threads of a warp. For other rows it
    makes a kernel for each sum, unless they are one operation.
    """
    arrays = tuple(cells.values())
    if 32 % arrays[0].shape[-1] == 0:
        return {name: values.sum(-1) for name, values in cells.items()}
    zeros = tuple(jnp.zeros((), values.dtype) for values in arrays)
    found = lax.reduce(arrays, zeros, lambda x, y: tuple(map(jnp.add, x, y)), (arrays[0].ndim - 1,))
    return dict(zip(cells, found, strict=True))


@_sums.defjvp
def _jvp_of_sums(cells: tuple, tangents: tuple) -> tuple:
    """JAX cannot differentiate `lax.reduce` in reverse mode."""
    return _sums(*cells), {name: values.sum(-1) for name, values in tangents[0].items()}


def _next(rows: Array) -> Array:
    """Return the rows moved up by one: row t+1 in row t, zeros in the last."""
    return jnp.concatenate([rows[1:], jnp.zeros_like(rows[:1])])


def _one_step(window: Window) -> Array:
    """Return r_t + discount_t E_π Q(x_{t+1}, ·)."""
    expected = window.expected_q
    if expected is None:
        expected = expectation(window.q[1:], window.pi[1:])
    return window.r + product(window.discount, expected)


def _cut(window: Window, c: Array) -> tuple[Window, Array]:
    """Return the window with zeros in masked rows, and c with zeros where a trajectory ends."""
    if window.reset is not None:
        c = jnp.where(window.reset, 0, c)
    if window.mask is None:
        return window, c
    keep = {name: jnp.where(window.mask, getattr(window, name), 0) for name in ("r", "discount")}
    if window.q_a is not None:
        keep["q_a"] = jnp.where(window.mask, window.q_a, 0)
    return window._replace(**keep), jnp.where(window.mask, c, 0)


def _finish(window: Window, rows: Array) -> Array:
    return rows if window.mask is None else jnp.where(window.mask, rows, 0)


def ready(given: Window) -> tuple[Window, float]:
    """Return JAX arrays of the widest float dtype given, at least float32; and the tolerance for rounding."""
    values = [None if v is None else _readable(name, v) for name, v in zip(Window._fields, given, strict=True)]
    floats = [v.dtype for v in values if v is not None and jnp.issubdtype(v.dtype, jnp.floating)]
    tol = max((TOLERANCE.get(dtype.name, 1e-6) for dtype in floats), default=1e-4)
    dtype = jnp.result_type(jnp.float32, *floats)
    for i, (name, value) in enumerate(zip(Window._fields, values, strict=True)):
        if value is None or name in BOOLEAN:
            continue
        if name not in INTEGER:
            values[i] = value.astype(dtype)
        elif value.dtype.itemsize < 4:
            values[i] = value.astype(jnp.int32)
    return Window(*values), tol


def step_array(name: str, value: Any, window: Window) -> Array:
    """Return an array of one number per step in the window's dtype."""
    array = _readable(name, value).astype(window.r.dtype)
    if array.shape != window.r.shape:
        raise ValueError(f"`{name}` must have the shape of `r`, {window.r.shape}; got {array.shape}.")
    return array


def _readable(name: str, value: Any) -> Array:
    """Return an argument as a JAX array after checking its dtype."""
    if isinstance(value, (np.ndarray, list, tuple)):
        value = on_cpu._readable(name, value)
        value = value.astype(value.dtype.newbyteorder("="))
        if name in INTEGER:  # without x64, JAX would wrap large ones around to 32 bits
            value = np.clip(value, -1, np.iinfo(np.int32).max).astype(np.int32)
    try:
        value = jnp.asarray(value)
    except (TypeError, ValueError):
        raise TypeError(f"`{name}` must be a regular array of real numbers.") from None
    if name in INTEGER and not jnp.issubdtype(value.dtype, jnp.integer):
        raise TypeError(f"`{name}` must hold whole numbers, the indices of actions; got dtype {value.dtype}.")
    if name in BOOLEAN and value.dtype != bool:
        raise TypeError(f"`{name}` must be boolean; got dtype {value.dtype}. Use `{name}.astype(bool)`.")
    if jnp.issubdtype(value.dtype, jnp.complexfloating):
        raise TypeError(f"`{name}` must hold real numbers; got dtype {value.dtype}.")
    return value
