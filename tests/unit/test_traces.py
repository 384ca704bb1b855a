"""Every trace's coefficient against numbers worked out by hand, and what a trace is as a value."""

import dataclasses
import doctest
import functools
import importlib
import re
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from loops import each

import offtrace as ot

EPS = np.finfo(np.float64).eps
MAKE = {"numpy": np.asarray, "jax": jnp.asarray, "torch": torch.tensor}
TYPE = {"numpy": np.ndarray, "jax": jax.Array, "torch": torch.Tensor}
MARKOV = [cls for cls in ot.TRACES.values() if cls.markov]
TRAJECTORY_AWARE = [cls for cls in ot.TRACES.values() if not cls.markov]

# Powers of two everywhere: nothing rounds, so equality is asked for. ρ = π/μ = 3, 1/4, 1.
PI_A = [0.75, 0.0625, 0.25]
MU_A = [0.25, 0.25, 0.25]


# --- Table 1 and its successors, by hand --------------------------------------------------------------------

BY_HAND = [
    # the argument is never λ = 1, which would hide a λ that is left out or applied twice
    (ot.OneStep(0.5), [0, 0, 0]),
    (ot.ImportanceSampling(0.5), [1.5, 0.125, 0.5]),  # ½·3, ½·¼, ½·1
    (ot.QLambda(0.5), [0.5, 0.5, 0.5]),
    (ot.TreeBackup(0.5), [0.375, 0.03125, 0.125]),  # ½·¾, ½·1/16, ½·¼
    (ot.Retrace(0.5), [0.5, 0.125, 0.5]),  # ½·min(1, 3), ½·¼, ½·1
    (ot.ContinuousACER(0.5, num_dims=2), [0.5, 0.25, 0.5]),  # ½·min(1, √3), ½·√¼, ½·1
    (ot.ContinuousACER(0.5), [0.5, 0.125, 0.5]),  # d = 1 is Retrace
    # σ = ¼: ½(¼·3 + ¾·¾) = ½·1.3125, ½(¼·¼ + ¾/16) = ½·0.109375, ½(¼·1 + ¾·¼) = ½·0.4375
    (ot.QSigma(0.5, sigma=0.25), [0.65625, 0.0546875, 0.21875]),
]


@pytest.mark.parametrize("library", MAKE)
@pytest.mark.parametrize(("trace", "c"), BY_HAND, ids=lambda value: getattr(value, "name", ""))
def test_coefficients_by_hand(trace, c, library):
    make = MAKE[library]
    pi_a, mu_a = make(np.array(PI_A, np.float32)), make(np.array(MU_A, np.float32))
    got = trace(pi_a=pi_a, mu_a=mu_a)
    assert isinstance(got, TYPE[library])
    assert got.dtype == pi_a.dtype  # float32 stays float32
    np.testing.assert_array_equal(np.asarray(got), c)


@pytest.mark.parametrize(("trace", "c"), BY_HAND, ids=lambda value: getattr(value, "name", ""))
def test_coefficients_from_logarithms(trace, c):
    got = trace(log_pi_a=np.log(PI_A), log_mu_a=np.log(MU_A))
    # |log| ≤ 3, so the difference of logarithms is off by about 4 EPS, and exp carries that over to c
    np.testing.assert_allclose(got, c, rtol=16 * EPS, atol=0)


@pytest.mark.parametrize(("trace", "c"), BY_HAND, ids=lambda value: getattr(value, "name", ""))
def test_lists_and_batch_axes(trace, c):
    np.testing.assert_array_equal(trace(pi_a=PI_A, mu_a=MU_A), c)
    twice = trace(pi_a=np.stack([PI_A, PI_A], -1), mu_a=np.stack([MU_A, MU_A], -1))
    np.testing.assert_array_equal(twice, np.stack([c, c], -1))


WATKINS_Q = np.array([[1.0, 2.0, 0.0], [3.0, 1.0, 3.0], [0.0, -1.0, 5.0], [np.nan, 1.0, 2.0], [9.0, 9.0, 9.0]])
WATKINS_A = np.array([1, 2, 0, 2])
# greedy; tied, so greedy, too; not greedy; greedy among the legal ones. The last row of q has no action.
WATKINS_C = [0.5, 0.5, 0.0, 0.5]


