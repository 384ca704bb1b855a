"""Is your Retrace right? Golden windows, known mistakes, and somebody's own function between them.

print(ot.doctor.check(my_retrace))
"""

import os
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from offtrace.doctor import search, terms
from offtrace.doctor.answers import Answer, Run, perform, read
from offtrace.doctor.conventions import (
    Convention,
    candidates,
    from_adapter,
    narrowed,
    remedy,
    takes_a_window,
    unfit,
)
from offtrace.doctor.golden import TRIAL, WINDOWS
from offtrace.doctor.mistakes import ALGORITHMS, MISTAKES, SISTERS, Mistake
from offtrace.doctor.quantities import OF_MU
from offtrace.doctor.search import Fit, Guess
from offtrace.doctor.verdict import THEORY, TITLES, Verdict
from offtrace.traces import TRACES, check_name

__all__ = ["MISTAKES", "Mistake", "Verdict", "check"]


def check(
    fn: Callable[..., Any],
    *,
    convention: str | Callable[[Callable[..., Any], Any], Any] | None = None,
    trace: str | None = None,
    lambda_: float | None = None,
) -> Verdict:
    """Runs somebody's multi-step off-policy target on windows checked by hand, and says what it is.

    Right: which trace, which λ, which convention. Otherwise: the known mistake, with the smallest window that shows
    it; or, if none of the known ones fits, where it goes wrong and what it wrongly depends on.

    Args:
        fn: your function. How to call it is found from the names of its parameters and by trying; a function of one
            parameter called `window` is called with each window as it is.
        convention: words that narrow the search, such as "batch-major torch"; or a callable from your function and a
            window to its targets.
        trace: the name of the trace it should be, from `ot.TRACES`, "vtrace" or "peng"; found if not given.
        lambda_: the λ inside your function, if it takes none; found if not given.

    >>> def one_step(q, a, r, discount, pi):
    ...     return r + discount * (pi * q)[1:].sum(-1)
    >>> verdict = check(one_step)
    >>> verdict.right, verdict.trace
    (True, 'one_step')
    """
    if not callable(fn):
        raise TypeError(f"`fn` must be a function; got {fn!r}.")
    if trace is not None:
        check_name(trace, also=SISTERS)
    if lambda_ is not None and not 0 <= lambda_ <= 1:
        raise ValueError(f"`lambda_` must be in [0, 1]; got {lambda_!r}.")
    return _diagnose(fn, _runs(fn, convention), trace, lambda_)


def _name(fn: Callable[..., Any]) -> str:
    inner = getattr(fn, "func", fn)
    return getattr(inner, "__name__", type(inner).__name__)


def _runs(fn: Callable[..., Any], convention: Any) -> list[Run]:
    """Every way of calling the function that works, with what it answered."""
    if callable(convention):
        return [_through_adapter(fn, lambda window: convention(fn, window))]
    words = narrowed(convention) if convention is not None else ()
    if takes_a_window(fn):
        return [_through_adapter(fn, fn)]
    runs: list[Run] = []
    done: set[Any] = set()
    failures: list[Exception] = []
    try:
        for candidate in candidates(fn, words):
            if runs and candidate.library != runs[0].convention.library:
                break
            shape = (candidate.arguments, candidate.layout)
            if shape in done:
                continue
            try:
                run = perform(fn, candidate)
            except Exception as error:
                failures.append(error)
                continue
            if run.windows:
                done.add(shape)
                runs.append(run)
    except ValueError as error:
        raise unfit(f"`{_name(fn)}` fits no known convention: {error}") from None
    if not runs:
        # A missing name is the function's own; a wrong shape may be the doctor's guess.
        error = next((x for x in failures if isinstance(x, NameError | ImportError)), failures[0])
        _check_installed(fn, error)
        said = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:120]}"
        raise unfit(f"`{_name(fn)}` fits no known convention; it raised {said}.")
    return runs


