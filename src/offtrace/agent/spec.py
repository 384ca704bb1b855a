"""The spec of a run: one frozen record of everything that decides its result.

`resolved` fills in the fields that are None. Later sources override earlier ones: `DEFAULTS`, the
entries of `TUNED` whose name begins the environment's, `ASYNCHRONOUS` for that runtime, `PAPER` with
RMSprop, the presets of DQN, and the environment's own γ.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any

import numpy as np
import tyro

from offtrace.agent.defaults import ASYNCHRONOUS, DEFAULT_LAMBDA, DEFAULT_TICK, DEFAULTS, PAPER, TUNED
from offtrace.agent.field_rules import OPTIONAL, broken_rule
from offtrace.agent.own_traces import check_saved, described, stored
from offtrace.environments import full_name, own_gamma
from offtrace.environments.own import check_saveable, name_of
from offtrace.traces import TRACES


def _chosen(metavar: str) -> Any:
    """Return the annotation of an option whose default depends on the environment."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint="(default: what suits the environment)")


def _choice(metavar: str, default: str) -> Any:
    """Return the annotation of an option whose default depends on the runtime."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint=f"(default: {default})")


def _plain(value: Any) -> Any:
    """Return a number of NumPy, or a single one of another library, as one of Python.

    >>> import numpy as np
    >>> _plain(np.int64(3)), _plain(np.float32(0.9))
    (3, 0.9)
    """
    if isinstance(value, np.generic) or getattr(value, "shape", None) == ():
        value = np.asarray(value)[()]
        return float(str(value)) if isinstance(value, np.floating) else value.item()
    return value


def _text(metavar: str, default: str) -> Any:
    """Return the annotation of a field that is text on the command line and may be more in Python."""
    return tyro.conf.arg(constructor=str, metavar=metavar, help_behavior_hint=f"(default: {default})")


Whole = Annotated[int | None, _chosen("INT")]
Number = Annotated[float | None, _chosen("FLOAT")]


@dataclass(frozen=True)
class TrainSpec:
    """One agent on one environment. On the same machine the same spec gives the same run, bit for bit.

    The exception is the asynchronous runtime with several actors.

    >>> spec = resolved(TrainSpec(env="CartPole-v1", seed=3))
    >>> spec.env, spec.trace, spec.window, spec.num_windows
    ('gymnasium/CartPole-v1', 'retrace', 16, 4)
    >>> resolved(TrainSpec(env="CartPole-v1", trace="dqn")).num_windows
    64
    """

    env: Annotated[Any, tyro.conf.Positional, tyro.conf.arg(metavar="ENV", constructor=str)]
    """Environment: a name such as `minatar/breakout`, `CartPole-v1` or `my_module:MyEnv`. Also a class, a function
    that makes an environment, or a Gymnasium environment: the spec holds its name, `module:MyEnv` if it has one."""
    trace: Annotated[Any, _text("NAME", "retrace")] = "retrace"  # in Python also a class, a value or a function
    """Trace: `retrace`, `tree_backup`, …, or your own, `my_module:MyTrace`; `dqn` has one step and a greedy π."""
    lambda_: Annotated[float, tyro.conf.arg(name="lambda")] = 1.0
    """λ in [0, 1]: the largest share of a later TD error that one step passes back."""
    seed: int = 0
    """Random seed."""
    num_steps: Whole = None
    """Environment steps of all actors together, rounded up to the end of a tick."""
    num_actors: int = 16
    """Number of environments that run in parallel (App. F)."""
    runtime: str = "synchronous"
    """Runtime: `synchronous`, one learner for all actors, or `asynchronous`, the threads of App. F, on CPUs."""
    window: Whole = None
    """Steps per window (n in App. F)."""
    num_windows: Whole = None
    """Windows per batch."""
    steps_per_update: int = 4
    """Environment steps per update, of all actors together; asynchronous: of an actor per update of its own (D15)."""
    replay_size: Whole = None
    """Transitions in replay, of all actors together."""
    fill: Whole = None
    """Environment steps of all actors together before the first update."""
    gamma: Number = None
    """Discount γ."""
    step_size: Number = None
    """Initial step size of the optimiser."""
    anneal: bool = True
    """Decrease the step size linearly to 0 (App. F), over the run or over `annealing_steps`."""
    annealing_steps: Annotated[int | None, _choice("INT", "the run's; 75,000,000 on Atari if asynchronous")] = None
    """Environment steps over which the step size decreases to 0; None for those of the run."""
    optimiser: Annotated[str | None, _choice("{adam,rmsprop}", "adam; rmsprop if asynchronous")] = None
    """Optimiser: `adam`, or `rmsprop` as in the paper."""
    regularisation: Number = None
    """Constant ε in the denominator of the optimiser."""
    exploration: Annotated[str | None, _choice("{linear,switching}", "linear; switching if asynchronous")] = None
    """Exploration: `linear`, one ε for all actors, or `switching`, the three schedules of App. F."""
    epsilon: Number = None
    """Final ε of the exploration; it starts at 1."""
    epsilon_steps: Whole = None
    """Environment steps over which ε decreases from 1."""
    random_action_steps: Whole = None
    """Most steps for which a random action is repeated; n steps have a probability proportional to 1/n² (εz-greedy).
    1 for plain ε-greedy."""
    target_policy: Annotated[str | None, _chosen("NAME")] = None
    """Target policy π: `exploration`, the current exploration policy (App. F), `greedy`, or `softmax`."""
    target_epsilon: float | None = None
    """ε of an `exploration` target policy; None means the current ε of the behaviour, as in App. F."""
    beta: float = 1.0
    """Inverse temperature of a `softmax` target policy."""
    double: Annotated[bool | None, _chosen("{True,False}")] = None
    """Compute π from the values of the online network (Deviation D12); DQN does not."""
    clamp: float | None = 1.0
    """Bound on |ΔQ|; None for no bound."""
    target_period: Whole = None
    """Updates between two copies of the online network to the target network (Deviation D14)."""
    max_gradient: float | None = None
    """Bound on the norm of the gradient; None for no bound."""
    reward_clamp: float | None = None
    """Bound on |reward| for learning; None for no bound. Reported returns are raw."""
    network: str = "auto"
    """Network: `mlp`, `minatar`, `dqn`, or `auto`, which goes by the observations."""
    hidden_sizes: Annotated[tuple[int, ...] | None, _chosen("INT …")] = None
    """Widths of the hidden layers of `mlp`."""
    observation_scale: Annotated[tuple[float, ...] | None, _chosen("FLOAT …")] = None
    """Factors for the entries of an observation, one for each, so that `mlp` sees numbers of similar size."""
    precision: str = "float32"
    """Precision of the network: `float32`, or `bfloat16`, which is faster on accelerators."""
    tick_steps: Whole = None
    """Environment steps per tick: the progress is reported once per tick."""
    evaluation_ticks: int = 20
    """Ticks between two evaluations during training; 0 for none."""
    evaluation_episodes: int = 100
    """Episodes of the final evaluation; evaluations during training have a fifth of them."""
    evaluation_epsilon: float = 0.001
    """ε of the policy in evaluations."""
    evaluation_steps: int = 10_000
    """Maximum steps per evaluation episode."""
    options: dict[str, bool | int | float | str] = field(default_factory=dict)
    """Options of the environment, such as `time_limit` or `sticky`, or keywords of `gymnasium.make`."""
    trace_options: dict[str, bool | int | float | str] = field(default_factory=dict)
    """Parameters of the trace other than λ, such as `sigma` of `q_sigma`."""
    trace_source: Annotated[str, tyro.conf.Fixed, tyro.conf.Suppress] = ""
    """Hash of the source of your own trace; `resolved` fills it in."""
    trace_title: Annotated[str, tyro.conf.Fixed, tyro.conf.Suppress] = ""
    """Name of your own trace in tables and charts; `resolved` fills it in."""

    def __post_init__(self) -> None:
        self._store_trace()
        for name, value in vars(self).items():
            object.__setattr__(self, name, _plain(value))
        for name in ("hidden_sizes", "observation_scale"):
            value = getattr(self, name)
            if isinstance(value, Iterable) and not isinstance(value, str):
                object.__setattr__(self, name, tuple(map(_plain, value)))
        if self.env is not None and not isinstance(self.env, str):
            object.__setattr__(self, "env", name_of(self.env))
        _check(self)

    def _store_trace(self) -> None:
        """Replace a trace that is not text by its name, and its parameters."""
        found = stored(self.trace)
        if found.lambda_ is not None:
            if self.lambda_ not in (DEFAULT_LAMBDA, found.lambda_):
                raise ValueError(f"`lambda_` must be given once; got {self.trace!r} and lambda_={self.lambda_!r}.")
            object.__setattr__(self, "lambda_", found.lambda_)
        if found.options:
            object.__setattr__(self, "trace_options", {**found.options, **self.trace_options})
        object.__setattr__(self, "trace", found.trace)

    @property
    def name(self) -> str:
        """A name for the run's folder: letters, digits and a few signs."""
        words = (self.env.removeprefix("gymnasium/"), self._trace_name)
        env, trace = (re.sub(r"[^\w.+=@:-]", "-", word).lstrip(".-") for word in words)
        return f"{env}-{trace}-{self.seed}"

    @property
    def title(self) -> str:
        """A title for people: environment, algorithm and seed."""
        if self.trace == "dqn":
            shown = "DQN"
        elif isinstance(self.trace, str) and self.trace in TRACES:
            shown = TRACES[self.trace].title
        else:
            shown = self.trace_title or self._trace_name
        shown = shown.replace("λ", f"λ = {self.lambda_:g}")
        return f"{self.env.removeprefix('gymnasium/')}  {shown}  seed {self.seed}"

    @property
    def _trace_name(self) -> str:
        """The name of the trace without its module."""
        if isinstance(self.trace, str):
            return self.trace.rpartition(":")[2]
        return getattr(self.trace, "__name__", type(self.trace).__name__)


