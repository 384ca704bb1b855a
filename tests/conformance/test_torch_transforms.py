"""`torch.compile` and `torch.func` around the targets: the same numbers and gradients as eager calls."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from builders.windows import Arrays, window, with_ends, with_invalid_masked_rows
from loops import each
from torch import Tensor
from torch.func import functional_call, grad, hessian, jacrev, jvp, vmap

import offtrace as ot
from offtrace.returns import torch as returns_torch
from offtrace.returns.torch_operator import as_tree, operator

SAME = {"rtol": 1e-12, "atol": 1e-12}
"""Sums of fewer than 100 products of numbers under 10, in another order: some 1e-14 in float64."""
CLOSE = {"rtol": 1e-6, "atol": 1e-6}
"""Central differences with steps of 1e-6: 2e-8 of rounding, for numbers under 100."""
FORWARD_MODE = pytest.mark.filterwarnings("ignore:.*torch.jit.script.*")
"""PyTorch's own import for derivatives in forward mode warns."""
VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])
COMPILES = pytest.mark.skipif(VERSION < (2, 11), reason="`torch.compile` of the targets needs PyTorch 2.11")
LAMBDAS = torch.tensor([0.0, 0.4, 1.0], dtype=torch.float64)


@dataclass(frozen=True)
class HalfRetrace(ot.Trace):
    """A user's class."""

    needs_mu = True

    def factor(self, likelihoods: Any, **_: Any) -> Tensor:
        return 0.5 * likelihoods.clipped_ratio()


@dataclass(frozen=True)
class ShortMemory(ot.TrajectoryAware):
    """A user's trajectory-aware class."""

    def next_beta(self, xp: Any, step: Any) -> Tensor:
        return step.lambda_ * xp.where(step.carried < 0.7, step.carried, 0.7)


def clipped(pi_a: Tensor, mu_a: Tensor) -> Tensor:
    """A user's function."""
    return torch.clamp(pi_a / mu_a, max=0.9)


EVERY = [cls(0.8) for cls in (*ot.TRACES.values(), HalfRetrace, ShortMemory)] + [clipped, "retrace", ot.TreeBackup]


def tensors(arrays: Arrays) -> dict[str, Tensor]:
    return {name: torch.tensor(value) for name, value in arrays.items()}


def given(n: int = 4, batch: tuple[int, ...] = (2,), *, seed: int = 0, ends: bool = True) -> dict[str, Tensor]:
    arrays = window(n, batch, seed=seed, terminated=0.2)
    return tensors(with_invalid_masked_rows(with_ends(arrays, seed)) if ends else arrays)


def total(q: Tensor, trace: Any, rest: dict[str, Tensor]) -> Tensor:
    """A loss that is not linear in the targets."""
    return (ot.targets(**rest | {"q": q}, trace=trace, stop_gradient=False) ** 2).sum()