@pytest.mark.parametrize("library", MAKE)
def test_watkins_by_hand(library):
    make = MAKE[library]
    pi = np.full(WATKINS_Q.shape, 0.25, np.float32)
    q, pi = make(WATKINS_Q.astype(np.float32)), make(pi)
    c = ot.Watkins(0.5)(pi_a=pi[:4, 0], q=q, pi=pi, a=make(WATKINS_A))
    assert isinstance(c, TYPE[library])
    np.testing.assert_array_equal(np.asarray(c), WATKINS_C)


SOFT_Q = np.array([[4.0, 3.0, 1.0], [4.0, 3.0, 1.0], [-4.0, -2.0, -8.0], [-np.inf, np.nan, 1.0], [0.0, 0.0, 0.0]])
SOFT_PI = np.array([[0.5, 0.25, 0.25]] * 3 + [[0.0, 0.0, 1.0]] * 2)
SOFT_A = np.array([1, 2, 0, 2])
# κ = ¼. Each b counts with π(b) where Q(a) ≥ Q(b) − ¼|Q(b)|:
#   row 0, Q(a) =  3: thresholds 3, 2.25, 0.75: all (the first just so)     1
#   row 1, Q(a) =  1: thresholds 3, 2.25, 0.75: the last                    ¼
#   row 2, Q(a) = −4: thresholds −5, −2.5, −10: first and last              ¾
#   row 3: the actions that π never takes are not looked at                 1
SOFT_C = [0.5, 0.125, 0.375, 0.5]


@pytest.mark.parametrize("library", MAKE)
def test_soft_watkins_by_hand(library):
    make = MAKE[library]
    q, pi = make(SOFT_Q.astype(np.float32)), make(SOFT_PI.astype(np.float32))
    c = ot.SoftWatkins(0.5, kappa=0.25)(pi_a=pi[:4, 0], q=q, pi=pi, a=make(SOFT_A))
    assert isinstance(c, TYPE[library])
    np.testing.assert_array_equal(np.asarray(c), SOFT_C)


@pytest.mark.parametrize("cls", [ot.Watkins, ot.SoftWatkins])
def test_lists_are_taken_by_traces_that_read_q(cls):
    c = cls(0.5)(pi_a=[0.5], q=[[1.0, 2.0], [0.0, 0.0]], pi=[[0.0, 1.0], [0.5, 0.5]], a=[1])
    np.testing.assert_array_equal(c, [0.5])  # greedy, and all that π takes


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_tiny_mu_makes_retrace_lambda_exactly(dtype):
    mu_a = np.array([np.finfo(dtype).tiny, np.finfo(dtype).smallest_subnormal], dtype)
    np.testing.assert_array_equal(ot.Retrace(0.5)(pi_a=np.array([1, 0.5], dtype), mu_a=mu_a), [0.5, 0.5])
    big = np.array([400.0, 4000.0], dtype)  # densities: exp of either overflows float32
    np.testing.assert_array_equal(ot.Retrace(0.5)(log_pi_a=big, log_mu_a=-big), [0.5, 0.5])


@pytest.mark.parametrize("trace", [ot.ImportanceSampling(0.5), ot.Retrace(0.5), ot.TreeBackup(0.5), ot.QSigma(0.5)])
def test_an_action_that_pi_never_takes_cuts_the_trace(trace):
    np.testing.assert_array_equal(trace(pi_a=[0.0], mu_a=[0.5]), [0.0])
    np.testing.assert_array_equal(trace(log_pi_a=[-np.inf], log_mu_a=[-1.0]), [0.0])


def test_one_lambda_per_step_and_per_step_and_batch_element():
    pi_a, mu_a = np.full((2, 3), 0.5), np.full((2, 3), 0.25)
    np.testing.assert_array_equal(ot.Retrace([0.5, 0.25])(pi_a=pi_a, mu_a=mu_a), [[0.5] * 3, [0.25] * 3])
    each = np.array([[0.0, 0.25, 0.5], [1.0, 0.75, 0.125]])
    np.testing.assert_array_equal(ot.Retrace(each)(pi_a=pi_a, mu_a=mu_a), each)


# --- trajectory-aware traces, by hand -----------------------------------------------------------------------

# ρ_1, ρ_2, ρ_3 = ¼, 4, 2, so Πρ = ¼, 1, 2; row 0 (ρ_0 = 0 here) is never read
AWARE_PI_A = np.array([0.0, 0.125, 0.5, 0.5])
AWARE_MU_A = np.array([0.5, 0.5, 0.125, 0.25])

