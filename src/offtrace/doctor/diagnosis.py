"""From a function to its verdict: call it in every way that works, and compare its numbers."""

import os
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from offtrace.doctor import search
from offtrace.doctor.answers import Answer, Attempt, answers_in, attempted
from offtrace.doctor.candidates import candidates, narrowing_words
from offtrace.doctor.conventions import Convention, from_adapter, remedy, takes_a_window, unfit
from offtrace.doctor.evidence import failures, first_difference, wrong_dependencies
from offtrace.doctor.golden import TRIAL, WINDOWS
from offtrace.doctor.mistakes import MISTAKES
from offtrace.doctor.quantities import CUTS, ENDS, OF_MU
from offtrace.doctor.recursion import ALGORITHMS
from offtrace.doctor.search import Fit, Guess
from offtrace.doctor.terms import wrong_terms
from offtrace.doctor.verdict import THEORY, TITLES, Verdict
from offtrace.traces import TRACES

Function = Callable[..., Any]


def _name(fn: Function) -> str:
    inner = getattr(fn, "func", fn)
    return getattr(inner, "__name__", type(inner).__name__)


# -- calling it ------------------------------------------------------------------------------------


def attempts(fn: Function, convention: str | Callable[[Function, Any], Any] | None) -> list[Attempt]:
    """Return every way of calling the function that works, with its outputs."""
    if callable(convention):
        return [_through_adapter(fn, lambda window: convention(fn, window))]
    words = () if convention is None else narrowing_words(convention)
    if takes_a_window(fn):
        return [_through_adapter(fn, fn)]
    failed: list[Exception] = []
    try:
        found = _tried(fn, words, failed)
    except ValueError as error:
        raise unfit(f"`{_name(fn)}` fits no known convention: {error}") from None
    if found:
        return found
    # A missing name is an error in the function; a wrong shape may only mean that the guess was wrong.
    error = next((x for x in failed if isinstance(x, NameError | ImportError)), failed[0])
    _check_installed(fn, error)
    message = (str(error).splitlines() or [""])[0][:120]
    raise unfit(f"`{_name(fn)}` fits no known convention; it raised {type(error).__name__}: {message}.")


def _tried(fn: Function, words: tuple[str, ...], failed: list[Exception]) -> list[Attempt]:
    """Try the candidates. The first library that works ends the search; errors go to `failed`."""
    found: list[Attempt] = []
    working: set[Any] = set()
    for candidate in candidates(fn, words):
        if found and candidate.library != found[0].convention.library:
            break
        shape = (candidate.arguments, candidate.layout)
        if shape in working:
            continue
        try:
            attempt = attempted(fn, candidate)
        except Exception as error:  # the user's function may raise anything
            failed.append(error)
            continue
        if attempt.windows:
            working.add(shape)
            found.append(attempt)
    return found


