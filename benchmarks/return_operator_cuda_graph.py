"""The kernels for CUDA alone, without what the host does: calls of `ot.targets` as CUDA graphs.

A timed call is REPLAYS replays. float32, actions in int64, λ = 1. The floor is a copy that reads and
writes as many bytes as Retrace targets must: rows 1 to n of q and π, a, r, discount, μ_a and the
targets. So `of floor` is the share of the memory's bandwidth for Retrace. The others read or write
more or fewer bytes. A gradient is the backward pass alone.
"""

import functools
from collections.abc import Callable
from typing import Any

import offtrace as ot
from offtrace.bench import Benchmark, LeftOut

Function = Callable[[], Any]
Shape = tuple[int, int, int]
Tensors = dict[str, Any]

REPLAYS = 20
CLOSER: tuple[Shape, ...] = ((1024, 4096, 18), (128, 65536, 18))
"""Windows with all traces; the others have Retrace, Q(λ) and IS."""
SHORT: Shape = (16, 1024, 18)


@functools.lru_cache(maxsize=1)
def window(shape: Shape) -> Tensors:
    import torch

    if not torch.cuda.is_available():
        raise LeftOut("there is no CUDA device")
    n, batch, num_actions = shape
    generator = torch.Generator("cuda").manual_seed(0)
    how: Any = {"device": "cuda", "generator": generator}
    return {
        "q": torch.randn(n + 1, batch, num_actions, **how),
        "pi": torch.softmax(torch.randn(n + 1, batch, num_actions, **how), -1),
        "a": torch.randint(num_actions, (n, batch), **how),
        "r": torch.randn(n, batch, **how),
        "discount": 0.99 * (torch.rand(n, batch, **how) > 0.01).float(),
        "mu_a": torch.rand(n, batch, **how) * 0.8 + 0.1,
    }


def replayed(function: Function, stream: Any = None) -> Function:
    """Return a call that replays a function, captured on a stream of its own."""
    import torch

    stream = stream or torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for _ in range(3):
            function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        function()

    def call(_keeps: Function = function) -> None:
        """Replay the graph. It does not keep the tensors of the function alive, which it reads."""
        for _ in range(REPLAYS):
            graph.replay()
        torch.cuda.synchronize()

    return call


def targets(trace: ot.Trace, shapes: tuple[Shape, ...] = CLOSER, change: Callable[[Tensors], Tensors] = dict) -> Any:
    """Return a contender: the targets of a trace, on a window that is changed first."""

    def prepare(shape: Shape) -> Function:
        w = window(shape)
        if shapes and shape not in shapes:
            raise LeftOut("shown for other windows")
        given = change(w)
        return replayed(lambda: ot.targets(**given, trace=trace, validate=False))

    return prepare


def checked(shape: Shape) -> Function:
    """Return a call of the kernels with checks; a captured call of `ot.targets` leaves them out."""
    w = window(shape)
    from offtrace.returns.gpu import launch
    from offtrace.returns.gpu.rows import Inputs
    from offtrace.traces import formulas

    job = launch.Job(Inputs(**w), formulas.KIND_RETRACE, tolerance=1e-4)
    return replayed(lambda: launch.targets(job))


def gradient(*names: str) -> Any:
    """Return a contender: the gradients of Retrace targets."""

    def prepare(shape: Shape) -> Function:
        import torch

        w = window(shape)
        given = {name: value.detach().requires_grad_(name in names) for name, value in w.items()}
        # PyTorch runs a backward pass on the stream of the forward pass, and the default one cannot be captured.
        stream = torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            out = ot.targets(**given, trace=ot.Retrace(1.0), validate=False, stop_gradient=False)
            weights = torch.ones_like(out)
        leaves = [given[name] for name in names]
        return replayed(lambda: torch.autograd.grad(out, leaves, weights, retain_graph=True), stream)

    return prepare


def in_bfloat16(w: Tensors) -> Tensors:
    return {name: value.bfloat16() if value.is_floating_point() else value for name, value in w.items()}


def batch_major(w: Tensors) -> Tensors:
    return {name: value.transpose(0, 1).contiguous().transpose(0, 1) for name, value in w.items()}


def log_densities(w: Tensors) -> Tensors:
    steps = {"r": w["r"], "discount": w["discount"], "q_a": 0.5 * w["r"], "expected_q": 0.3 * w["r"]}
    return steps | {"log_pi_a": -w["mu_a"], "log_mu_a": w["mu_a"].log()}


def copy(shape: Shape) -> Function:
    import torch

    w = window(shape)
    size = sum(v[1:].nbytes if k in ("q", "pi") else v.nbytes for k, v in w.items()) + w["r"].nbytes
    # Whole pages: CUDA copies some other sizes more slowly.
    source = torch.zeros(size // 8192 * 4096, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return replayed(lambda: target.copy_(source))


BENCHMARK = Benchmark(
    name="return_operator_cuda_graph",
    question="What share of a GPU's bandwidth do the kernels reach? (n steps, B windows, A actions)",
    rows=(
        (16, 1024, 18),
        (16, 32768, 18),
        (128, 4096, 18),
        (4096, 128, 18),
        (65536, 8, 18),
        (1024, 2048, 4),
        (1024, 4096, 18),
        (8192, 512, 18),
        (65536, 64, 18),
        (1024, 16384, 4),
        (65536, 256, 4),
        (32, 262144, 6),
        (16, 1048576, 4),
        (128, 65536, 18),
        (16, 1048576, 18),
    ),
    problem=lambda shape: shape,
    contenders={
        "Retrace": targets(ot.Retrace(1.0), shapes=()),
        "Retrace, checked": checked,
        "gradient of q": gradient("q"),
        "gradient of q and π": gradient("q", "pi"),
        "TB": targets(ot.TreeBackup(1.0)),
        "Q(λ)": targets(ot.QLambda(1.0), shapes=()),
        "IS": targets(ot.ImportanceSampling(1.0), shapes=()),
        "Watkins": targets(ot.Watkins(1.0)),
        "soft Watkins": targets(ot.SoftWatkins(1.0)),
        "ACER": targets(ot.ContinuousACER(1.0, 3)),
        "Q(σ)": targets(ot.QSigma(1.0, 0.3)),
        "Retrace, log-densities": targets(ot.Retrace(1.0), change=log_densities),
        "Retrace, bfloat16": targets(ot.Retrace(1.0), change=in_bfloat16),
        "Retrace, batch-major": targets(ot.Retrace(1.0), change=batch_major),
        "RBIS": targets(ot.RBIS(1.0), shapes=(SHORT, CLOSER[0])),
        "truncated IS": targets(ot.TruncatedIS(1.0), shapes=(SHORT, CLOSER[0])),
        "recursive Retrace": targets(ot.RecursiveRetrace(1.0), shapes=(SHORT, CLOSER[0])),
    },
    ours=("Retrace",),
    floors={"copy": copy},
    columns={"µs a replay": lambda _, seconds: 1e6 * seconds / REPLAYS},
    min_time=0.004,
    quick_rows=3,
)
