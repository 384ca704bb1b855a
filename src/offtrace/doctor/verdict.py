"""The doctor's verdict, and how it is printed."""

import textwrap
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, NamedTuple

from offtrace.doctor.mistakes import MISTAKES
from offtrace.doctor.recursion import EQUATION, NOT_TRACES, VTRACE_EQUATION, coefficients, targets
from offtrace.doctor.windows import GAMMA, GoldenWindow
from offtrace.traces import TRACES, Trace

WIDTH = 80
APP_F_CLAMP = "corrections clamped to [−1, 1] as in the paper's App. F"


@dataclass(frozen=True)
class Verdict:
    """The doctor's verdict on one function; `print` it."""

    right: bool
    kind: str
    """"right", "variant", "ignored", "rounded", "fragile", "mistake", "mistakes", "ambiguous",
    "another" or "unknown"."""
    function: str
    trace: str | None = None
    lambda_: float | None = None
    gamma: float = GAMMA
    two_networks: bool = False
    lambda_known: bool = True
    """True if λ was passed to the function or given by the user; otherwise it was inferred from the numbers."""
    convention: str = ""
    fed: tuple[str, ...] = ()
    """The quantity that each parameter was given."""
    output: str = ""
    mistakes: tuple[str, ...] = ()
    alternatives: tuple[tuple[str, ...], ...] = ()
    """All explanations that fit, if there are several."""
    detail: str = ""
    window: GoldenWindow | None = None
    step: int | None = None
    given: float | None = None
    expected: float | None = None
    given_row: tuple[float, ...] = ()
    expected_row: tuple[float, ...] = ()
    term: str = ""
    terms: tuple[str, ...] = ()
    """The measured terms of Eq. 3 that are wrong, where the mistake is not a known one."""
    evidence: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    tolerance: float = 0.0
    num_windows: int = 0
    untested: tuple[str, ...] = ()

    def __repr__(self) -> str:
        shown = [f"function={self.function!r}", f"kind={self.kind!r}", f"right={self.right}", f"trace={self.trace!r}"]
        if self.mistakes:
            shown.append(f"mistakes={self.mistakes!r}")
        return f"Verdict({', '.join(shown)})"

    def __str__(self) -> str:
        return self.text()

    def text(self) -> str:
        """Return the whole verdict, at most 80 columns wide."""
        return "\n".join([self._headline(), *self._explanation(), *self._example(), *self._facts()])

    def as_dict(self) -> dict[str, Any]:
        """Return the verdict as plain values, for JSON."""
        plain = asdict(self)
        plain["window"] = None if self.window is None else self.window.name
        return plain

    # -- the headline ------------------------------------------------------------------------------

    def _algorithm(self) -> str:
        title = TITLES.get(self.trace or "", self.trace or "no known algorithm")
        if self.lambda_ is None:
            return title
        if self.lambda_known:
            return f"{title} with the λ it is given"
        return f"{title} with λ = {self.lambda_:.6g}"

    def _headline(self) -> str:
        name = f"`{self.function}`"
        algorithm = self._algorithm()
        titles = " and ".join(MISTAKES[mistake].title for mistake in self.mistakes)
        if self.detail:
            titles += f" ({self.detail})"
        text = {
            "right": f"RIGHT: {name} is {algorithm}{self._qualification()}.",
            "variant": f"VARIANT: {name} is {algorithm}, but {titles}.",
            "ignored": f"NOT RETRACE: {name} takes `{self.detail}` and never reads it, which makes it {algorithm}.",
            "rounded": f"NOT PRECISE: {name} is {algorithm}, but {self.detail}.",
            "fragile": f"NOT ALWAYS RIGHT: {name} is {algorithm} in small windows, but fails in others:",
            "another": f"DIFFERENT ALGORITHM: {name} is a correct {algorithm}, which is not what you named.",
            "mistake": f"MISTAKE in {name}: {titles}.",
            "mistakes": f"TWO MISTAKES in {name}: {titles}.",
            "ambiguous": f"WRONG: {name} has a mistake, and {len(self.alternatives)} explanations fit equally well:",
            "unknown": f"WRONG: {name} has a mistake that is not in the list of known mistakes.",
        }[self.kind]
        if self.kind == "unknown" and self.terms:
            text = f"WRONG: in {name}, {'. Also, '.join(self.terms)}."
        return textwrap.fill(text, WIDTH)

    def _qualification(self) -> str:
        """Return what follows the algorithm in the headline of a function that is right."""
        clamp = f", with {APP_F_CLAMP}" if "clamped" in self.output else ""
        rounding = f", up to {self.detail}" if self.detail else ""
        return clamp + rounding

    # -- the explanation ---------------------------------------------------------------------------

    def _explanation(self) -> list[str]:
        if self.kind in ("mistake", "mistakes", "variant"):
            return self._known_mistakes()
        if self.kind == "rounded":
            text = (
                "Add up in float32 at least: a small late reward is lost in a large sum. Use half "
                "precision only for the inputs of the network."
            )
            return ["", *_wrap(text)]
        if self.kind == "fragile":
            return ["", *_bullets(self.evidence)]
        if self.kind == "ambiguous":
            return _bullets("; and ".join(MISTAKES[name].title for name in names) for names in self.alternatives)
        if self.kind == "unknown":
            out = ["", *_wrap(f"The closest algorithm is {self._algorithm()}.")]
            if self.terms:
                out += _wrap("The terms were measured by changing rewards and values one at a time.")
            return out
        out: list[str] = []
        if self.mistakes:  # a harmless one
            entry = MISTAKES[self.mistakes[0]]
            out += ["", *_wrap(f"{entry.sentence} {entry.remedy}")]
        return out + self._theory()

    def _known_mistakes(self) -> list[str]:
        out: list[str] = []
        for name in self.mistakes:
            entry = MISTAKES[name]
            out += ["", *_wrap(entry.sentence), "", *_marked(self.trace, entry.where), ""]
            out += _wrap("Fix: " + entry.remedy)
        return out + _wrap(f"Otherwise it is {self._algorithm()}.")

    def _theory(self) -> list[str]:
        """Return what is known about a trace other than Retrace that is not simply safe."""
        theory = THEORY.get(self.trace or "")
        if theory is None or not theory.text:
            return []
        out = ["", *_wrap(("" if theory.safe else "NOT SAFE: ") + theory.text)]
        if self.kind == "ignored":
            out += _wrap(
                f"Fix: use `{self.detail}`; Retrace is c = λ·min(1, π/μ). If you mean "
                f"{TITLES[self.trace or '']}, remove `{self.detail}`, or pass `--trace "
                f"{self.trace}`."
            )
        elif self.kind == "right" and self.trace != "vtrace":
            out += _wrap(
                "This is not Retrace, which is c = λ·min(1, π/μ). Pass `--trace retrace` if it should be Retrace."
            )
        return out

    # -- the smallest window that shows it ---------------------------------------------------------

    def _example(self) -> list[str]:
        if self.window is None:
            return []
        settings = f"γ = {self.gamma:g}"
        if self.lambda_ is not None:
            settings += f", λ = {self.lambda_:.6g}"
        out = ["", *_wrap(f"The smallest window that shows it: {self.window.name} ({settings})."), ""]
        out += _table(self.window)
        if self.two_networks:
            rows = "; ".join(_numbers(row).strip() for row in self.window.online.q)
            out += ["", *_wrap(f"Q(x_t,·) is the target network's. The online network's rows: {rows}.")]
        for t, q, pi in self.window.true_next:
            out += [f"      step {t} led to another state: Q = {_numbers(q).strip()}, π = {_numbers(pi).strip()}"]
        out += ["", f"  {'step':24}" + "".join(f"{t:>12}" for t in self._steps(self.window))]
        out.append(f"  {'your function returns':24}" + "".join(f"{x:>12.6g}" for x in self.given_row))
        out.append(f"  {'the right result':24}" + "".join(f"{x:>12.6g}" for x in self.expected_row))
        return out + self._by_hand(self.window)

    def _steps(self, window: GoldenWindow) -> list[Any]:
        if len(self.given_row) == 1 and window.n > 1:
            return ["all"]
        return [t for t in range(window.n) if window.real[t]]

    def _by_hand(self, window: GoldenWindow) -> list[str]:
        """Return the right target of the step in question, with its numbers put in, where Eq. 3 gives it."""
        t = self.step
        if t is None or self.trace is None or self.lambda_ is None or self.two_networks:
            return []
        if len(self.given_row) != len(self._steps(window)):
            return []
        if self.trace in NOT_TRACES or not TRACES[self.trace].markov:
            return []
        window = replace(window, gamma=self.gamma)
        g = targets(window, self.trace, self.lambda_)
        discount = 0.0 if window.terminated[t] else self.gamma
        value = " + ".join(f"{p:.4g}·{x:.4g}" for p, x in zip(window.next_pi[t], window.next_q[t], strict=True))
        line = f"by hand: G_{t} = {window.r[t]:g} + {discount:g} [ {value}"
        remarks = []
        if t + 1 < window.n:
            if window.starts[t + 1]:
                c = 0.0
                rule = "0, since a new episode starts"
            else:
                c = coefficients(window, self.trace, self.lambda_)[t + 1]
                pi_a = f"π(a_{t + 1}) = {window.pi_a[t + 1]:.4g}"
                mu_a = f"μ(a_{t + 1}) = {window.mu_a[t + 1]:.4g}"
                rule = f"{TRACES[self.trace].rule} with {pi_a}, {mu_a}"
            line += f" + {c:.4g} ({g[t + 1]:.6g} − {window.q_a[t + 1]:g})"
            remarks.append(f"where {c:.4g} is c_{t + 1} = {rule}")
        if self.output != "targets":
            remarks.append(f"your function returns {self.output}, with Q(x_{t},a_{t}) = {window.q_a[t]:g}")
        out = [""]
        for text in (f"{line} ] = {g[t]:.6g}", *remarks):
            out += _wrap(text, hanging=2)
        return out

    # -- how it was tested -------------------------------------------------------------------------

    def _facts(self) -> list[str]:
        out: list[str] = []
        if self.evidence and self.kind != "fragile":
            out += ["", "  Changing the inputs one at a time, in this window:", *_bullets(self.evidence, indent=4)]
        facts = []
        if self.convention:
            facts.append(f"called as: {self.convention}; returns {self.output}")
        if self.fed:
            facts.append("parameters: " + "; ".join(self.fed))
        if self.fed and self.kind in ("unknown", "ambiguous"):
            facts.append("if your parameters mean something else, write an adapter: `offtrace doctor --help`")
        if self.tolerance:
            facts.append(f"compared in {self.num_windows} windows, with a relative tolerance of {self.tolerance:g}")
        facts += self.notes
        if facts:
            out.append("")
        for fact in facts:
            out += _wrap(fact, hanging=2)
        return out


