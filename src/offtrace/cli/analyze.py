"""`offtrace analyze MDP`."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro
from rich.markup import escape

from offtrace import safety
from offtrace.agent.own_traces import is_reference, loaded
from offtrace.cli.options import option
from offtrace.cli.outputs import prepare_output
from offtrace.cli.progress import ProgressBar
from offtrace.cli.streams import Console, print_json, tell
from offtrace.imports import import_module, split
from offtrace.mdp import MDPS, CountedMDP, FiniteMDP
from offtrace.mdp.gymnasium import PACKAGES
from offtrace.mdp.small_world import ABOUT
from offtrace.safety.inputs import SUFFIXES, read_model, read_policy

DEFAULT_TARGET = "greedy"
DEFAULT_BEHAVIOUR = "epsilon_greedy:0.1"


def analyze(
    mdp: Annotated[tyro.conf.Positional[str], option("MDP", "")] = "",
    gamma: Annotated[float | None, option("FLOAT", "the file's, or 0.99")] = None,
    target: Annotated[str, option("POLICY", f"the file's, or {DEFAULT_TARGET}")] = "",
    behaviour: Annotated[str, option("POLICY", f"the file's, or {DEFAULT_BEHAVIOUR}")] = "",
    traces: Annotated[tuple[str, ...], option("NAME …", "all")] = (),
    lambdas: Annotated[tuple[float, ...], option("FLOAT …")] = safety.LAMBDAS,
    accuracy: float = 0.01,
    output: Annotated[Path | None, option("PATH", "write nothing")] = None,
    list: Annotated[bool, tyro.conf.arg(name="list")] = False,
    json: bool = False,
) -> None:
    """Show which traces are safe for two policies, how fast they contract, and how much they vary.

    MDP is a Gymnasium id with a model (FrozenLake-v1, my_module:my/Lake-v0, …); a name from `--list`; a file
    model.npz with arrays p (X, A, X), r and optionally terminates, gamma, pi, mu; or logged data, from which the
    model and μ are estimated by counting: a file log.csv or log.npz with columns state, action, reward, next_state,
    terminated, or a log of episodes (log.parquet, .csv, .npz) with columns episode, step, state, action, reward,
    terminated, truncated.

    A policy is uniform; greedy, epsilon_greedy:0.1 or softmax:5 with respect to Q*; or a file policy.npy (X, A).

    Example: offtrace analyze FrozenLake-v1 --behaviour epsilon_greedy:0.3

    Example: offtrace analyze log.csv --gamma 0.95 --output analysis

    Args:
        mdp: MDP to analyse.
        gamma: Discount γ.
        target: Target policy π.
        behaviour: Behaviour policy μ.
        traces: Traces, by name; your own as `my_module:MyTrace`.
        lambdas: Values of λ.
        accuracy: Share of the initial error down to which iterations are counted.
        output: Folder for pictures, a table (CSV) and numbers (JSON); created if it does not exist.
        list: Print the names of built-in MDPs and exit.
        json: Print the numbers as JSON.
    """
    if list:
        _print_mdps()
        return
    if not mdp:
        raise ValueError("name an MDP: `offtrace analyze FrozenLake-v1`, a file, or a name from `--list`.")
    console = Console(stderr=json)
    if ":" in mdp and Path(mdp).suffix not in SUFFIXES:
        import_module(split(mdp)[0], tell)
    model, given = read_model(mdp, gamma, tell)
    inner = model.mdp if isinstance(model, CountedMDP) else model
    pi, pi_name = _policy("target", target, DEFAULT_TARGET, inner, given.get("pi"))
    if isinstance(model, CountedMDP) and not behaviour:
        mu, mu_name = None, "as counted"
    else:
        mu, mu_name = _policy("behaviour", behaviour, DEFAULT_BEHAVIOUR, inner, given.get("mu"))
    if output is not None:
        prepare_output(output)
    with ProgressBar(inner.name or mdp) as bar:
        analysis = safety.analyze(
            model,
            pi=pi,
            mu=mu,
            traces=[loaded(name, tell) if is_reference(name) else name for name in traces] or None,
            lambdas=lambdas,
            accuracy=accuracy,
            progress=bar.update,
        )
    if json:
        print_json(analysis.as_dict())
    else:
        console.print(f"π: {pi_name}   μ: {mu_name}", highlight=False, markup=False)
        analysis.print(console)
    if output is not None:
        from offtrace.report.analysis_files import write_analysis

        files = write_analysis(analysis, output)
        console.print(f"Written to [bold]{escape(str(output))}/[/bold]: {', '.join(files)}", highlight=False)


def _policy(
    option: str, text: str, default: str, mdp: FiniteMDP, in_file: np.ndarray | None
) -> tuple[np.ndarray, str]:
    """Return a policy and its description: the one of the option, else of the file, else the default."""
    if in_file is not None and not text:
        return in_file, "as in the file"
    name = text or default
    return read_policy(name, mdp, option), name


def _about(make: Callable[..., FiniteMDP]) -> str:
    """Return the first line of a docstring as a description: "Return a chain." as "A chain."."""
    first = (getattr(make, "func", make).__doc__ or "").strip().splitlines()[0]
    words = first.removeprefix("Return ")
    return words[:1].upper() + words[1:]


def _print_mdps() -> None:
    for name, make in MDPS.items():
        summary = ABOUT.get(name) or _about(make)
        is_missing = name in PACKAGES and find_spec(name) is None
        remedy = f" Not installed: pip install {PACKAGES[name]}" if is_missing else ""
        print(f"{name:16} {summary}{remedy}")
