"""What the doctor says, in words a person with the mistake understands in a minute."""

import textwrap
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, NamedTuple

from offtrace.doctor.golden import GAMMA, Golden
from offtrace.doctor.mistakes import EQUATION, MISTAKES, VTRACE_EQUATION, coefficients, targets
from offtrace.traces import TRACES, Trace

WIDTH = 80


@dataclass(frozen=True)
class Verdict:
    """The doctor's answer about one function; `print` it."""

    right: bool
    kind: str
    """right, variant, ignored, rounded, fragile, mistake, mistakes, ambiguous, another, or unknown."""
    function: str
    trace: str | None = None
    lambda_: float | None = None
    gamma: float = GAMMA
    two_networks: bool = False
    lambda_known: bool = True
    """λ was given to the function or to the doctor; otherwise it is what the numbers say."""
    convention: str = ""
    fed: tuple[str, ...] = ()
    """What each parameter of the function was given."""
    output: str = ""
    mistakes: tuple[str, ...] = ()
    alternatives: tuple[tuple[str, ...], ...] = ()
    """Every explanation that fits, where there are several."""
    detail: str = ""
    window: Golden | None = None
    step: int | None = None
    given: float | None = None
    expected: float | None = None
    given_row: tuple[float, ...] = ()
    expected_row: tuple[float, ...] = ()
    term: str = ""
    terms: tuple[str, ...] = ()
    """Of a mistake that is not in the list: the terms of Eq. 3 that part, as measured."""
    evidence: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    tolerance: float = 0.0
    num_windows: int = 0
    untested: tuple[str, ...] = field(default=())

    def __str__(self) -> str:
        return self.text()

    def text(self) -> str:
        """The whole answer, at most 80 columns wide."""
        parts = [self._headline(), *self._story(), *self._picture(), *self._foot()]
        return "\n".join(parts)

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        plain = asdict(self)
        plain["window"] = None if self.window is None else self.window.name
        return plain

    # -- the parts --------------------------------------------------------------------------------------------------

    def _name(self) -> str:
        title = TITLES.get(self.trace or "", self.trace or "no known algorithm")
        if self.lambda_ is None:
            return title
        return f"{title}, with the λ it is given" if self.lambda_known else f"{title}, λ = {self.lambda_:.6g}"

    def _headline(self) -> str:
        titles = " and ".join(MISTAKES[name].title for name in self.mistakes)
        fitting = len(self.alternatives)
        extra = f" ({self.detail})" if self.detail else ""
        text = {
            "right": f"RIGHT: `{self.function}` is {self._name()}"
            + (", its corrections clamped to [−1, 1] as in the paper's App. F" if "clamped" in self.output else "")
            + (f", up to {self.detail}." if self.detail else "."),
            "variant": f"A VARIANT: `{self.function}` is {self._name()}, but {titles}{extra}.",
            "ignored": f"NOT RETRACE: `{self.function}` takes `{self.detail}` and never reads it. What is left is "
            f"{self._name()}.",
            "rounded": f"NOT PRECISE: `{self.function}` is {self._name()}, but {self.detail}.",
            "fragile": f"NOT ALWAYS RIGHT: `{self.function}` is {self._name()} in small windows, and fails here:",
            "another": f"NOT WHAT YOU NAMED: `{self.function}` is {self._name()}, and right as that.",
            "mistake": f"MISTAKE in `{self.function}`: {titles}{extra}.",
            "mistakes": f"TWO MISTAKES in `{self.function}`: {titles}{extra}.",
            "ambiguous": f"WRONG: `{self.function}` has a mistake, and {fitting} explanations fit equally:",
            "unknown": f"WRONG: `{self.function}` goes wrong in a way that is not in the list of known mistakes."
            if not self.terms
            else f"WRONG: in `{self.function}` {'; and '.join(self.terms)}.",
        }[self.kind]
        return textwrap.fill(text, WIDTH)

    def _story(self) -> list[str]:
        out: list[str] = []
        if self.kind == "right" and self.mistakes:
            entry = MISTAKES[self.mistakes[0]]
            out += ["", *_wrap(f"{entry.sentence} {entry.remedy}")]
        if self.kind in ("right", "ignored", "another"):
            out += self._theory()
        if self.kind == "rounded":
            out += [
                "",
                *_wrap(
                    "Add up in float32 at least: a small late reward is lost in a large sum. Keep half "
                    "precision for what goes into the network."
                ),
            ]
        if self.kind == "fragile":
            out += ["", *(line for text in self.evidence for line in _wrap("- " + text, hanging=2))]
        if self.kind in ("mistake", "mistakes", "variant"):
            for name in self.mistakes:
                entry = MISTAKES[name]
                out += ["", *_wrap(entry.sentence), "", *_marked(self.trace, entry.where), ""]
                out += _wrap("To change: " + entry.remedy)
            out += _wrap(f"Apart from that it is {self._name()}.")
        if self.kind == "ambiguous":
            for names in self.alternatives:
                out += _wrap("- " + "; and ".join(MISTAKES[name].title for name in names), hanging=2)
        if self.kind == "unknown":
            out += ["", *_wrap(f"Nearest to it: {self._name()}.")]
            if self.terms:
                out += _wrap("This was measured: rewards and values were changed one at a time.")
        return out

    def _theory(self) -> list[str]:
        """What is known of a trace that is not Retrace, and not plainly safe."""
        theory = THEORY.get(self.trace or "")
        if theory is None or not theory.says:
            return []
        out = ["", *_wrap(("" if theory.safe else "NOT SAFE: ") + theory.says)]
        if self.kind == "ignored":
            out += _wrap(
                f"To change: read `{self.detail}`: Retrace is c = λ·min(1, π/μ). If you mean "
                f"{TITLES[self.trace or '']}, leave `{self.detail}` out, or say `--trace {self.trace}`."
            )
        elif self.kind == "right" and self.trace != "vtrace":
            out += _wrap("If you meant Retrace, it is not: c = λ·min(1, π/μ). Say `--trace retrace` to test for it.")
        return out

    def _picture(self) -> list[str]:
        if self.window is None:
            return []
        w, n = self.window, self.window.n
        known = f"γ = {self.gamma:g}" + ("" if self.lambda_ is None else f", λ = {self.lambda_:.6g}")
        out = ["", *_wrap(f"The smallest window that shows it: {w.name} ({known}).")]
        out += ["", "   t    Q(x_t,·)        π(·|x_t)        μ(·|x_t)      a_t    r_t   end"]
        for t in range(n + 1):
            row = f"  {t:2}  {_pair(w.q[t])}  {_pair(w.pi[t])}  {_pair(w.mu[t])}"
            if t < n:
                end = "terminated" if w.terminated[t] else "truncated" if w.truncated[t] else ""
                end = end if w.real[t] else "no step"
                row += f"  {w.a[t]:>4}  {w.r[t]:>5g}   {end}"
            out.append(row.rstrip())
        if self.two_networks:
            rows = "; ".join(_pair(row).strip() for row in w.online.q)
            out += ["", *_wrap(f"Q(x_t,·) is the target network's. The online network's rows: {rows}.")]
        for t, q, pi in w.true_next:
            out += [f"      step {t} led to another state: Q = {_pair(q).strip()}, π = {_pair(pi).strip()}"]
        out += ["", f"  {'step':24}" + "".join(f"{t:>12}" for t in self._steps())]
        out.append(f"  {'your function gives':24}" + "".join(f"{x:>12.6g}" for x in self.given_row))
        out.append(f"  {'right is':24}" + "".join(f"{x:>12.6g}" for x in self.expected_row))
        out += self._by_hand()
        return out

    def _steps(self) -> list[Any]:
        assert self.window is not None
        if len(self.given_row) == 1 and self.window.n > 1:
            return ["all"]
        return [t for t in range(self.window.n) if self.window.real[t]]

    def _by_hand(self) -> list[str]:
        """The right target of the step in question, with its numbers put in."""
        w, t = self.window, self.step
        if (
            w is None
            or t is None
            or self.trace is None
            or self.lambda_ is None
            or self.two_networks
            or len(self.given_row) != len(self._steps())
        ):
            return []
        if self.trace in ("vtrace", "peng") or (self.trace in TRACES and not TRACES[self.trace].markov):
            return []
        w = replace(w, gamma=self.gamma)
        g, pi, q = targets(w, self.trace, self.lambda_), w.next_pi[t], w.next_q[t]
        discount = 0.0 if w.terminated[t] else self.gamma
        value = " + ".join(f"{p:.4g}·{x:.4g}" for p, x in zip(pi, q, strict=True))
        line, lines = f"by hand: G_{t} = {w.r[t]:g} + {discount:g} [ {value}", []
        if t + 1 < w.n:
            c = 0.0 if w.starts[t + 1] else coefficients(w, self.trace, self.lambda_)[t + 1]
            line += f" + {c:.4g} ({g[t + 1]:.6g} − {w.q_a[t + 1]:g})"
            known = f"π(a_{t + 1}) = {w.pi_a[t + 1]:.4g}, μ(a_{t + 1}) = {w.mu_a[t + 1]:.4g}"
            rule = "0, a new episode" if w.starts[t + 1] else f"{TRACES[self.trace].rule} with {known}"
            lines.append(f"where {c:.4g} is c_{t + 1} = {rule}")
        if self.output != "targets":
            lines.append(f"and your function gives {self.output}; Q(x_{t},a_{t}) = {w.q_a[t]:g}")
        return ["", *(part for text in (f"{line} ] = {g[t]:.6g}", *lines) for part in _wrap(text, hanging=2))]

    def _foot(self) -> list[str]:
        out: list[str] = []
        if self.evidence and self.kind != "fragile":
            out += ["", "  Inputs changed one at a time, in this window:"]
            out += [line for text in self.evidence for line in _wrap("- " + text, hanging=2, indent=4)]
        facts = [f"called as: {self.convention}; gives {self.output}"] if self.convention else []
        if self.fed:
            facts.append("given to it: " + "; ".join(self.fed))
        if self.kind in ("unknown", "ambiguous") and self.fed:
            facts.append("if that is not what your parameters mean, write an adapter: `offtrace doctor --help`")
        if self.tolerance:
            facts.append(f"compared on {self.num_windows} windows, to {self.tolerance:g} relative")
        facts += self.notes
        if facts:
            out += ["", *(line for fact in facts for line in _wrap(fact, indent=2, hanging=2))]
        return out