AWARE_BY_HAND = [
    # β_t = λ min(1, β_{t−1} ρ_t): ½·¼ = ⅛, ½·min(1, ⅛·4) = ¼, ½·min(1, ¼·2) = ¼
    (ot.RecursiveRetrace(0.5), [1, 0.125, 0.25, 0.25]),
    (ot.RecursiveRetrace(1.0), [1, 0.25, 1, 1]),  # ¼, min(1, ¼·4), min(1, 1·2)
    # β_t = λ^t min(1, Πρ): ½·¼, ¼·1, ⅛·1
    (ot.TruncatedIS(0.5), [1, 0.125, 0.25, 0.125]),
    (ot.TruncatedIS(1.0), [1, 0.25, 1, 1]),
    # β_t = min(λ^t, β_{t−1} ρ_t): min(½, ¼), min(¼, ¼·4), min(⅛, ¼·2)
    (ot.RBIS(0.5), [1, 0.25, 0.25, 0.125]),
    (ot.RBIS(1.0), [1, 0.25, 1, 1]),
    # one λ per step, λ_1, λ_2, λ_3 = ½, 1, ¼, so Πλ = ½, ½, ⅛; λ_0 = 0 is never read
    (ot.RecursiveRetrace([0, 0.5, 1, 0.25]), [1, 0.125, 0.5, 0.25]),  # ½·¼, 1·min(1, ⅛·4), ¼·min(1, ½·2)
    (ot.TruncatedIS([0, 0.5, 1, 0.25]), [1, 0.125, 0.5, 0.125]),  # ½·¼, ½·1, ⅛·1
    (ot.RBIS([0, 0.5, 1, 0.25]), [1, 0.25, 0.5, 0.125]),  # min(½, ¼), min(½, ¼·4), min(⅛, ½·2)
]


@pytest.mark.parametrize("library", MAKE)
@pytest.mark.parametrize(("trace", "betas"), AWARE_BY_HAND, ids=lambda value: getattr(value, "name", ""))
def test_betas_by_hand(trace, betas, library):
    make = MAKE[library]
    got = trace.betas(pi_a=make(AWARE_PI_A.astype(np.float32)), mu_a=make(AWARE_MU_A.astype(np.float32)))
    assert isinstance(got, TYPE[library])
    # ρ = exp(log π − log μ) is off by a few float32 ulps, at most three of them multiplied
    np.testing.assert_allclose(np.asarray(got), betas, rtol=32 * np.finfo(np.float32).eps, atol=0)


@pytest.mark.parametrize("library", MAKE)
@pytest.mark.parametrize(("trace", "betas"), AWARE_BY_HAND, ids=lambda value: getattr(value, "name", ""))
def test_targets_weigh_td_errors_with_the_betas(trace, betas, library):
    """With Q = 0 and γ = 1 the reward of step t reaches row 0 as β_t r_t."""
    make, zeros = MAKE[library], np.zeros(4, np.float32)
    for step in range(4):
        target = ot.targets(
            r=make(np.eye(4, dtype=np.float32)[step]),
            discount=make(np.ones(4, np.float32)),
            q_a=make(zeros),
            expected_q=make(zeros),
            pi_a=make(AWARE_PI_A.astype(np.float32)),
            mu_a=make(AWARE_MU_A.astype(np.float32)),
            trace=trace,
        )
        np.testing.assert_allclose(float(target[0]), betas[step], rtol=32 * np.finfo(np.float32).eps)


@pytest.mark.parametrize("cls", TRAJECTORY_AWARE)
def test_pi_zero_cuts_for_good(cls):
    # ρ = (–, 0, 8): however large a later ratio, the product stays 0
    np.testing.assert_array_equal(cls(0.5).betas(pi_a=[0.5, 0.0, 1.0], mu_a=[0.5, 0.5, 0.125]), [1, 0, 0])


def test_betas_with_batch_axes_are_those_of_each_column():
    pi_a, mu_a = np.stack([AWARE_PI_A, AWARE_PI_A[::-1]], 1), np.stack([AWARE_MU_A, AWARE_MU_A[::-1]], 1)
    for cls in TRAJECTORY_AWARE:
        both = cls(0.5).betas(pi_a=pi_a, mu_a=mu_a)
        for column in range(2):
            alone = cls(0.5).betas(pi_a=pi_a[:, column], mu_a=mu_a[:, column])
            np.testing.assert_array_equal(both[:, column], alone)


@pytest.mark.parametrize("cls", TRAJECTORY_AWARE)
def test_betas_of_no_steps_are_none(cls):
    assert cls(0.5).betas(pi_a=np.zeros((0, 3)), mu_a=np.zeros((0, 3))).shape == (0, 3)


