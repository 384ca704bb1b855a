"""The pictures of a safety table hold its numbers: every row once, and nothing that is not in it."""

import math
import struct
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import offtrace as ot
from offtrace.report import charts, eta, safety
from offtrace.safety import BY_THEOREM, DIVERGES, Analysis


def analysis_of(mdp: ot.FiniteMDP, *, beta: float | None = None, mu=None, **options) -> Analysis:
    q = ot.operators.q_star(mdp)
    pi = ot.policies.greedy(q) if beta is None else ot.policies.softmax(q, beta)
    mu = ot.policies.epsilon_greedy(q, 0.3) if mu is None else mu
    return ot.analyze(mdp, pi=pi, mu=mu, num_trajectories=20, **options)


@pytest.fixture(scope="module")
def lake() -> Analysis:
    """Noisy transitions, greedy π: twins, an infinite variance, nothing that diverges."""
    return analysis_of(ot.mdp.from_gymnasium("FrozenLake-v1", gamma=0.99))


@pytest.fixture(scope="module")
def fork() -> Analysis:
    """Data from a policy that mostly runs away from the goal: Q(λ) diverges, one step has no variance."""
    mdp = ot.mdp.bifurcated_grid(gamma=0.99)
    return analysis_of(mdp, mu=ot.policies.epsilon_greedy(-ot.operators.q_star(mdp), 0.3))


@pytest.fixture(scope="module")
def walk() -> Analysis:
    """π and μ are both random."""
    return analysis_of(ot.mdp.random_walk(gamma=0.99), beta=2.0, mu=np.full((19, 2), 0.5))


def layers(chart) -> list[list[dict]]:
    """The data of every layer as the viewer gets it."""
    spec = chart.to_dict()
    data = [layer["data"] for layer in spec["layer"]]
    return [one["values"] if "values" in one else spec["datasets"][one["name"]] for one in data]


def points_of(analysis: Analysis) -> list[dict]:
    """The layer of marks: the one whose shapes are drawn, and that knows the verdict."""
    marks = [rows for rows in layers(safety.contraction_against_variance(analysis)) if "verdict" in rows[0]]
    assert all(one in marks[0] for rows in marks for one in ({key: row[key] for key in marks[0][0]} for row in rows))
    return marks[0]


# --- contraction against variance ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lake", "fork", "walk"])
def test_every_row_is_drawn_once_with_its_numbers(name, request):
    analysis = request.getfixturevalue(name)
    points = {(point["trace"], point["lambda"]): point for point in points_of(analysis)}
    hidden = analysis.twins()
    shown = [row for row in analysis.rows if row.trace not in hidden]
    assert len(points_of(analysis)) == len(points) == len(shown)
    for row in shown:
        point = points[row.trace, row.lambda_]
        assert point["steps"] == (row.iterations if math.isfinite(row.iterations) else "∞")
        spread = math.sqrt(row.target_variance)
        assert point["standard deviation"] == (spread if math.isfinite(spread) else "∞")
        assert (point["norm"], point["radius"]) == (row.contraction, row.radius)
        assert (point["fill"] == "white") == (row.verdict != BY_THEOREM)


@pytest.mark.parametrize("name", ["lake", "fork", "walk"])
def test_places_are_in_the_order_of_the_numbers(name, request):
    for axis, value in (("x", "steps"), ("y", "standard deviation")):
        points = points_of(request.getfixturevalue(name))
        assert all(0 < point[axis] < 1 for point in points)
        finite = sorted((point[value], point[axis]) for point in points if point[value] != "∞")
        assert all(one[1] <= other[1] + 1e-12 for one, other in pairwise(finite) if one[0] < other[0])
        beyond = [point[axis] for point in points if point[value] == "∞"]
        assert len(set(beyond)) == len(beyond)  # side by side
        assert all(place > 1 - safety.BAND > finite[-1][1] for place in beyond)


def test_places_are_logarithmic(lake):
    axis = safety._Axis.of([1, 10, 100, math.inf])
    low, middle, high, beyond = axis.places([1, 10, 100, math.inf])
    assert middle - low == pytest.approx(high - middle)
    assert beyond == pytest.approx(1 - safety.BAND / 2)
    assert axis.first == 0  # nothing is 0
    assert safety._Axis.of([0, 1]).place(0) == safety.BAND / 2


