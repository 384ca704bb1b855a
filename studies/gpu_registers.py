"""What does the compiler make of a plan of the CUDA kernels? This needs no GPU.

    python studies/gpu_registers.py 13132 286 5
    python studies/gpu_registers.py 27310 93 13 --trace importance_sampling --checks

It compiles the kernel for a window of so many steps, neighbours and actions, for an H200. It prints the plan, the
registers of a thread, the bytes that do not fit into them and are spilled to memory, and the loads of the main loop.
`loads 12 | 4` means: 12 loads, then the first use of one of them, which waits, then 4 more loads.
"""

import argparse
import re
import subprocess
import tempfile
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from offtrace import TRACES
from offtrace.returns.gpu import fold, launch
from offtrace.returns.gpu.plans import Plan
from offtrace.returns.gpu.rows import Inputs, Mode
from offtrace.traces import formulas

NUM_MULTIPROCESSORS = 132
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
KINDS = {name: formulas.KINDS[cls] for name, cls in TRACES.items() if cls.markov}
GIVEN = ("r", "discount", "q", "pi", "a", "mu_a")
TYPES = {"a": "*i64", "links": "*i64", "strange": "*i32"} | dict.fromkeys(("n", "batch", "chunk_steps"), "i32")
TYPES |= dict.fromkeys(("lambda_", "parameter", "tolerance"), "fp64")
ALIGNED = [["tt.divisibility", 16]]


def compiled(mode: Mode, plan: Plan) -> dict:
    """Return what the compiler makes of `one_pass`, from PTX to machine code."""
    constants = {"mode": mode, "FADES": mode.kind not in launch.GROWING, "ORDERED": False, "m_out": None}
    if not mode.checks:
        constants["strange"] = None
    if plan.num_chunks == 1:
        constants |= {"gain": None, "links": None}
    signature, constexprs, attributes = {}, {}, {}
    for i, name in enumerate(fold.one_pass.arg_names):
        if name == "w":
            signature[name] = Inputs(*(TYPES.get(f, "*fp32") if f in GIVEN else "constexpr" for f in Inputs._fields))
            constexprs |= {(i, j): None for j, f in enumerate(Inputs._fields) if f not in GIVEN}
            attributes |= {(i, j): ALIGNED for j, f in enumerate(Inputs._fields) if f in GIVEN}
        elif name in constants:
            signature[name], constexprs[name] = "constexpr", constants[name]
        else:
            signature[name] = TYPES.get(name, "*fp32")
            if signature[name].startswith("*"):
                attributes[(i,)] = ALIGNED
    source = ASTSource(fn=fold.one_pass, signature=signature, constexprs=constexprs, attrs=attributes)
    options = {"num_warps": plan.num_warps, "maxnreg": plan.max_registers}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm


def registers_and_spills(ptx: str) -> tuple[int, int]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.ptx")
        path.write_text(ptx)
        command = [TOOLS / "ptxas", "-v", "-arch=sm_90a", path, "-o", Path(folder, "kernel.cubin")]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return number_in(told, r"Used (\d+) registers"), number_in(told, r"(\d+) bytes spill stores")


def number_in(text: str, pattern: str) -> int:
    found = re.search(pattern, text)
    assert found, (pattern, text)
    return int(found[1])


def main_loop(machine_code: bytes) -> list[str]:
    """Return the instructions of the first loop that loads numbers, but not what other programs told (STRONG)."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(machine_code)
        file.flush()
        command = [TOOLS / "nvdisasm", "-c", file.name]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    start = {line.strip().rstrip(":"): i for i, line in enumerate(lines) if line.startswith(".L_")}
    loops = []
    for i, line in enumerate(lines):
        jump = re.search(r"BRA `\((\.L_\w+)\)", line)
        if jump and start.get(jump[1], i) < i:
            loops.append(lines[start[jump[1]] : i])
    return next(loop for loop in loops if any("LDG" in x for x in loop) and not any("STRONG" in x for x in loop))


def loads(loop: list[str]) -> list[int]:
    """Return how many loads there are between waits: what names the register of a load waits for it."""
    groups = [0]
    loading: set[int] = set()
    for line in loop:
        named = {int(register) for register in re.findall(r"\bR(\d+)\b", line)}
        if named & loading and groups[-1]:
            groups.append(0)
            loading.clear()
        if "LDG" in line:
            groups[-1] += 1
            first = number_in(line, r"LDG\S* R(\d+)")
            loading |= set(range(first, first + (4 if ".128" in line else 2 if ".64 R" in line else 1)))
    return [group for group in groups if group]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("window", nargs=3, type=int, metavar=("N", "BATCH", "ACTIONS"), help="its size")
    parser.add_argument("--trace", choices=KINDS, default="retrace", help="trace of the kernel")
    parser.add_argument("--checks", action="store_true", help="with checks")
    options = parser.parse_args()
    num_actions = options.window[2]
    plan = launch.plan_for(*options.window, False, NUM_MULTIPROCESSORS, options.checks)
    rows = torch.empty(2, 1, num_actions)
    w = Inputs(r=rows[0], discount=rows[0], q=rows, pi=rows, a=rows, mu_a=rows)
    job = launch.Job(w, KINDS[options.trace], tolerance=1e-4 if options.checks else None)
    made = compiled(job.mode(plan), plan)
    registers, spilled = registers_and_spills(made["ptx"])
    groups = " | ".join(map(str, loads(main_loop(made["cubin"]))))
    print(plan)
    print(f"{registers} registers, {spilled} bytes spilled, loads {groups}")


if __name__ == "__main__":
    main()