@pytest.mark.parametrize("library", MAKE)
@pytest.mark.parametrize("cls", TRAJECTORY_AWARE)
def test_a_ratio_that_overflows_does_not_revive_a_trace_that_has_died(cls, library):
    """Log-densities of many dimensions: ρ_1 = e^{−300}, ρ_2 = e^{200}, so Πρ = e^{−100} and β_2 ≤ e^{−100}.

    In float32 the first underflows and the second overflows; 0 · ∞ is no reason for β_2 = 1.
    """
    make = MAKE[library]
    log_pi_a = make(np.array([0, -300, 100], np.float32))
    log_mu_a = make(np.array([0, 0, -100], np.float32))
    betas = np.asarray(cls(1.0).betas(log_pi_a=log_pi_a, log_mu_a=log_mu_a))
    np.testing.assert_allclose(betas, [1, 0, 0], rtol=0, atol=1e-40)  # e^{−100} is 4e−44
    zeros, ones = make(np.zeros(3, np.float32)), make(np.ones(3, np.float32))
    target = ot.targets(
        r=make(np.array([0, 0, 1], np.float32)),
        discount=ones,
        q_a=zeros,
        expected_q=zeros,
        log_pi_a=log_pi_a,
        log_mu_a=log_mu_a,
        trace=cls(1.0),
    )
    np.testing.assert_allclose(np.asarray(target), [0, 1, 1], rtol=1e-6, atol=1e-40)  # row 1: min(1, e^{200})


@pytest.mark.parametrize("cls", TRAJECTORY_AWARE)
def test_calling_a_trajectory_aware_trace_is_refused_with_the_remedy(cls):
    with pytest.raises(TypeError, match=rf"{cls.__name__} depends on where a trajectory starts") as error:
        cls(0.5)(pi_a=PI_A, mu_a=MU_A)
    assert "`ot.targets(" in str(error.value)
    assert "`.betas(" in str(error.value)


def test_a_trajectory_aware_trace_without_a_rule_says_so():
    class Forgotten(ot.TrajectoryAware):
        name = "forgotten"

    with pytest.raises(TypeError, match=r"Forgotten has no β of its own; define `next_beta`"):
        Forgotten(0.5).betas(pi_a=PI_A, mu_a=MU_A)


def test_a_trace_without_a_rule_says_so():
    class Forgotten(ot.Trace):
        name = "forgotten"

    with pytest.raises(TypeError, match="Forgotten has no coefficient"):
        Forgotten(0.5)(pi_a=PI_A)


# --- names --------------------------------------------------------------------------------------------------


def test_the_names_are_the_classes_in_snake_case():
    for name, cls in ot.TRACES.items():
        words = re.findall(r"[A-Z]+(?=[A-Z][a-z]|$)|[A-Z][a-z]+", cls.__name__)
        assert name == cls.name == "_".join(words).lower()
        assert getattr(ot, cls.__name__) is cls
        assert ot.as_trace(name) == cls()


def test_the_table_says_of_every_trace_what_the_design_asks_for():
    for cls in ot.TRACES.values():
        for fact in (cls.name, cls.title, cls.full_name, cls.rule, cls.source):
            assert fact
            assert isinstance(fact, str)
        flags = (cls.has_lambda, cls.needs_pi, cls.needs_mu, cls.needs_q, cls.takes_densities)
        assert {type(flag) for flag in (*flags, cls.markov, cls.safe, cls.safe_for_control)} == {bool}
        assert ("λ" in cls.title) == cls.has_lambda
        assert cls.safe_for_control == (cls.safe and cls.markov)  # Theorems 1 and 2
        assert cls.safe or cls.theory  # what is wrong with it, and where it may be used
        assert cls.markov == (not issubclass(cls, ot.TrajectoryAware))
        assert dataclasses.fields(cls)[0].name == "lambda_"  # the first argument
        assert cls(0.25).lambda_ == 0.25


def test_the_table_agrees_with_the_literature_about_safety():
    # Table 1 for the first four; Remark after Thm. 1 for Eq. 9; Daley et al. for RBIS and truncated IS
    safe = {name for name, cls in ot.TRACES.items() if cls.safe}
    assert {"importance_sampling", "tree_backup", "retrace", "recursive_retrace", "rbis", "one_step"} <= safe
    assert not safe & {"q_lambda", "truncated_is", "watkins", "soft_watkins", "continuous_acer"}