@dataclass(frozen=True, kw_only=True)
class Plan(TrainSpec):
    """A spec with every choice made: what is run, and what is stored with a run."""

    num_steps: int
    window: int
    num_windows: int
    replay_size: int
    fill: int
    gamma: float
    step_size: float
    optimiser: str
    regularisation: float
    exploration: str
    epsilon: float
    epsilon_steps: int
    random_action_steps: int
    target_policy: str
    double: bool
    target_period: int
    hidden_sizes: tuple[int, ...]
    observation_scale: tuple[float, ...]
    tick_steps: int


# -- resolving -----------------------------------------------------------------------------------------------


def resolved(spec: TrainSpec, tell: Callable[[str], None] = lambda _: None) -> Plan:
    """Return the spec with every open choice made.

    The module of a trace of your own is imported, to describe it; `tell` is then called with a line
    that says so. A spec that is resolved already is returned as it is.
    """
    env = full_name(spec.env)
    chosen = dict(DEFAULTS)
    tables = [TUNED]
    if spec.runtime == "asynchronous":
        tables.append(ASYNCHRONOUS)
    for table in tables:
        for beginning, row in table.items():
            if env.removeprefix("gymnasium/").startswith(beginning):
                chosen |= row
    is_dqn = spec.trace == "dqn"
    if (spec.optimiser or chosen["optimiser"]) == "rmsprop":
        chosen |= PAPER["dqn" if is_dqn else "multi-step"]
    if is_dqn:  # as many transitions per batch as the others, in windows of one step
        num_transitions = chosen["window"] * chosen["num_windows"]
        chosen |= {"window": 1, "num_windows": num_transitions, "target_policy": "greedy", "double": False}
        if spec.window not in (None, 1):
            raise ValueError(f"`window` must be 1 for `trace='dqn'`; got {spec.window}.")
    gamma = own_gamma(env, spec.options)
    if gamma is not None:
        chosen["gamma"] = gamma
    num_steps = spec.num_steps or chosen["num_steps"]
    chosen["fill"] = max(1, min(chosen["fill"], num_steps // 2))
    chosen.setdefault("epsilon_steps", max(1, num_steps // 10))
    chosen["tick_steps"] = min(max(num_steps // 100, 1_000), DEFAULT_TICK)
    given = {name: value for name, value in vars(spec).items() if value is not None}
    given["options"] = {**chosen.get("options", {}), **spec.options}
    values: dict[str, Any] = {**vars(spec), **chosen, **given, **_described(spec, tell), "env": env}
    return Plan(**values)


def _described(spec: TrainSpec, tell: Callable[[str], None]) -> dict[str, str]:
    """Return the fields that describe a trace of the user's own, if it is one and they are not filled in yet."""
    if spec.trace_title or spec.trace == "dqn" or (isinstance(spec.trace, str) and spec.trace in TRACES):
        return {}
    found = described(spec.trace, tell)
    if not found.has_lambda and spec.lambda_ not in (0, DEFAULT_LAMBDA):
        raise ValueError(
            f"`lambda_` must be left out for {spec.trace!r}, which has no λ; got {spec.lambda_!r}. For a λ, write a "
            "subclass of `ot.Trace`, or give the function a parameter and set it by `trace_options`."
        )
    return {"trace_source": found.source, "trace_title": found.title}


def continued(spec: TrainSpec, plan: Plan) -> TrainSpec:
    """Return the spec with its open choices as in the plan of the run that it resumes.

    For another environment or trace they stay open, since its defaults differ.

    >>> continued(TrainSpec(env="CartPole-v1"), resolved(TrainSpec(env="CartPole-v1", num_steps=4_000))).num_steps
    4000
    """
    if (full_name(spec.env), spec.trace) != (plan.env, plan.trace):
        return spec
    names = [f.name for f in dataclasses.fields(TrainSpec) if f.default is None and getattr(spec, f.name) is None]
    return dataclasses.replace(spec, **{name: getattr(plan, name) for name in names})


# -- as data -------------------------------------------------------------------------------------------------


ADDED: Mapping[str, Any] = MappingProxyType(
    {
        "target_epsilon": None,
        "trace_options": {},
        "trace_source": "",
        "trace_title": "",
        "random_action_steps": 1,
        "observation_scale": [],
        "runtime": "synchronous",
        "annealing_steps": None,
    }
)
"""Fields added after the first version, with the value that reproduces older runs.

A field with that value is left out of the JSON. So records of older versions can be read, and a
spec keeps its fingerprint, by which a sweep finds its runs."""


def to_json(spec: TrainSpec) -> dict[str, Any]:
    """Return a spec as JSON values. A trace or an environment that cannot be imported by name raises a ValueError."""
    check_saveable(spec.env)
    record = {
        **vars(spec),
        "trace": check_saved(spec.trace),
        "options": {**spec.options},
        "trace_options": {**spec.trace_options},
    }
    for name in ("hidden_sizes", "observation_scale"):
        if record[name] is not None:
            record[name] = [*record[name]]
    return {name: value for name, value in record.items() if name not in ADDED or value != ADDED[name]}


def from_json(data: Mapping[str, Any]) -> Plan:
    """Return the plan that `to_json` was given."""
    names = {f.name for f in dataclasses.fields(TrainSpec)}
    data = {**ADDED, **data}
    if isinstance(data.get("options"), dict):  # the first version stored the permission to import here
        data["options"] = {name: value for name, value in data["options"].items() if name != "allow_import"}
    for rule, wrong in (("must not have", set(data) - names), ("must have", names - set(data))):
        if wrong:
            raise ValueError(
                f"a spec {rule} {', '.join(map(repr, sorted(wrong)))}; it was written by another version."
            )
    return Plan(**data)


def differences(one: TrainSpec, other: TrainSpec) -> dict[str, tuple[Any, Any]]:
    """Return the fields that differ, with both values; a title follows from the other fields."""
    pairs = ((f.name, getattr(one, f.name), getattr(other, f.name)) for f in dataclasses.fields(TrainSpec))
    return {name: (a, b) for name, a, b in pairs if a != b and name != "trace_title"}


# -- input checks --------------------------------------------------------------------------------------------


def _check(spec: TrainSpec) -> None:
    """Check every field on its own; `settings` checks what must fit together."""
    if not isinstance(spec.env, str) or not spec.env:
        raise ValueError(f"`env` must be the name of an environment; got {spec.env!r}.")
    chosen = {f.name for f in dataclasses.fields(TrainSpec) if f.default is None and not isinstance(spec, Plan)}
    if spec.target_epsilon is not None and spec.target_policy not in (None, "exploration"):
        raise ValueError(
            f"`target_epsilon` must come with the target policy `exploration`; got `{spec.target_policy}`."
        )
    if spec.runtime == "asynchronous" and spec.optimiser == "adam":
        raise ValueError(
            "`optimiser` must be rmsprop with `runtime='asynchronous'`, which has Shared RMSprop only; got 'adam'."
        )
    for name, value in vars(spec).items():
        if value is None and (name in OPTIONAL or name in chosen):
            continue
        rule = broken_rule(name, value)
        if rule:
            raise ValueError(f"`{name}` must be {rule}; got {value!r}.")