def _title(cls: type[Trace]) -> str:
    """Return the name of a trace inside a sentence, with the parameters other than λ that it was compared at."""
    others = ", ".join(f"{field.name} = {field.default}" for field in fields(cls) if field.name != "lambda_")
    return f"{cls.full_name} with {others}" if others else cls.full_name


TITLES = {name: _title(cls) for name, cls in TRACES.items()} | {"peng": "Peng's Q(λ)", "vtrace": "V-trace"}


class Theory(NamedTuple):
    """What is known about a trace; `safe` means safe for every π and μ."""

    safe: bool
    text: str = ""


THEORY = {name: Theory(cls.safe, cls.theory) for name, cls in TRACES.items()} | {
    "peng": Theory(
        False,
        "It does not correct for μ: it converges to the values of the mixture λμ + (1−λ)π, not to "
        "those of π (Kozuno et al. 2021).",
    ),
    "vtrace": Theory(
        True,
        "Its ratios are clipped, so its fixed point is the value of a policy between μ and π "
        "(Espeholt et al. 2018). It learns state values.",
    ),
}


def _table(window: GoldenWindow) -> list[str]:
    """Return the rows of a window as text."""
    out = ["   t    Q(x_t,·)        π(·|x_t)        μ(·|x_t)      a_t    r_t   end"]
    for t in range(window.n + 1):
        row = f"  {t:2}  {_numbers(window.q[t])}  {_numbers(window.pi[t])}  {_numbers(window.mu[t])}"
        if t < window.n:
            row += f"  {window.a[t]:>4}  {window.r[t]:>5g}   {_end(window, t)}"
        out.append(row.rstrip())
    return out


def _end(window: GoldenWindow, t: int) -> str:
    if not window.real[t]:
        return "not a step"
    if window.terminated[t]:
        return "terminated"
    return "truncated" if window.truncated[t] else ""


def _marked(trace: str | None, where: str) -> list[str]:
    """Return the equation, with the wrong term underlined."""
    if trace == "vtrace":
        return [f"  {VTRACE_EQUATION}"]
    return [f"  {EQUATION}", "  " + " " * EQUATION.index(where) + "^" * len(where)]


def _numbers(row: tuple[float, ...]) -> str:
    return " ".join(f"{x:>6.4g}" if abs(x) >= 1e-4 or x == 0 else f"{x:>6.0e}" for x in row)


def _bullets(texts: Iterable[str], *, indent: int = 2) -> list[str]:
    return [line for text in texts for line in _wrap("- " + text, hanging=2, indent=indent)]


def _wrap(text: str, *, indent: int = 2, hanging: int = 0) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + hanging),
        break_on_hyphens=False,
    )