def test_the_table_cannot_be_written_to():
    with pytest.raises(TypeError):
        ot.TRACES["mine"] = ot.Retrace


def test_a_trace_by_name_by_class_and_as_it_is():
    assert ot.as_trace("retrace", lambda_=0.9) == ot.as_trace(ot.Retrace, 0.9) == ot.Retrace(0.9)
    assert ot.as_trace("retrace") == ot.as_trace(ot.Retrace) == ot.Retrace(1.0)
    trace = ot.QSigma(0.9, sigma=0.25)
    assert ot.as_trace(trace) is trace


def test_a_lambda_that_is_given_twice_is_refused():
    with pytest.raises(
        TypeError, match=r"`lambda_` must be given once; got Retrace\(lambda_=0.9\) and lambda_=0.5\."
    ):
        ot.as_trace(ot.Retrace(0.9), 0.5)


def test_a_trace_without_lambda_ignores_it():
    assert ot.as_trace("one_step", 0.5) == ot.OneStep()
    assert ot.as_trace(ot.OneStep(), 0.5) == ot.OneStep()
    assert ot.as_trace(lambda pi_a: pi_a, 0.5)(pi_a=PI_A).tolist() == PI_A


def test_a_class_with_a_parameter_to_choose_is_refused_until_it_is_chosen():
    @dataclasses.dataclass(frozen=True)
    class Chosen(ot.Trace):
        share: float = dataclasses.field(kw_only=True)

        def factor(self, likelihoods, **_):
            return self.share * likelihoods.target()

    with pytest.raises(
        TypeError, match=r"`trace` must be a value .* got Chosen, which needs `share`\. Pass Chosen\(share"
    ):
        ot.as_trace(Chosen, 0.5)
    assert ot.as_trace(Chosen(0.5, share=0.5))(pi_a=[0.5]) == 0.125


@pytest.mark.parametrize("given", [0.9, None, int, np.zeros(3)], ids=["number", "None", "class", "array"])
def test_what_is_not_a_trace_is_refused(given):
    with pytest.raises(TypeError, match=r"`trace` must be a trace such as .*, its class, its name, or a function"):
        ot.as_trace(given)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("retrase", "retrace"),
        ("Retrace", "retrace"),
        ("tree-backup", "tree_backup"),
        ("tb", "tree_backup"),
        ("is", "importance_sampling"),
    ],
)
def test_an_unknown_name_suggests_the_near_one(name, near):
    with pytest.raises(ValueError, match=rf"`trace` .*got '{name}'\. Did you mean '{near}'\?") as error:
        ot.as_trace(name)
    assert all(known in str(error.value) for known in ot.TRACES)


@pytest.mark.parametrize("name", ["vtrace", "n_step", "peng", "c_trace"])
def test_what_is_no_trace_but_a_function_is_told(name):
    with pytest.raises(ValueError, match=rf"There is a function for it: `ot\.{name}_targets`\.$"):
        ot.as_trace(name)
    assert callable(getattr(ot, f"{name}_targets"))


def test_a_name_unlike_any_gets_no_suggestion():
    with pytest.raises(ValueError, match=r"`trace` must be one of .*; got 'xyzzy'\.$"):
        ot.as_trace("xyzzy")


# --- functions ----------------------------------------------------------------------------------------------


def _needs(function):
    trace = ot.as_trace(function)
    return {name for name in ("needs_pi", "needs_mu", "needs_q", "reads_mu", "reads_q") if getattr(trace, name)}


def test_what_a_function_needs_is_in_its_signature():
    assert _needs(lambda pi_a: pi_a) == {"needs_pi"}
    assert _needs(lambda *, pi_a, mu_a: pi_a / mu_a) == {"needs_pi", "needs_mu", "reads_mu"}
    assert _needs(lambda log_pi_a, log_mu_a: log_pi_a) == {"needs_pi", "needs_mu", "reads_mu"}
    assert _needs(lambda pi_a, mu_a=None: pi_a) == {"needs_pi", "reads_mu"}
    assert _needs(lambda q, a: q[0]) == {"needs_q", "reads_q"}
    assert _needs(lambda **given: given["pi_a"]) == {"reads_mu"}
    assert _needs(functools.partial(lambda share, pi_a: share * pi_a, 0.5)) == {"needs_pi"}


