"""Display names of algorithms, in charts and tables."""

from offtrace.experiments import ladder
from offtrace.scores import keys
from offtrace.traces import TRACES

NAMES = {name: cls.title for name, cls in TRACES.items()} | {"q_star": "Q*(λ)", "dqn": "DQN"}
"""The title of every trace; Q*(λ) of the paper's tables, which is Q(λ) with a greedy target policy; and DQN."""
VARIANTS = {name: name for name in keys.VARIANTS} | {"exploration": "exploring"}
"""Display names of the parts after a dot: the target policy, and whether it is computed by two networks."""
RUNGS = {rung.name: rung.title for rung in ladder.RUNGS}


def named(algorithm: str) -> str:
    """Return the display name of an algorithm; the name itself, without a module, if there is none.

    >>> named("tree_backup"), named("dqn.exploration"), named("my_module:Mine"), named("q_sigma (sigma=0.5)")
    ('TB(λ)', 'DQN (exploring)', 'Mine', 'Q(σ, λ) (sigma=0.5)')
    >>> named("retrace, step_size 0.001")
    'Retrace(λ), step_size 0.001'
    """
    if algorithm in RUNGS:
        return RUNGS[algorithm]
    algorithm, comma, settings = algorithm.partition(",")
    return f"{_named(algorithm)}{comma}{settings}"


def _named(algorithm: str) -> str:
    """Return the display name of an algorithm without its settings."""
    name, variant = keys.split_variant(algorithm)
    plain, space, options = name.partition(" (")
    title = NAMES.get(plain, plain.rpartition(":")[2]) + space + options
    if not variant:
        return title
    return f"{title} ({', '.join(VARIANTS[each] for each in variant)})"


def named_at(algorithm: str, lambda_: float | None) -> str:
    """Return the display name of an algorithm at one λ; None for one without λ.

    >>> named_at("retrace, step_size 0.1", 0.5), named_at("mine", 1.0), named_at("dqn", None)
    ('Retrace(0.5), step_size 0.1', 'mine, λ = 1', 'DQN')
    """
    if lambda_ is None:
        return named(algorithm)
    plain, comma, settings = algorithm.partition(",")
    name = named(plain)
    if "λ)" in name:
        name = name.replace("λ)", f"{lambda_:g})")
    else:
        name += f", λ = {lambda_:g}"
    return f"{name}{comma}{settings}"


def short_label(algorithm: str, lambda_: float | None = None) -> str:
    """Return the display name of an algorithm, at one λ, with the values of its settings only, for a chart.

    >>> short_label("retrace, window 16, step_size 0.001"), short_label("retrace, window 8", 0.5), short_label("dqn")
    ('Retrace(λ), 16, 0.001', 'Retrace(0.5), 8', 'DQN')
    """
    plain, *settings = algorithm.split(", ")
    name = named(plain) if lambda_ is None else named_at(plain, lambda_)
    return ", ".join([name, *(text.partition(" ")[2] or text for text in settings)])


def counted(number: int, what: str) -> str:
    """Return a number with its noun in singular or plural.

    >>> counted(1, "game"), counted(6000, "game")
    ('1 game', '6,000 games')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"