@pytest.mark.parametrize("values", [[1.0], [0.3, 0.5], [1e-3, 1e3], [2.0, 9e12], [1e-12, 1e-11], [0.0], [math.inf]])
def test_ticks_are_few_and_inside(values):
    axis = safety._Axis.of(values)
    ticks = [(place, word) for place, word in axis.ticks() if word != "0"]
    assert 1 <= len(ticks) <= 9
    assert all(axis.first <= place <= axis.last for place, _ in ticks)
    assert [axis.place(float(word.replace(",", ""))) for _, word in ticks] == pytest.approx([p for p, _ in ticks])


def test_what_diverges_stands_apart_and_hollow(fork):
    diverging = {(row.trace, row.lambda_) for row in fork.rows if row.verdict == DIVERGES}
    assert ("q_lambda", 1.0) in diverging
    beyond = {(p["trace"], p["lambda"]) for p in points_of(fork) if p["x"] > 1 - safety.BAND}
    assert beyond == diverging
    words = safety.contraction_against_variance(fork).to_dict()["layer"][0]["encoding"]["x"]["axis"]["labelExpr"]
    assert "diverges" in words


def test_no_variance_up_to_rounding_is_drawn_as_none():
    garnet = ot.mdp.garnet(20, 3, 4, gamma=0.9, seed=0)  # r(x, a) is certain, so one step from Q = 0 is, too
    one_step = next(p for p in points_of(analysis_of(garnet)) if p["trace"] == "one_step")
    assert one_step["y"] == safety.BAND / 2


def test_twins_are_named_beside_the_one_that_is_drawn(lake):
    twins = lake.twins()
    assert twins["tree_backup"] == "retrace"  # for a greedy π both keep what π would have done
    words = [
        row["text"] for rows in layers(safety.contraction_against_variance(lake)) for row in rows if "text" in row
    ]
    assert words.index("= tree_backup") > words.index("retrace")
    assert "tree_backup" not in words


@pytest.mark.parametrize("name", ["lake", "fork", "walk"])
def test_one_point_is_recommended(name, request):
    analysis = request.getfixturevalue(name)
    (point,) = [point for point in points_of(analysis) if point["recommended"]]
    best = analysis.best
    assert point["trace"] == analysis.twins().get(best.trace, best.trace)
    assert point["lambda"] == best.lambda_


def test_a_recommended_twin_is_drawn_as_the_other(lake):
    mdp = lake.mdp
    both = ot.analyze(mdp, pi=lake.pi, mu=lake.mu, traces=["tree_backup", "retrace"], lambdas=[1.0])
    (point,) = points_of(both)
    assert point["recommended"]
    assert point["trace"] == "retrace"


def test_what_is_not_known_is_left_out(lake):
    rows = [replace(row, target_variance=math.nan) if row.trace == "retrace" else row for row in lake.rows]
    drawn = points_of(replace(lake, rows=rows))
    assert drawn
    assert "retrace" not in {point["trace"] for point in drawn}


def test_a_function_of_ones_own_has_no_lambda(lake):
    def half(pi_a, mu_a):
        return 0.5 * np.minimum(1, pi_a / mu_a)

    own = ot.analyze(lake.mdp, pi=lake.pi, mu=lake.mu, traces=[half, "one_step"])
    assert {(point["trace"], point["lambda"]) for point in points_of(own)} == {("half", None), ("one_step", 0.0)}


def test_title_says_what_is_seen(lake):
    title = safety.contraction_against_variance(lake).to_dict()["title"]
    assert title["text"] == "Contraction against variance: FrozenLake-v1, γ = 0.99"
    assert "Lower left is better" in " ".join(title["subtitle"])


# --- η on a map ---------------------------------------------------------------------------------------------


def cells_of(chart) -> list[dict]:
    return [row for rows in layers(chart) for row in rows if "eta" in row]


@pytest.mark.parametrize("name", ["lake", "fork", "walk"])
def test_maps_hold_eta_of_the_worst_action(name, request):
    analysis = request.getfixturevalue(name)
    cells = cells_of(eta.eta_map(analysis))
    names = {cell["trace"] for cell in cells}
    assert len(cells) == len(names) * analysis.mdp.num_states
    assert "one_step" in names
    for cell in cells:
        row = analysis.row(cell["trace"], cell["lambda"])
        assert row.verdict == BY_THEOREM
        assert cell["eta"] is None or cell["eta"] == row.eta.max(1)[cell["state"]]
    assert max(cell["lambda"] for cell in cells) == 1.0