def test_a_function_gets_what_it_takes_and_nothing_else():
    seen = {}

    def function(pi_a, mu_a=None, scale=2.0, **others):
        seen.update(pi_a=pi_a, mu_a=mu_a, scale=scale, **others)
        return pi_a

    ot.as_trace(function)(**EVERYTHING)
    assert set(seen) == {"pi_a", "mu_a", "scale"}  # `**others` gets the likelihoods, and all are taken already
    assert seen["scale"] == 2.0


def test_a_function_is_named_after_itself():
    def halved(pi_a):
        return pi_a / 2

    trace = ot.as_trace(halved)
    assert (trace.name, trace.title, trace.full_name) == ("halved", "halved", "halved")
    assert trace.has_lambda is trace.safe is False
    assert trace.markov


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (np.minimum, "must (not need other arguments; minimum has `x1`|be a function with a signature; got minimum)"),
        (lambda pi_a, /: pi_a, "must not need other arguments; <lambda> has `pi_a`"),
        (lambda rho: rho, "must not need other arguments; <lambda> has `rho`"),
        (lambda *args: args[0], "must take an array; <lambda> takes none"),
        (lambda: 0.5, "must take an array; <lambda> takes none"),
    ],
    ids=["ufunc", "positional", "unknown", "args", "none"],
)
def test_a_function_that_cannot_be_called_by_name_is_refused(function, says):
    with pytest.raises(TypeError, match=rf"`trace` {says}.* let it take some of pi_a, mu_a, log_pi_a"):
        ot.as_trace(function)


def test_a_function_of_probabilities_is_not_given_logarithms():
    logs = {"log_pi_a": np.log(PI_A), "log_mu_a": np.log(MU_A)}
    trace = ot.as_trace(lambda pi_a, mu_a: pi_a)
    with pytest.raises(
        TypeError, match=r"takes `pi_a=`, `mu_a=`, which .* got `log_pi_a=`, `log_mu_a=`\. Let it take"
    ):
        trace(**logs)
    assert ot.as_trace(lambda log_pi_a, log_mu_a: np.exp(log_pi_a))(**logs) == pytest.approx(PI_A)


def test_the_signature_of_a_function_is_not_kept_alive():
    class Function:
        def __call__(self, pi_a):
            return pi_a

    function = Function()
    alive = weakref.ref(function)
    ot.as_trace(function)
    del function
    assert alive() is None


# --- parameters ---------------------------------------------------------------------------------------------


@each("cls", ot.TRACES)
@each(("bad", "text"), [(-0.1, "-0.1"), (1.1, "1.1"), (np.nan, "nan"), (np.inf, "inf"), (-np.inf, "-inf")])
def test_lambda_outside_the_unit_interval_is_refused(cls, bad, text):
    with pytest.raises(ValueError, match=rf"`lambda_` of {cls.__name__} must be in \[0, 1\]; got {text}\.$"):
        cls(bad)
    with pytest.raises(ValueError, match="`lambda_`"):
        ot.as_trace(cls.name, lambda_=bad)


@pytest.mark.parametrize(
    ("bad", "place"),
    [
        ([0.5, 0.5, 1.5], r"1\.5 at \(2,\)"),
        (np.array([[0.5, 0.5], [np.nan, 2.0]]), r"nan at \(1, 0\)"),
        (torch.tensor([0.5, -0.25]), r"-0\.25 at \(1,\)"),
    ],
    ids=["list", "array", "tensor"],
)
def test_an_array_of_lambdas_with_a_bad_entry_names_its_place(bad, place):
    with pytest.raises(ValueError, match=rf"`lambda_` of Retrace must be in \[0, 1\]; got {place}\.$"):
        ot.Retrace(bad)


def test_a_lambda_that_is_a_jax_array_is_checked_where_its_value_is_known():
    with pytest.raises(ValueError, match=r"`lambda_` of Retrace must be in \[0, 1\]; got 1\.5"):
        ot.Retrace(jnp.asarray(1.5))(pi_a=PI_A, mu_a=MU_A)
    with pytest.raises(ValueError, match=r"`sigma` of QSigma must be in \[0, 1\]; got 1\.5"):
        ot.QSigma(1.0, sigma=jnp.asarray(1.5))(pi_a=PI_A, mu_a=MU_A)


@pytest.mark.parametrize("value", [0, 1, 0.0, 1.0, np.float32(0.5), np.array(0.5), torch.tensor(0.5), [0, 1]])
def test_the_ends_of_the_interval_and_every_kind_of_number_pass(value):
    np.testing.assert_array_equal(np.asarray(ot.Retrace(value).lambda_), np.asarray(value))