def eager_gradient(function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    leaf = at.clone().requires_grad_()
    return torch.autograd.grad(function(leaf), leaf)[0]


def steps_of(w: dict[str, Tensor]) -> dict[str, Any]:
    return {name: w.get(name) for name in ("r", "discount", "reset", "mask")}


def corrections(w: dict[str, Tensor]) -> Tensor:
    return ot.corrections(
        **steps_of(w), q_a=w["q"][:-1, ..., 0], expected_q=w["q"][1:, ..., 1], c=w["pi"][:-1, ..., 0]
    )


def peng(w: dict[str, Tensor]) -> Tensor:
    return ot.peng_targets(**steps_of(w), q=w["q"], pi=w["pi"], lambda_=0.7, stop_gradient=False)


def n_step(w: dict[str, Tensor]) -> Tensor:
    return ot.n_step_targets(**steps_of(w), q=w["q"], pi=w["pi"], num_steps=3, stop_gradient=False)


def vtrace(w: dict[str, Tensor]) -> Tensor:
    likelihoods = {"pi_a": w["pi"][:-1, ..., 0], "mu_a": w["pi"][:-1, ..., 1]}
    return ot.vtrace_targets(**steps_of(w), v=w["q"][..., 0], **likelihoods, lambda_=0.7, stop_gradient=False)


def c_trace(w: dict[str, Tensor]) -> Tensor:
    policies = {"pi": w["pi"], "mu": w["pi"].flip(-1)}
    return ot.c_trace_targets(**steps_of(w), q=w["q"], a=w["a"], **policies, alpha=0.7, stop_gradient=False)


def with_policies(w: dict[str, Tensor]) -> Tensor:
    """With π from the library's own functions, as losses have it."""
    pi = 0.5 * ot.policies.epsilon_greedy(w["q"], 0.1) + 0.5 * ot.policies.softmax(w["q"], 2.0)
    return ot.targets(**w | {"pi": pi}, trace="retrace", stop_gradient=False)


SISTERS = [corrections, peng, n_step, vtrace, c_trace, with_policies]


# -- torch.func ----------------------------------------------------------------------------------------------


@each("trace", EVERY)
@each("ends", [True, False])
def test_grad(trace: Any, ends: bool) -> None:
    w = given(ends=ends)
    got = grad(total)(w["q"], trace, w)
    want = eager_gradient(lambda q: total(q, trace, w), w["q"])
    torch.testing.assert_close(got, want, **SAME)
    assert got.abs().max() > 0


@each("trace", [ot.Retrace(0.8), ot.ImportanceSampling(0.8), HalfRetrace(0.8), ot.RecursiveRetrace(0.8)])
@each("ends", [True, False])
def test_jacrev_against_finite_differences(trace: Any, ends: bool) -> None:
    w = given(3) if ends else tensors(window(3))
    arrays = {name: value.numpy() for name, value in w.items()}
    names = ("q", "r", "mu_a", "q_a" if ends else "discount")  # where a discount is 0, nothing behind it is read
    if ends:
        w["q_a"] = w["q"][:-1, :, 0].clone()
        arrays["q_a"] = w["q_a"].numpy()

    def targets(*values: Any) -> Any:
        library = w if isinstance(values[0], Tensor) else arrays
        chosen = dict(zip(names, values, strict=True))
        return ot.targets(**library | chosen, trace=trace, stop_gradient=False, validate=False)

    found = jacrev(targets, argnums=(0, 1, 2, 3))(*(w[name] for name in names))
    for i, jacobian in enumerate(found):
        values = [arrays[name] for name in names]
        for place in np.ndindex(*values[i].shape):
            step = np.zeros_like(values[i])
            step[place] = 1e-6
            above, below = (targets(*values[:i], values[i] + sign * step, *values[i + 1 :]) for sign in (1, -1))
            want = (above - below) / 2e-6
            np.testing.assert_allclose(jacobian[(..., *place)].numpy(), want, **CLOSE, err_msg=names[i])


@each("cls", [*ot.TRACES.values(), HalfRetrace, ShortMemory])
@each("stops", [True, False])
def test_vmap_over_lambda(cls: type[ot.Trace], stops: bool) -> None:
    w = given()
    got = vmap(lambda lambda_: ot.targets(**w, trace=cls(lambda_), stop_gradient=stops))(LAMBDAS)
    want = torch.stack([ot.targets(**w, trace=cls(float(lambda_))) for lambda_ in LAMBDAS])
    torch.testing.assert_close(got, want, **SAME)


def test_vmap_over_one_lambda_per_step() -> None:
    w = given()
    lambdas = torch.rand(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    got = vmap(lambda lambda_: ot.targets(**w, trace=ot.Retrace(lambda_)), in_dims=1)(lambdas.T)
    want = torch.stack([ot.targets(**w, trace=ot.Retrace(row)) for row in lambdas])
    torch.testing.assert_close(got, want, **SAME)


@each("function", [lambda w: ot.targets(**w, trace=ot.RBIS(0.9)), *SISTERS])
def test_vmap_over_windows_equals_a_batch_axis(function: Callable[[dict[str, Tensor]], Tensor]) -> None:
    """And one element at a time: windows without a batch axis of their own."""
    w = given(batch=(3,))
    together = function(w)
    torch.testing.assert_close(vmap(function, in_dims=1, out_dims=1)(w), together, **SAME)
    first = {name: value[:, 0] for name, value in w.items()}
    torch.testing.assert_close(together[:, 0], function(first), **SAME)


def test_vmap_over_some_arguments_and_twice() -> None:
    w = given()
    rewards = torch.stack([w["r"], 2 * w["r"], -w["r"]], -1)

    def targets(lambda_: Tensor, r: Tensor, q: Tensor) -> Tensor:
        return ot.targets(**w | {"r": r, "q": q}, trace=ot.Retrace(lambda_))

    both = vmap(vmap(targets, in_dims=(None, -1, None)), in_dims=(0, None, None))(LAMBDAS, rewards, w["q"])
    for i, lambda_ in enumerate(LAMBDAS):
        for j in range(3):
            want = targets(lambda_, rewards[..., j], w["q"])
            torch.testing.assert_close(both[i, j], want, **SAME)


def test_vmap_of_grad_in_lambda() -> None:
    w = given()

    def value(lambda_: Any) -> Any:
        return ot.targets(**w, trace=ot.Retrace(lambda_), stop_gradient=False).sum()

    inside = torch.tensor([0.2, 0.5, 0.8], dtype=torch.float64)
    want = torch.stack([(value(float(x) + 1e-6) - value(float(x) - 1e-6)) / 2e-6 for x in inside])
    torch.testing.assert_close(vmap(grad(value))(inside), want, **CLOSE)


@each("function", SISTERS)
def test_grad_of_the_other_recursions(function: Callable[[dict[str, Tensor]], Tensor]) -> None:
    w = given()

    def loss(q: Tensor) -> Tensor:
        return (function(w | {"q": q}) ** 2).sum()

    torch.testing.assert_close(grad(loss)(w["q"]), eager_gradient(loss, w["q"]), **SAME)


@FORWARD_MODE
def test_second_derivatives() -> None:
    """Targets are linear in Q where c does not depend on it, G = J q + …, so Σ G² has the Hessian 2 JᵀJ."""
    w = given()

    def loss(q: Tensor) -> Tensor:
        return total(q, ot.Retrace(0.9), w)

    j = jacrev(lambda q: ot.targets(**w | {"q": q}, trace=ot.Retrace(0.9), stop_gradient=False))(w["q"])
    j = j.reshape(w["r"].numel(), -1)
    want = (2 * j.T @ j).reshape(2 * w["q"].shape)
    torch.testing.assert_close(jacrev(grad(loss))(w["q"]), want, **SAME)
    torch.testing.assert_close(hessian(loss)(w["q"]), want, **SAME)  # forward mode over reverse mode
    eager: Any = torch.autograd.functional.hessian(loss, w["q"])
    torch.testing.assert_close(eager, want, **SAME)


def test_the_gradient_of_a_gradient_reaches_every_argument() -> None:
    """Against `gradgradcheck`, PyTorch's finite differences of the gradient; also for one step, which reads no c."""
    for n in (3, 1):
        w = given(n, (1,), seed=3)
        leaves = [w["q"][:-1, :, 0], w["q"][1:, :, 1], w["discount"], w["pi"][:-1, :, 2]]
        leaves = [leaf.nan_to_num(0.5, 0.5).clone().requires_grad_() for leaf in leaves]

        def loss(q_a: Tensor, expected_q: Tensor, discount: Tensor, c: Tensor, w: Any = w) -> Tensor:
            ends = {"reset": w["reset"], "mask": w["mask"]}
            r = torch.tanh(q_a)  # one argument computed from another
            return ot.corrections(q_a=q_a, expected_q=expected_q, r=r, discount=discount, c=c, **ends, validate=False)

        torch.autograd.gradgradcheck(loss, leaves)


@FORWARD_MODE
@each("transform", [lambda f, q: grad(f)(q), lambda f, q: jvp(f, (q,), (torch.ones_like(q),))[1]])
def test_stopped_gradients_are_stopped(transform: Callable[..., Tensor]) -> None:
    w = given()
    got = transform(lambda q: ot.targets(**w | {"q": q}, trace=ot.Retrace(0.9)).sum() + 0 * q.sum(), w["q"])
    assert not got.any()


def test_functional_call() -> None:
    w = given(ends=False)
    net = torch.nn.Linear(5, 3, dtype=torch.float64)
    observations = torch.linspace(-1, 1, 50, dtype=torch.float64).reshape(5, 2, 5)

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        q = functional_call(net, parameters, (observations,))
        chosen = q[:-1].gather(-1, w["a"][..., None])[..., 0]
        return ((chosen - ot.targets(**w | {"q": q}, trace=ot.Retrace(0.9))) ** 2).mean()

    got = grad(loss)({name: value.detach() for name, value in net.named_parameters()})
    loss(dict(net.named_parameters())).backward()
    for name, value in net.named_parameters():
        torch.testing.assert_close(got[name], value.grad, **SAME)


# -- checks --------------------------------------------------------------------------------------------------


def test_what_is_checked_inside_torch_func() -> None:
    """Shapes, dtypes and Python's numbers; of the values PyTorch itself checks the actions."""
    w = given(ends=False)

    def call(**changed: Any) -> Tensor:
        return vmap(lambda lambda_: ot.targets(**w | changed, trace=ot.Retrace(lambda_)))(LAMBDAS)

    with pytest.raises(ValueError, match="`discount` must have the shape of `r`"):
        call(discount=w["discount"][1:])
    with pytest.raises(TypeError, match=r"`mask` must be boolean.*mask.bool\(\)"):
        call(mask=torch.ones(4, 2))
    with pytest.raises(RuntimeError, match="out of bounds"):
        call(a=w["a"] + 3)
    assert call(discount=w["discount"] + 1).shape == (3, 4, 2)
    with pytest.raises(ValueError, match="`lambda_` of Retrace must be in"):
        grad(lambda q: total(q, ot.Retrace(1.5), w))(w["q"])
    lambda_ = torch.tensor(0.5, dtype=torch.float64)  # its value is not read
    assert grad(lambda q: total(q, ot.Retrace(lambda_), w))(w["q"]).isfinite().all()


def test_eager_calls_do_not_use_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("the operator was called")

    for name in ("solve", "as_tree"):
        monkeypatch.setattr(returns_torch, name, refuse)
    w = given()
    assert ot.targets(**w, trace=ot.Retrace(0.9)).isfinite().all()
    assert eager_gradient(lambda q: total(q, ot.Retrace(0.9), w), w["q"]).isfinite().all()


# -- torch.compile -------------------------------------------------------------------------------------------


def half(pi_a: Tensor, mu_a: float | Tensor = 1.0, **_: Tensor) -> Tensor:
    return 0.5 * pi_a / (1 + mu_a)


@COMPILES
def test_compiled_without_a_graph_break() -> None:
    """One graph with every kind of trace and every recursion; a function defined inside it has no defaults."""
    w = given(2)

    def everything(q: Tensor) -> Tensor:
        w["q"] = q
        results = [ot.targets(**w, trace=trace, stop_gradient=False) for trace in EVERY]
        results.append(ot.targets(**w, trace=ot.Retrace([0.1, 0.2]), stop_gradient=False))
        results.append(ot.targets(**w, trace=lambda pi_a: 0.5 * pi_a, stop_gradient=False))
        results.append(ot.targets(**w, trace=lambda pi_a, mu_a=1.0, half=0.5: half * pi_a / (1 + mu_a)))
        if VERSION >= (2, 12):  # before, Dynamo cannot read defaults of keywords
            results.append(ot.targets(**w, trace=lambda *, pi_a, factor=0.5, **_: factor * pi_a))
        results.append(ot.targets(**w, trace=half))
        results.append(ot.targets(**w, trace=ot.Retrace(0.5)))
        results += [sister(w) for sister in SISTERS]
        return torch.stack(results)

    compiled = torch.compile(everything, backend="aot_eager", fullgraph=True)
    q = w["q"].clone()
    leaf = q.clone().requires_grad_()
    got = compiled(leaf)  # once, with its gradient: without one it would be compiled again
    torch.testing.assert_close(got.detach(), everything(q), **SAME)
    (got**2).sum().backward()
    torch.testing.assert_close(leaf.grad, eager_gradient(lambda q: (everything(q) ** 2).sum(), q), **SAME)


@COMPILES
def test_compiled_once_for_all_sizes_and_numbers() -> None:
    """`dynamic=True` fixes no size; λ is an argument, and a second eager call changes nothing that is guarded."""
    graphs = []

    def keep(graph: torch.fx.GraphModule, _: Any) -> Callable:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(
        lambda w, lambda_: ot.targets(**w, trace=ot.Retrace(lambda_)), backend=keep, fullgraph=True, dynamic=True
    )
    for n, batch in ((4, 2), (7, 3), (5, 9)):
        w = given(n, (batch,), seed=n)
        for lambda_ in (0.3, 0.6):
            trace = ot.Retrace(lambda_)
            got = compiled(w, torch.tensor(lambda_, dtype=torch.float64))
            torch.testing.assert_close(got, ot.targets(**w, trace=trace), **SAME)
    assert len(graphs) == 1
    assert operator._opoverload in {node.target for node in graphs[0].graph.nodes} | {
        getattr(node.target, "_opoverload", None) for node in graphs[0].graph.nodes
    }


@COMPILES
def test_torch_func_inside_torch_compile() -> None:
    w = given()

    def slopes(lambdas: Tensor) -> Tensor:
        return vmap(grad(lambda x: ot.targets(**w, trace=ot.Retrace(x), stop_gradient=False).sum()))(lambdas)

    compiled = torch.compile(slopes, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(LAMBDAS), slopes(LAMBDAS), **SAME)


COLD = """
import torch, offtrace as ot

generator = torch.Generator().manual_seed(0)
q, logits = torch.randn(2, 5, 3, 4, generator=generator)
a = torch.randint(0, 4, (4, 3), generator=generator)
steps = {"a": a, "r": torch.ones(4, 3), "discount": torch.full((4, 3), 0.9), "mu_a": torch.full((4, 3), 0.25)}

def loss(q):
    targets = ot.targets(q=q, pi=logits.softmax(-1), **steps, trace=ot.Retrace(0.9))
    return ((q[:-1].gather(-1, a[..., None])[..., 0] - targets) ** 2).mean()

results = []
for function in (torch.compile(loss, fullgraph=True), loss):
    leaf = q.clone().requires_grad_()
    value = function(leaf)
    value.backward()
    results.append((value, leaf.grad))
torch.testing.assert_close(*results)
print("same")
"""


@COMPILES
def test_cold_start() -> None:
    """The first call of the process is the compiled one, with PyTorch's own compiler."""
    faster = {**os.environ, "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0"}  # two files are not worth it
    done = subprocess.run([sys.executable, "-c", COLD], capture_output=True, text=True, env=faster)
    assert done.stdout == "same\n", done.stderr


# -- the operator itself -------------------------------------------------------------------------------------


def test_the_operator_against_its_definition() -> None:
    generator = torch.Generator().manual_seed(0)
    m, b = torch.rand(2, 6, 3, dtype=torch.float64, generator=generator)
    want = [torch.zeros(3, dtype=torch.float64)]
    for t in reversed(range(6)):
        want.insert(0, b[t] + m[t] * want[0])
    for way in (operator, as_tree, lambda m, b: vmap(operator, in_dims=1, out_dims=1)(m, b)):
        torch.testing.assert_close(way(m, b), torch.stack(want[:6]), **SAME)
    leaves = (m.requires_grad_(), b.requires_grad_())
    torch.autograd.gradcheck(operator, leaves)
    kinds = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(operator, leaves, test_utils=kinds)