@pytest.mark.parametrize(("name", "num_columns"), [("lake", 4), ("walk", 19)])
def test_cells_lie_row_by_row_as_on_the_map(name, num_columns, request):
    analysis = request.getfixturevalue(name)
    cells = [cell for cell in cells_of(eta.eta_map(analysis)) if cell["trace"] == "one_step"]
    corner = min(cell["x"] for cell in cells), min(cell["y"] for cell in cells)
    side = cells[0]["x2"] - cells[0]["x"]
    for cell in cells:
        assert (cell["x"] - corner[0]) / side == cell["state"] % num_columns
        assert (cell["y"] - corner[1]) / side == cell["state"] // num_columns


def test_grey_where_no_step_is_taken(lake):
    """The lake's holes 5, 7, 11, 12 and its goal 15."""
    for chart in (eta.eta_map(lake), eta.eta_map(lake, traces=["retrace"], lambda_=0.5)):
        assert {cell["state"] for cell in cells_of(chart) if cell["eta"] is None} == {5, 7, 11, 12, 15}
        assert "Grey: no step is taken from there." in chart.to_dict()["title"]["subtitle"]


def test_what_mu_never_enters_is_grey():
    mdp = ot.mdp.chain(5, gamma=0.9)  # starts in the middle, and always goes right
    analysis = ot.analyze(mdp, pi=[[0.5, 0.5]] * 5, mu=[[0.0, 1.0]] * 5, traces=["one_step", "retrace"])
    grey = {cell["state"] for cell in cells_of(eta.eta_map(analysis)) if cell["eta"] is None}
    assert grey == {0, 1}


def test_maps_that_look_the_same_are_drawn_once(lake, walk):
    words = [row["text"] for rows in layers(eta.eta_map(lake)) for row in rows if "text" in row]
    assert any(word.startswith("and ") and "tree_backup" in word for word in words)
    assert {cell["trace"] for cell in cells_of(eta.eta_map(lake))}.isdisjoint({"tree_backup", "rbis"})
    assert {"one_step", "tree_backup", "retrace", "rbis"} == {c["trace"] for c in cells_of(eta.eta_map(walk))}


def test_chosen_traces_and_lambda(walk):
    cells = cells_of(eta.eta_map(walk, traces=["retrace", "tree_backup"], lambda_=0.5))
    assert {(cell["trace"], cell["lambda"]) for cell in cells} == {("retrace", 0.5), ("tree_backup", 0.5)}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"traces": ["retraced"]}, r"`traces` must be among .*retrace.*; got 'retraced'"),
        ({"traces": ["q_lambda"]}, r"must be safe by theorem, as η is a bound only then; got q_lambda"),
        ({"traces": ["retrace"], "lambda_": 0.7}, r"got retrace at λ = 0.7"),
    ],
)
def test_refused_maps(fork, options, text):
    with pytest.raises(ValueError, match=text):
        eta.eta_map(fork, **options)


def test_refused_without_a_map_or_a_safe_row(fork):
    garnet = ot.mdp.garnet(5, 2, 2, gamma=0.9, seed=0)
    even = np.full((5, 2), 0.5)
    with pytest.raises(ValueError, match=r"`analysis` must be of an MDP with a map; got none. Give the MDP `grid="):
        eta.eta_map(ot.analyze(garnet, pi=even, mu=even, traces=["one_step"]))
    unsafe = ot.analyze(fork.mdp, pi=fork.pi, mu=fork.mu, traces=["q_lambda"])
    with pytest.raises(
        ValueError, match=r"must have a row that is safe by theorem; got none. Add one_step or retrace"
    ):
        eta.eta_map(unsafe)


@pytest.mark.parametrize("shape", [(1, 1), (1, 1000), (1000, 1), (40, 3), (200, 200)])
@pytest.mark.parametrize("num_maps", [1, 2, 4, 14])
def test_maps_are_never_larger_than_the_picture(shape, num_maps):
    side, abreast = eta._layout(*shape, num_maps)
    down = math.ceil(num_maps / abreast)
    assert abreast * max(shape[1] * side, eta.MIN_MAP_WIDTH) + (abreast - 1) * eta.GAP <= eta.MAX_WIDTH
    assert down * (shape[0] * side + eta.HEAD) <= eta.MAX_HEIGHT + 1e-9


# --- the files ----------------------------------------------------------------------------------------------


def test_both_are_saved_as_pictures(tmp_path, fork):
    for name, chart in {"a": safety.contraction_against_variance(fork), "b": eta.eta_map(fork)}.items():
        png, svg, pdf = charts.save(chart, tmp_path / name)
        width, height = struct.unpack(">II", png.read_bytes()[16:24])
        assert width > 1000
        assert height > 700
        assert "one_step" in svg.read_text(encoding="utf-8")
        assert pdf.read_bytes().startswith(b"%PDF-")
