"""Extreme values on the command line: each is refused in one line with exit code 2, or runs and can be stopped."""

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import reference
from children import Case, one_line

EXTREME = (
    "-1", "0", "-0", "1", "nan", "inf", "-inf", "1e400", "1e30", "-1e30", "1e-400", "0.0", "1.5", "2147483647",
    "2147483648", "99999999999999999999", "-99999999999999999999", "1" + "0" * 400, "0x10", "1_000", "٣", "", " ",
    "None", "true", "1e999999999", "4294967296", "1e-30",
)  # fmt: skip
TRAIN = (
    "lambda", "seed", "num-steps", "num-actors", "window", "num-windows", "steps-per-update", "replay-size", "fill",
    "gamma", "step-size", "regularisation", "epsilon", "epsilon-steps", "target-epsilon", "beta", "clamp",
    "target-period", "max-gradient", "reward-clamp", "hidden-sizes", "tick-steps", "evaluation-ticks",
    "evaluation-episodes", "evaluation-epsilon", "evaluation-steps",
)  # fmt: skip
OPTIONS = {
    ("train", "pocket/catch", "--num-steps", "2000", "--output", "run", "--quiet"): TRAIN,
    ("train", "CartPole-v1", "--num-steps", "2000", "--output", "run", "--quiet"): TRAIN,
    ("watch", "RUN", "--output", "film.gif", "--max-steps", "5"): (
        "num-episodes", "max-steps", "seed", "epsilon", "fps",
    ),
    ("sweep", "pocket/catch", "--traces", "retrace", "--num-steps", "2000", "--output", "r.sqlite", "--jobs", "1"): (
        "num-seeds", "lambdas", "num-steps", "jobs", "first-seed", "step-size",
    ),
    ("reproduce", "--output", "reproduction", "--jobs", "1"): ("jobs", "first-seed"),
    ("analyze", "chain"): ("gamma", "lambdas", "accuracy"),
}  # fmt: skip


def cases(num: int, seed: int, home: Path) -> Iterator[Case]:
    rng = random.Random(seed)
    run = home / "values" / "whole"
    reference.made(reference.train("pocket/catch", "whole"), home / "values")
    pairs = [(command, option) for command, options in OPTIONS.items() for option in options]
    for number in range(num):
        command, option = pairs[number % len(pairs)] if number < len(pairs) else rng.choice(pairs)
        value = rng.choice(EXTREME)
        folder = Path(tempfile.mkdtemp(prefix="values-"))
        words = [str(run) if word == "RUN" else word for word in command]
        if f"--{option}" in words:
            at = words.index(f"--{option}")
            del words[at : at + 2]
        name = f"{command[0]} {command[1]} --{option} {value[:24]}"
        yield Case(name, [*words, f"--{option}={value}"], folder, one_line, number=number, patience=10)