@pytest.mark.parametrize("value", ["0.9", "high", object(), {"lambda_": 1}, 1j])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(TypeError, match=r"`lambda_` of Retrace must be a number or an array of numbers; got "):
        ot.Retrace(value)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: ot.QSigma(1.0, sigma=1.5), r"`sigma` of QSigma must be in \[0, 1\]; got 1\.5\."),
        (lambda: ot.QSigma(1.0, sigma=-0.5), r"`sigma` of QSigma must be in \[0, 1\]; got -0\.5\."),
        (lambda: ot.SoftWatkins(1.0, kappa=-0.5), r"`kappa` of SoftWatkins must be at least 0; got -0\.5\."),
        (lambda: ot.SoftWatkins(1.0, kappa=np.inf), r"`kappa` of SoftWatkins must be at least 0; got inf\."),
        (lambda: ot.ContinuousACER(1.0, num_dims=0), r"`num_dims` of ContinuousACER must be at least 1; got 0\."),
    ],
)
def test_the_other_parameters_are_checked(make, text):
    with pytest.raises(ValueError, match=text):
        make()


@pytest.mark.parametrize("library", MAKE)
@each("shape", [(1,), (3,), (4, 1), (4, 2, 1)])
@each("cls", [ot.Retrace, ot.Watkins, ot.RBIS])
def test_lambdas_of_another_shape_than_the_steps_are_refused(cls, shape, library):
    """One of each kind of trace, r of shape (4, 2): nothing may broadcast."""
    make = MAKE[library]
    given = {
        "q": make(np.zeros((5, 2, 3))),
        "a": make(np.zeros((4, 2), np.int64)),
        "r": make(np.zeros((4, 2))),
        "discount": make(np.ones((4, 2))),
        "pi": make(np.full((5, 2, 3), 1 / 3)),
        "mu_a": make(np.full((4, 2), 0.5)),
    }
    with pytest.raises(ValueError, match=r"`lambda_` .*\(4,\).*\(4, 2\)"):
        ot.targets(**given, trace=cls(np.full(shape, 0.5)))


# --- what a call needs --------------------------------------------------------------------------------------

EVERYTHING = {"pi_a": PI_A, "mu_a": MU_A, "q": WATKINS_Q[:4], "pi": np.full((4, 3), 0.25), "a": np.array([1, 2, 0])}


@pytest.mark.parametrize("cls", MARKOV)
def test_mu_is_asked_for_where_it_is_needed_and_only_there(cls):
    without = {name: value for name, value in EVERYTHING.items() if name != "mu_a"}
    if not cls.needs_mu:
        np.testing.assert_array_equal(cls(0.5)(**without), cls(0.5)(**EVERYTHING))
        return
    with pytest.raises(TypeError, match=rf"{cls.name} needs μ\(a_t\|x_t\): give `mu_a=` \(or `log_mu_a=`\)"):
        cls(0.5)(**without)


@pytest.mark.parametrize("cls", TRAJECTORY_AWARE)
def test_betas_ask_for_mu(cls):
    with pytest.raises(TypeError, match=rf"{cls.name} needs μ"):
        cls(0.5).betas(pi_a=PI_A)


@pytest.mark.parametrize("cls", MARKOV)
@pytest.mark.parametrize("missing", ["q", "pi", "a"])
def test_q_is_asked_for_where_it_is_needed_and_only_there(cls, missing):
    without = {name: value for name, value in EVERYTHING.items() if name != missing}
    if not cls.needs_q:
        np.testing.assert_array_equal(cls(0.5)(**without), cls(0.5)(**EVERYTHING))
        return
    with pytest.raises(TypeError, match=rf"{cls.name} reads the action values: give `q=`, `pi=` and `a=`"):
        cls(0.5)(**without)


@pytest.mark.parametrize("cls", [cls for cls in MARKOV if not cls.needs_pi])
def test_a_trace_that_does_not_need_pi_does_not_look_at_the_likelihoods(cls):
    others = EVERYTHING | {"pi_a": [0.0, 1.0, 0.5], "mu_a": [1.0, 0.125, 0.75]}
    np.testing.assert_array_equal(cls(0.5)(**others), cls(0.5)(**EVERYTHING))


@pytest.mark.parametrize("cls", ot.TRACES.values())
def test_pi_a_is_asked_for(cls):
    call = cls(0.5) if cls.markov else cls(0.5).betas
    with pytest.raises(TypeError, match=rf"{cls.name} is called with `pi_a=` \(or `log_pi_a=`\)"):
        call(mu_a=MU_A)