def _check_installed(fn: Function, error: Exception) -> None:
    """Raise a clear error if the function failed because a module is missing."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        module = error.name.partition(".")[0]
        raise ValueError(f"`{_name(fn)}` needs `{module}`, which is not installed. {remedy(module)}") from None


def _through_adapter(fn: Function, adapter: Callable[[Any], Any]) -> Attempt:
    try:
        return attempted(fn, from_adapter(adapter, TRIAL))
    except Exception as error:  # the user's function may raise anything
        _check_installed(fn, error)
        here = os.path.dirname(__file__)
        frames = traceback.extract_tb(error.__traceback__)
        last = next((x for x in reversed(frames) if os.path.dirname(x.filename) != here), frames[-1])
        place = f"{os.path.basename(last.filename)}:{last.lineno}"
        raise ValueError(
            f"your adapter raised {type(error).__name__} at {place}: {error} A window holds NumPy "
            "arrays of float64, without a batch axis; return one target per step."
        ) from None


# -- what its numbers show -------------------------------------------------------------------------


def diagnose(fn: Function, tried: list[Attempt], trace: str | None, lambda_: float | None) -> Verdict:
    """Try explanations in this order: right, one mistake, another algorithm, rounding, two mistakes, none."""
    answers = sorted((x for attempt in tried for x in answers_in(attempt)), key=lambda x: x.form.rank)
    if not answers:
        raise unfit(f"`{_name(fn)}` returns nothing that looks like targets, errors or losses.")
    wanted = ALGORITHMS if trace is None else (trace,)
    fits = _right_fits(answers, wanted, lambda_)
    if fits:
        return _right(fn, fits, trace)
    fits = _mistaken_fits(fn, answers, trace, lambda_, num_mistakes=1)
    if fits:
        return _mistaken(fn, fits)
    if trace is not None or lambda_ is not None:
        others = [fit for answer in answers for fit in search.fitting(answer, ALGORITHMS, None, 0)]
        if others:
            return _verdict(fn, "another", others[0])
    imprecise = [x for answer in answers if (x := search.rounded(answer, wanted, lambda_))]
    if imprecise:
        fit, error = min(imprecise, key=lambda x: (x[1], x[0].answer.form.rank))
        return _rounded(fn, fit, error, trace)
    fits = _mistaken_fits(fn, answers, trace, lambda_, num_mistakes=2)
    if fits:
        return _mistaken(fn, fits)
    return _unknown(fn, answers, wanted, lambda_)


def _right_fits(answers: list[Answer], wanted: tuple[str, ...], lambda_: float | None) -> list[Fit]:
    """Return the fits without mistakes, in the first form of output that has any."""
    fits: list[Fit] = []
    for answer in answers:
        if fits and answer.form.rank > fits[0].answer.form.rank:
            break
        fits += search.fitting(answer, wanted, lambda_, 0)
    return fits


def _mistaken_fits(
    fn: Function, answers: list[Answer], trace: str | None, lambda_: float | None, *, num_mistakes: int
) -> list[Fit]:
    """Return the fits with this many mistakes that also hold in long windows."""
    fits = []
    for answer in answers:
        if num_mistakes == 1 or not answer.form.clamped:
            algorithms = search.breakable(trace, answer.attempt, num_mistakes)
            fits += search.fitting(answer, algorithms, lambda_, num_mistakes)
    return [fit for fit in fits if all(failure.raised for failure in failures(fn, fit))]


def _right(fn: Function, fits: list[Fit], trace: str | None) -> Verdict:
    """Every number is right. Check long windows, and that μ is read where the function takes it."""
    first = fits[0]
    layouts = tuple(dict.fromkeys(fit.answer.attempt.convention.layout for fit in fits))
    failed = failures(fn, first)
    raised = first.answer.attempt.raised
    if failed or raised:
        evidence = (*(f"{failure.window}: {failure.text}" for failure in failed), *raised[:3])
        return _verdict(fn, "fragile", first, layouts=layouts, evidence=evidence)
    unread = _unread_mu(first)
    if unread and trace is None and not THEORY[first.guess.algorithm].safe:
        return _verdict(fn, "ignored", first, layouts=layouts, detail=unread)
    return _verdict(fn, "right", first, layouts=layouts)


def _unread_mu(fit: Fit) -> str:
    """Return the parameter that holds μ, if the algorithm that fits every number does not use μ."""
    algorithm = fit.guess.algorithm
    convention = fit.answer.attempt.convention
    uses_mu = algorithm == "vtrace" or (algorithm in TRACES and TRACES[algorithm].needs_mu)
    if uses_mu or "c" in convention.kinds:
        return ""
    if convention.adapter is not None:
        return next((f"window.{kind}" for kind in sorted(convention.kinds & OF_MU)), "")
    return next((argument.name for argument in convention.arguments if argument.kind in OF_MU), "")


def _rounded(fn: Function, fit: Fit, error: float, trace: str | None) -> Verdict:
    """Right up to rounding. float32 is precise enough; half precision is not."""
    if error <= search.SINGLE:
        fit = Fit(fit.guess, replace(fit.answer, tolerance=search.SINGLE))
        verdict = _right(fn, [fit], trace)
        return replace(verdict, detail="rounding: it computes in float32") if verdict.right else verdict
    dtype = "float16" if error <= 4e-3 else "bfloat16"
    detail = f"its numbers are off by up to {error:.1g}, as when returns are added up in {dtype}"
    return _verdict(fn, "rounded", fit, detail=detail, **_difference(fit))


def _mistaken(fn: Function, fits: list[Fit]) -> Verdict:
    """Every number is explained by one or two known mistakes, or by several equally good explanations."""
    first = fits[0]
    explanations = tuple(dict.fromkeys(fit.guess.mistakes for fit in fits))
    if len(explanations) > 1:
        return _verdict(fn, "ambiguous", first, alternatives=explanations, **_difference(first))
    names = explanations[0]
    entry = MISTAKES[names[0]]
    switches = first.guess.switches
    details = {"clip_not_at_one": f"c̄ = {switches.clip:g}", "epsilon_added_to_mu": f"{switches.epsilon:g}"}
    detail = ", ".join(details[name] for name in names if name in details)
    if len(names) == 2:
        kind = "mistakes"
    elif entry.harmless and switches.epsilon <= 1e-6:
        detail = f"an epsilon of {switches.epsilon:g} added to μ"
        return _verdict(fn, "right", first, mistakes=names, detail=detail, **_difference(first))
    else:
        kind = "variant" if entry.choice else "mistake"
    return _verdict(fn, kind, first, mistakes=names, term=entry.where, detail=detail, **_difference(first))


def _unknown(fn: Function, answers: list[Answer], wanted: tuple[str, ...], lambda_: float | None) -> Verdict:
    """Nothing explains the numbers. Measure the terms, and look for inputs that have a wrong effect."""
    plain = [answer for answer in answers if not answer.form.clamped] or answers
    best = max(plain, key=lambda answer: _closest(answer, wanted, lambda_)[1])
    guess, _ = _closest(best, wanted, lambda_)
    fit = Fit(guess, best)
    difference = _difference(fit)
    terms = wrong_terms(fn, best, replace(guess, algorithm="retrace"))
    evidence: list[str] = []
    if not terms or not all(term.named for term in terms):
        evidence = wrong_dependencies(fn, best, guess, difference["window"])
    texts = tuple(term.text for term in terms)
    return _verdict(fn, "unknown", fit, evidence=tuple(evidence), terms=texts, **difference)


def _closest(answer: Answer, wanted: tuple[str, ...], lambda_: float | None) -> tuple[Guess, float]:
    """Return the right guess that comes closest to an answer, and how close; targets are preferred to errors."""
    algorithms = wanted if len(wanted) == 1 else search.breakable(None, answer.attempt, 1)
    lam = search.known_lambda(answer, lambda_)
    lambdas = search.COMMON_LAMBDAS if lam is None else (lam,)
    signature = search.Signature(False, answer.attempt.convention.two_networks, search.gammas(answer)[0])
    guess, closeness = search.guesses(algorithms, lambdas, 0, signature).nearest(answer)
    if answer.form.name != "targets":
        closeness *= 0.8
    return guess, closeness


def _difference(fit: Fit) -> dict[str, Any]:
    return first_difference(fit.answer, fit.guess.corrected())._asdict()


# -- the verdict -----------------------------------------------------------------------------------


def _verdict(fn: Function, kind: str, fit: Fit, *, layouts: tuple[str, ...] = (), **details: Any) -> Verdict:
    attempt = fit.answer.attempt
    guess = fit.guess
    convention = attempt.convention
    return Verdict(
        right=kind == "right",
        kind=kind,
        function=_name(fn),
        trace=guess.algorithm,
        lambda_=None if guess.algorithm == "one_step" else guess.lambda_,
        gamma=guess.gamma,
        two_networks=convention.two_networks,
        lambda_known=convention.knows_lambda,
        convention=convention.text(layouts),
        fed=convention.fed(),
        output=fit.answer.form.name,
        tolerance=fit.answer.tolerance,
        num_windows=len(attempt.windows),
        notes=tuple(_notes(fit, kind)),
        untested=tuple(w.name for w in WINDOWS if w not in attempt.windows),
        **details,
    )


def _notes(fit: Fit, kind: str) -> list[str]:
    """Return the remarks at the end of a verdict: what was inferred, and what was not tested."""
    guess = fit.guess
    convention = fit.answer.attempt.convention
    has_lambda = guess.algorithm != "one_step"
    notes = []
    if has_lambda and not convention.knows_lambda:
        source = "it was compared with" if kind == "unknown" else "its numbers show"
        notes.append(f"it takes no λ; {source} λ = {guess.lambda_:.6g}")
    if not convention.takes_gamma:
        notes.append(f"it takes no γ; its numbers show γ = {guess.gamma:.6g}")
    if convention.two_networks:
        network = "online" if guess.switches.baseline_online else "target"
        notes.append(
            "two networks: values come from the target network; Q(x_t, a_t) inside TD errors "
            f"comes from the {network} network"
        )
    if fit.answer.form.clamped:
        notes.append("corrections are clamped to [−1, 1], as in the paper's App. F")
    unread = _unread_mu(fit) if kind in ("right", "fragile") else ""
    if unread:
        notes.append(f"it takes `{unread}` and never reads it: {TITLES[guess.algorithm]} does not use μ")
    if not has_lambda and "lambda_" in convention.kinds:
        notes.append("it takes λ and never reads it: the one-step target has no λ")
    if fit.answer.form.reduce and convention.batched:
        notes.append("its loss is over this window and two others in the batch")
    if "c" in convention.kinds:
        notes.append("c is passed to it, so only the recursion was checked, with the c of Retrace")
    notes += _untested_ends(convention)
    if kind != "fragile":
        notes += [f"it raised on {text}" for text in fit.answer.attempt.raised[:3]]
    return notes


def _untested_ends(convention: Convention) -> list[str]:
    """Return the ends of episodes that the arguments cannot express, so that no window could test them."""
    kinds = convention.kinds
    if all(convention.expresses(window) for window in WINDOWS):
        return []
    if not ENDS & kinds:
        return ["not tested: ends of episodes. It takes no done flags and no discounts"]
    if "done" in kinds and "terminated" not in kinds:
        return [
            "not tested: truncation. It has one flag for both ends: pass `terminated` as that "
            "flag, and do not let windows cross a truncation"
        ]
    if not CUTS & kinds:
        return [
            "not tested: truncation inside a window, which its arguments cannot express. Do not "
            "let windows cross a truncation"
        ]
    return [
        "not tested: a truncation where row t+1 already belongs to the next episode (same-step "
        "autoreset). It has no argument for the value of the true last state, so that state needs "
        "its own row"
    ]