def _title(cls: type[Trace]) -> str:
    """Return the name of a trace inside a sentence, with the parameters other than λ that it was compared at."""
    others = ", ".join(f"{field.name} = {field.default}" for field in fields(cls) if field.name != "lambda_")
    return f"{cls.full_name} with {others}" if others else cls.full_name


TITLES = {name: _title(cls) for name, cls in TRACES.items()} | {"peng": "Peng's Q(λ)", "vtrace": "V-trace"}


class Theory(NamedTuple):
    """Whether theory covers a trace for every π and μ, and what there is to say of it."""

    safe: bool
    says: str = ""


THEORY = {name: Theory(cls.safe, cls.theory) for name, cls in TRACES.items()} | {
    "peng": Theory(
        False,
        "It corrects for nothing: it converges to the values of the mixture λμ + (1−λ)π, not to those of π "
        "(Kozuno et al. 2021).",
    ),
    "vtrace": Theory(
        True,
        "Its fixed point is the value of a policy between μ and π, as its ratios are clipped (Espeholt et al. 2018); "
        "it learns state values.",
    ),
}


def _marked(trace: str | None, where: str) -> list[str]:
    """The equation, and the term under which it parts."""
    if trace == "vtrace":
        return [f"  {VTRACE_EQUATION}"]
    return [f"  {EQUATION}", "  " + " " * EQUATION.index(where) + "^" * len(where)]


def _pair(row: tuple[float, ...]) -> str:
    return " ".join(f"{x:>6.4g}" if abs(x) >= 1e-4 or x == 0 else f"{x:>6.0e}" for x in row)


def _wrap(text: str, *, indent: int = 2, hanging: int = 0) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=" " * indent, subsequent_indent=" " * (indent + hanging), break_on_hyphens=False
    )