def _check_installed(fn: Callable[..., Any], error: Exception) -> None:
    """Of a function that needs a module which is missing, nothing else can be said."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        module = error.name.partition(".")[0]
        raise ValueError(f"`{_name(fn)}` needs `{module}`, which is not installed. {remedy(module)}") from None


def _through_adapter(fn: Callable[..., Any], adapter: Callable[[Any], Any]) -> Run:
    try:
        return perform(fn, from_adapter(adapter, TRIAL))
    except Exception as error:
        _check_installed(fn, error)
        frames = traceback.extract_tb(error.__traceback__)
        last = next(
            (f for f in reversed(frames) if os.path.dirname(f.filename) != os.path.dirname(__file__)), frames[-1]
        )
        raise ValueError(
            f"your adapter raised {type(error).__name__} at {os.path.basename(last.filename)}:{last.lineno}: {error} "
            "A window holds NumPy arrays of float64, without a batch axis; give back one target per step."
        ) from None


def _diagnose(fn: Callable[..., Any], runs: list[Run], trace: str | None, lambda_: float | None) -> Verdict:
    answers = sorted((answer for run in runs for answer in read(run)), key=lambda answer: answer.form.rank)
    if not answers:
        raise unfit(f"`{_name(fn)}` gives back nothing that looks like targets, errors or losses.")
    wanted = ALGORITHMS if trace is None else (trace,)
    fits: list[Fit] = []
    for answer in answers:
        if fits and answer.form.rank > fits[0].answer.form.rank:
            break
        fits += search.fitting(answer, wanted, lambda_, 0)
    if fits:
        return _right(fn, fits, trace)
    for count in (1, 2):
        fits = []
        for answer in answers:
            if count == 1 or not answer.form.clamped:
                fits += search.fitting(answer, search.breakable(trace, answer.run, count), lambda_, count)
        fits = [fit for fit in fits if all(doubt.raised for doubt in search.doubts(fn, fit))]
        if fits:
            return _named(fn, fits, count)
        if count == 1:
            if trace is not None or lambda_ is not None:
                others = [fit for answer in answers for fit in search.fitting(answer, ALGORITHMS, None, 0)]
                if others:
                    return _verdict(fn, "another", others[0], right=False)
            imprecise = [x for answer in answers if (x := search.rounded(answer, wanted, lambda_))]
            if imprecise:
                return _rounded(fn, *min(imprecise, key=lambda x: (x[1], x[0].answer.form.rank)), trace)
    return _unknown(fn, answers, wanted, lambda_)


def _right(fn: Callable[..., Any], fits: list[Fit], trace: str | None) -> Verdict:
    """Every number is right. Is it still so where windows are long; and does it read what it takes?"""
    first = fits[0]
    layouts = tuple(dict.fromkeys(fit.answer.run.convention.layout for fit in fits))
    doubts = search.doubts(fn, first)
    if doubts or first.answer.run.raised:
        said = [f"{doubt.window}: {doubt.said}" for doubt in doubts] + list(first.answer.run.raised[:3])
        return _verdict(fn, "fragile", first, right=False, layouts=layouts, evidence=tuple(said))
    algorithm = first.guess.algorithm
    unread = _unread(first)
    if unread and trace is None and not THEORY[algorithm].safe:
        return _verdict(fn, "ignored", first, right=False, layouts=layouts, detail=unread)
    return _verdict(fn, "right", first, layouts=layouts)


def _unread(fit: Fit) -> str:
    """The parameter that holds μ, where the trace that fits every number has no μ in it."""
    algorithm, convention = fit.guess.algorithm, fit.answer.run.convention
    if "c" in convention.kinds or algorithm == "vtrace" or (algorithm in TRACES and TRACES[algorithm].needs_mu):
        return ""
    if convention.adapter is not None:
        return next((f"window.{kind}" for kind in sorted(convention.kinds & OF_MU)), "")
    return next((argument.name for argument in convention.arguments if argument.kind in OF_MU), "")


def _rounded(fn: Callable[..., Any], fit: Fit, off: float, trace: str | None) -> Verdict:
    """Right but for rounding. float32 is what everybody computes in; half precision is not enough to add up in."""
    if off <= search.SINGLE:
        fit = Fit(fit.guess, replace(fit.answer, tolerance=search.SINGLE))
        verdict = _right(fn, [fit], trace)
        return replace(verdict, detail="rounding: it computes in float32") if verdict.right else verdict
    kind = "float16" if off <= 4e-3 else "bfloat16"
    detail = f"its numbers are off by up to {off:.1g}, as they are where returns are added up in {kind}"
    return _verdict(fn, "rounded", fit, right=False, detail=detail, **_parting(fit))


def _named(fn: Callable[..., Any], fits: list[Fit], count: int) -> Verdict:
    explanations = tuple(dict.fromkeys(fit.guess.mistakes for fit in fits))
    first = fits[0]
    if len(explanations) > 1:
        return _verdict(fn, "ambiguous", first, right=False, alternatives=explanations, **_parting(first))
    names = explanations[0]
    how, entry = first.guess.how, MISTAKES[names[0]]
    if count == 1 and entry.harmless and how.epsilon <= 1e-6:
        detail = f"an epsilon of {how.epsilon:g} added to μ"
        return _verdict(fn, "right", first, mistakes=names, detail=detail, **_parting(first))
    details = {"clip_not_at_one": f"c̄ = {how.clip:g}", "epsilon_added_to_mu": f"{how.epsilon:g}"}
    detail = ", ".join(details[name] for name in names if name in details)
    kind = "mistakes" if count == 2 else "variant" if entry.choice else "mistake"
    return _verdict(fn, kind, first, right=False, mistakes=names, term=entry.where, detail=detail, **_parting(first))


def _unknown(
    fn: Callable[..., Any], answers: list[Answer], wanted: tuple[str, ...], lambda_: float | None
) -> Verdict:
    def closest(answer: Answer) -> tuple[Guess, float]:
        tried = wanted if len(wanted) == 1 else search.breakable(None, answer.run, 1)
        lam = search.known_lambda(answer, lambda_)
        lambdas = search.COMMON_LAMBDAS if lam is None else (lam,)
        takes = search.Takes(False, answer.run.convention.two_networks, search.gammas(answer)[0])
        guess, closeness = search.guesses(tried, lambdas, 0, takes).nearest(answer)
        return guess, closeness if answer.form.name == "targets" else 0.8 * closeness

    plain = [answer for answer in answers if not answer.form.clamped] or answers
    best = max(plain, key=lambda answer: closest(answer)[1])
    fit = Fit(closest(best)[0], best)
    parting = _parting(fit)
    parted = terms.parted(fn, best, replace(fit.guess, algorithm="retrace"))
    explained = bool(parted) and all(x.named for x in parted)
    found = [] if explained else search.evidence(fn, best, fit.guess, parting["window"])
    return _verdict(
        fn, "unknown", fit, right=False, evidence=tuple(found), terms=tuple(x.says for x in parted), **parting
    )


def _parting(fit: Fit) -> dict[str, Any]:
    """The smallest window that shows it, and the numbers on both sides."""
    correct = fit.guess.corrected()
    window, step, given, expected = search.first_difference(fit.answer, correct)
    given_row, expected_row = search.row_of(fit.answer, correct, window)
    return {
        "window": window,
        "step": step,
        "given": given,
        "expected": expected,
        "given_row": tuple(given_row),
        "expected_row": tuple(expected_row),
    }


def _verdict(
    fn: Callable[..., Any],
    kind: str,
    fit: Fit,
    *,
    right: bool | None = None,
    layouts: tuple[str, ...] = (),
    **more: Any,
) -> Verdict:
    run, guess = fit.answer.run, fit.guess
    known = run.convention.knows_lambda
    return Verdict(
        right=kind == "right" if right is None else right,
        kind=kind,
        function=_name(fn),
        trace=guess.algorithm,
        lambda_=None if guess.algorithm == "one_step" else guess.lambda_,
        gamma=guess.gamma,
        two_networks=run.convention.two_networks,
        lambda_known=known,
        convention=run.convention.text(layouts),
        fed=run.convention.fed(),
        output=fit.answer.form.name,
        tolerance=fit.answer.tolerance,
        num_windows=len(run.windows),
        notes=_notes(fit, kind),
        untested=tuple(w.name for w in WINDOWS if w not in run.windows),
        **more,
    )


def _notes(fit: Fit, kind: str) -> tuple[str, ...]:
    run, guess, convention = fit.answer.run, fit.guess, fit.answer.run.convention
    notes = []
    if not convention.knows_lambda and guess.algorithm != "one_step":
        how = "it was compared with" if kind == "unknown" else "its numbers say"
        notes.append(f"it takes no λ; {how} λ = {guess.lambda_:.6g}")
    if not {"gamma", "discount"} & convention.kinds:
        notes.append(f"it takes no γ; its numbers say γ = {guess.gamma:.6g}")
    if convention.two_networks:
        whose = "online" if guess.how.baseline_online else "target"
        notes.append(
            f"two networks: it learns from the target network; Q(x_t, a_t) inside TD errors is the {whose}'s"
        )
    if fit.answer.form.clamped:
        notes.append("the clamp is that of the paper's App. F: corrections are clamped to [−1, 1]")
    unread = _unread(fit) if kind in ("right", "fragile") else ""
    if unread:
        notes.append(f"it takes `{unread}` and never reads it: {TITLES[guess.algorithm]} has no μ in it")
    if guess.algorithm == "one_step" and "lambda_" in convention.kinds:
        notes.append("it takes λ and never reads it: the one-step target has no λ")
    if fit.answer.form.reduce and convention.batched:
        notes.append("its loss is over this window and two others beside it in the batch")
    if "c" in convention.kinds:
        notes.append("c is given to it, so only the recursion was checked, with the c of Retrace")
    notes += _untested_ends(convention)
    if kind != "fragile":
        notes += [f"it raised on {text}" for text in run.raised[:3]]
    return tuple(notes)


def _untested_ends(convention: Convention) -> list[str]:
    """What the arguments cannot say, so no window could test it."""
    if all(convention.expresses(window) for window in WINDOWS):
        return []
    kinds = convention.kinds
    if not {"discount", "not_done", "terminated", "done"} & kinds:
        return ["it takes no done flags and no discounts: ends of episodes were not tested"]
    if "done" in kinds and "terminated" not in kinds:
        return [
            "not tested: truncation. It has one flag for both ends: give it `terminated`, and keep windows from "
            "crossing a truncation"
        ]
    if not {"truncated", "reset", "done", "mask"} & kinds:
        return [
            "not tested: truncation inside a window, which its arguments cannot express: a window must not cross one"
        ]
    return [
        "not tested: a truncation where row t+1 is the next episode already (same-step autoreset), since it has no "
        "argument for the value of the true last state; it needs a row of its own for that state"
    ]