@pytest.mark.parametrize("cls", [cls for cls in ot.TRACES.values() if cls.needs_mu])
@pytest.mark.parametrize("given", [("pi_a", "log_mu_a"), ("log_pi_a", "mu_a")])
def test_a_probability_with_a_logarithm_is_refused(cls, given):
    call = cls(0.5) if cls.markov else cls(0.5).betas
    with pytest.raises(TypeError, match=r"`pi_a` with `mu_a`, or `log_pi_a` with `log_mu_a`, not one of each"):
        call(**{name: [0.5] for name in given})


# --- a small frozen value -----------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", ot.TRACES.values())
def test_traces_are_frozen_and_compare_by_value(cls):
    trace = cls(0.5)
    with pytest.raises(dataclasses.FrozenInstanceError):
        trace.lambda_ = 0.9
    assert trace == cls(0.5) != cls(0.25)
    assert hash(trace) == hash(cls(0.5))
    assert repr(trace).startswith(f"{cls.__name__}(lambda_=0.5")


def test_different_rules_are_different_traces():
    assert len({cls(0.5) for cls in ot.TRACES.values()}) == len(ot.TRACES)


# --- a pytree of JAX ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", ot.TRACES.values())
def test_the_leaves_are_the_parameters(cls):
    trace = cls(0.5)
    leaves, structure = jax.tree_util.tree_flatten(trace)
    assert leaves == [getattr(trace, field.name) for field in dataclasses.fields(cls)]
    assert jax.tree_util.tree_unflatten(structure, leaves) == trace
    # unflattening does not check: JAX puts placeholders in
    placeholder = object()
    assert jax.tree_util.tree_unflatten(structure, [placeholder] * len(leaves)).lambda_ is placeholder
    assert jax.tree_util.tree_map(lambda leaf: leaf / 2, trace).lambda_ == 0.25


@pytest.mark.parametrize("cls", [cls for cls in MARKOV if not cls.needs_q])
def test_vmap_over_lambda(cls):
    lambdas = jnp.array([0.0, 0.25, 1.0])

    def coefficients(lambda_):
        return cls(lambda_)(pi_a=jnp.array(PI_A), mu_a=jnp.array(MU_A))

    got = jax.jit(jax.vmap(coefficients))(lambdas)
    want = np.stack([cls(float(lambda_))(pi_a=PI_A, mu_a=MU_A) for lambda_ in lambdas])
    np.testing.assert_array_equal(np.asarray(got), want)  # powers of two: nothing rounds


def test_vmap_over_a_whole_trace():
    traces_ = ot.QSigma(jnp.array([0.0, 0.5, 1.0]), jnp.array([1.0, 0.25, 0.0]))
    got = jax.vmap(lambda trace: trace(pi_a=jnp.array(PI_A), mu_a=jnp.array(MU_A)))(traces_)
    alone = ((0.0, 1.0), (0.5, 0.25), (1.0, 0.0))
    want = [ot.QSigma(lambda_, sigma)(pi_a=PI_A, mu_a=MU_A) for lambda_, sigma in alone]
    np.testing.assert_array_equal(np.asarray(got), want)


def test_a_trace_is_an_argument_of_jit():
    @jax.jit
    def coefficients(trace):
        return trace(pi_a=jnp.array(PI_A), mu_a=jnp.array(MU_A))

    for trace, c in BY_HAND:
        np.testing.assert_array_equal(np.asarray(coefficients(trace)), c)


def test_a_trace_of_the_users_own_is_a_pytree_too():
    @dataclasses.dataclass(frozen=True)
    class Half(ot.Trace):
        """c = λ π / 2."""

        name = "half"
        safe = True

        def factor(self, likelihoods, **_):
            return likelihoods.target() / 2

    np.testing.assert_array_equal(Half(0.5)(pi_a=PI_A), np.array(PI_A) / 4)
    got = jax.vmap(lambda trace: trace(pi_a=jnp.array(PI_A)))(Half(jnp.array([0.5, 1.0])))
    np.testing.assert_array_equal(np.asarray(got), [np.array(PI_A) / 4, np.array(PI_A) / 2])


# --- the examples in the docstrings -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "module",
    [
        "offtrace.traces.base",
        "offtrace.traces.function",
        "offtrace.traces.names",
        "offtrace.arrays",
        "offtrace.errors",
    ],
)
def test_the_examples_run(module):
    result = doctest.testmod(importlib.import_module(module))
    assert result.failed == 0
    assert result.attempted > 0
