"""Currents of several terms, rectified, or after Goldman, Hodgkin and Katz, on every backend."""

from __future__ import annotations

import copy
import sys

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest

from channelfit.model.channel import FARADAY, GAS_CONSTANT
from channelfit.model.evaluation import evaluate
from channelfit.model.model_file import build_model
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.protocol import build_protocol
from channelfit.problem.recording import Recording
from channelfit.problem.statuses import NOT_FINITE, OK
from channelfit.reading.errors import InputError
from channelfit.scoring.cpu_tangents import Linearizer
from channelfit.scoring.cuda_tangents import Tangents
from channelfit.scoring.cuda_variants import Variant
from channelfit.scoring.kernels.cuda_source import CudaSource
from channelfit.scoring.kernels.cuda_spectral import CudaSpectralSource
from channelfit.scoring.kernels.cuda_tangents import COMPOSE_TANGENTS, CudaTangentSource
from channelfit.scoring.machine import gpu
from channelfit.scoring.reference import ReferenceScorer
from channelfit.scoring.scorer import Linearization, make_scorer
from channelfit.scoring.tangent_walks import UNRESOLVED
from support.cuda_host import HostCupy, compile_with_nvrtc
from support.differences import errors
from support.term_models import DOCUMENTS, candidates, document, model_of, moving, problem_of, steps
from support.truths import slow_but

TOLERANCE = {"float64": 1e-9, "float32": 1e-3}


#: A rectification that changes tenfold within 1 mV.
STEEP = "low + 1/(1 + exp(-50*(v + 10)/slope))"


PROTOCOLS = {"steps": steps, "moving": moving}


KINDS = ("cpu", "played")


MIXED = ("sum of all", "sum with background")


EVERY = [
    (backend, name, kind, dtype)
    for backend in KINDS
    for name in DOCUMENTS
    for kind in PROTOCOLS
    for dtype in ("float64", "float32")
    # gates beside schemes are not stepped in float32 where the voltage moves
    if (backend, kind, dtype) != ("played", "moving", "float32") or name not in MIXED
]


QUICK = [
    *(("cpu", n, "moving", "float64") for n in ("calcium scheme", "sum of all")),
    ("cpu", "scheme times gate", "moving", "float64"),
    ("cpu", "sum with background", "steps", "float64"),
    ("cpu", "rectified gates", "moving", "float32"),
    ("played", "rectified scheme", "moving", "float32"),
    *(("played", name, "moving", "float64") for name in ("sum of gates", MIXED[0])),
]


@pytest.mark.parametrize(
    ("backend", "name", "kind", "dtype"), slow_but(QUICK, EVERY), indirect=["backend"]
)
def test_generated_code_agrees_with_the_reference(
    backend: str, name: str, kind: str, dtype: str
) -> None:
    problem = problem_of(name, PROTOCOLS[kind]())
    parameters = candidates(problem.model, 5)
    # CUDA steps a scheme times a gate as one scheme, which is as exact, but not the same
    apart = (backend, name, kind) == ("cuda", "scheme times gate", "moving")
    tolerance = max(TOLERANCE[dtype], 1e-4 if apart else 0)
    reference = ReferenceScorer(problem)
    scorer = make_scorer(problem, backend, dtype, path="stepping")
    truth, current = reference.simulate(parameters)[0], scorer.simulate(parameters)[0]
    assert np.isfinite(truth).all()
    assert np.abs(current - truth).max() < tolerance * np.abs(truth).max()
    cost, wanted = scorer.score(parameters), reference.score(parameters)
    assert (cost.status == wanted.status).all()
    np.testing.assert_allclose(cost.cost, wanted.cost, rtol=10 * tolerance)


@pytest.mark.parametrize(
    ("backend", "name", "kind"),
    slow_but(
        [
            ("cpu", "rectified gates", "moving"),
            ("cpu", "calcium scheme", "steps"),
            ("cpu", "scheme times gate", "moving"),
            ("cpu", "sum of all", "moving"),
            ("played", "sum of all", "moving"),
        ],
        [(backend, name, kind) for backend in KINDS for name in DOCUMENTS for kind in PROTOCOLS],
    ),
    indirect=["backend"],
)
def test_derivatives_agree_with_differences_of_the_reference(
    backend: str, name: str, kind: str
) -> None:
    problem = problem_of(name, PROTOCOLS[kind]())
    parameters = candidates(problem.model, 2)
    wanted = ReferenceScorer(problem).linearize(parameters)
    assert max(errors(make_scorer(problem, backend).linearize(parameters), wanted)) < 1e-6
    if (backend, name, kind) == ("cuda", "sum of all", "moving"):
        # what steps make of any state, of gates and of both schemes, and the replay from it
        ways = Variant(problem, {})
        tangents = Tangents(problem, ways.rows, lambda: ways.targets, 2, 7)
        arrays = tangents.linearize(gpu.cupy().asarray(parameters))
        assert max(errors(Linearization(*(a.get() for a in arrays)), wanted)) < 1e-6
        assert any(COMPOSE_TANGENTS in program.kernels for program in tangents._programs.values())


# --- formulas ------------------------------------------------------------------------------------


def test_goldman_hodgkin_and_katz_is_the_closed_formula() -> None:
    """Permeability 0.2 um3/ms of the whole cell, at 34 degC; at 0 mV the limit."""
    model = model_of("calcium")
    drive = model.terms[0].drive
    v = np.array([-120.0, -40.0, -1e-7, 0.0, 1e-7, 0.01, 60.0, 140.0])
    ours = evaluate(drive, {"v": v, "p": 0.2, "ci": 5e-4, "celsius": 34.0})
    for volt, pA in zip(v, ours, strict=True):
        with mpmath.workdps(40):
            u = mpmath.mpf(2 * volt) * 1e-3 * FARADAY / (GAS_CONSTANT * mpmath.mpf("307.15"))
            bent = u / (1 - mpmath.exp(-u)) if volt else 1
            per_mM = 2 * FARADAY * bent * (mpmath.mpf(5e-4) - 2 * mpmath.exp(-u))
            wanted = float(per_mM * 0.2 * 1e-15 * 1e12)  # um3/ms and mM; A to pA
        assert pA == pytest.approx(wanted, rel=1e-12)


def test_a_permeability_per_area_is_that_of_the_whole_membrane() -> None:
    """1e-4 cm/s times 1000 um2 is 1e-6 m/s times 1e-9 m2, 1e-15 m3/s: 1 um3/ms."""
    whole = document("calcium")
    whole["current"] |= {"permeability": "1 um3/ms"}
    del whole["parameters"]["p"]
    per_area = copy.deepcopy(whole)
    per_area["current"] |= {"permeability": "1e-4 cm/s", "area": "1000 um2"}
    one, other = (build_model(d, None).terms[0].permeability for d in (whole, per_area))
    assert float(one) == 1
    assert float(other) == pytest.approx(1, rel=1e-12)
    per_area["current"].pop("area")
    with pytest.raises(InputError, match="is a permeability per area and needs an area"):
        build_model(per_area, None)


def test_a_scheme_times_a_gate_equals_the_scheme_of_all_pairs() -> None:
    model = model_of("scheme times gate")
    parameters = candidates(model, 3)
    ours = ReferenceScorer(problem_of("scheme times gate", steps())).simulate(parameters)[0]
    pairs = Problem(model.expanded(), (Experiment(steps()),))
    wanted = ReferenceScorer(pairs).simulate(parameters)[0]
    assert len(pairs.model.states) == 6
    np.testing.assert_allclose(ours, wanted, atol=1e-11 * np.abs(wanted).max())


# --- paths ---------------------------------------------------------------------------------------


ONE_PRODUCT = [name for name in DOCUMENTS if not name.startswith("sum")]


@pytest.mark.parametrize(
    ("backend", "name"),
    slow_but(
        [("cpu", "gates and leak"), ("played", "gates and leak")],
        [(b, name) for b in KINDS for name in ONE_PRODUCT],
    ),
    indirect=["backend"],
)
def test_one_current_is_scored_from_modes(backend: str, name: str) -> None:
    problem = problem_of(name, steps())
    parameters = candidates(problem.model, 9)
    wanted = ReferenceScorer(problem).score(parameters)
    found = make_scorer(problem, backend, path="closed-form").score(parameters)
    np.testing.assert_allclose(found.cost, wanted.cost, rtol=1e-8)


def test_several_currents_step() -> None:
    problem = problem_of("sum of gates", steps())
    assert make_scorer(problem, "cpu").path == "stepping"
    with pytest.raises(InputError, match=r"sum of several that open .*\(kv, cav\)"):
        make_scorer(problem, "cpu", path="closed-form")


def test_float32_does_not_step_gates_beside_schemes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", HostCupy())
    problem = problem_of(MIXED[0], moving())
    with pytest.raises(InputError, match="in float64 only; use --dtype float64"):
        make_scorer(problem, "cuda", "float32").score(candidates(problem.model, 2))


@pytest.mark.parametrize("backend", ["reference", *KINDS], indirect=True)
def test_a_candidate_whose_drive_is_not_finite_fails_alone(backend: str) -> None:
    wild = document("gates and leak")
    wild["current"]["rectification"] = "1 + exp(1000*(g - 10)*exp(-v/40))"
    model = build_model(wild, None)
    parameters = candidates(model, 2)
    parameters[model.parameter_names.index("g")] = 2.0, 19.0
    problem = Problem(model, problem_of("gates and leak", moving()).experiments)
    scorer = make_scorer(problem, backend)
    assert scorer.score(parameters).status.tolist() == [OK, NOT_FINITE]
    assert scorer.linearize(parameters).status.tolist() == [OK, NOT_FINITE]


@pytest.mark.parametrize("name", slow_but(["calcium scheme"], DOCUMENTS))
def test_a_device_compiler_takes_the_text(name: str) -> None:
    model = model_of(name)
    for dtype in ("float64", "float32"):
        source = CudaSource(model, dtype)
        varying = not (name in MIXED and dtype == "float32")
        compile_with_nvrtc(source.specialized(16, varying, listed=dtype == "float32"))
    compile_with_nvrtc(CudaTangentSource(model).specialized(16, True, cut=True))
    if model.one_product:
        compile_with_nvrtc(CudaSpectralSource(model).specialized(16))


# --- what is refused -----------------------------------------------------------------------------

REFUSED = {
    "calcium": [
        ({"temperature": ...}, "current.permeability: .* depends on the temperature"),
        ({"current/ion": ...}, 'current: "ion" is missing'),
        ({"current/conductance": 2}, "current.conductance: has no meaning beside a permeability"),
        ({"current/ion/valence": 0}, "current.ion.valence: a whole number of charges"),
        ({"current/ion/inside": "ci*v"}, "current.ion.inside: .* depends on v"),
        ({"current/permeability": "p + ci"}, "current.permeability: .* in one sum stand"),
    ],
    "rectified gates": [
        ({"current/conductance": "g*bend"}, "depends on v through bend; .* as `rectification`"),
        (
            {"current/rectification": "g*exp(v/slope)", "parameters/low/fixed": True},
            "current.rectification: .* a pure number .*conductance",
        ),
        ({"leak": {"conductance": "g*v", "reversal": 0}}, "leak.conductance: .* depends on v"),
    ],
    "scheme times gate": [
        ({"gates/h/tau": 0}, "gates.h.tau: a gate beside a scheme needs a time constant"),
    ],
    "sum of all": [
        ({"states": ["C"]}, "states: each of `currents` has its own"),
        (
            {"currents/k/gates/m/alpha": "gl"},
            "currents.k.gates.m.alpha: .* a rate .1/ms.",
        ),
        ({"currents/to/states": ["C", "O", "I", "X"]}, "currents.to.rates: state X cannot be"),
    ],
}


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [(name, *case) for name, cases in REFUSED.items() for case in cases],
)
def test_what_cannot_be_used_is_told_with_its_place(
    name: str, changes: dict[str, object], said: str
) -> None:
    wrong = document(name)
    for path, value in changes.items():
        *way, last = path.split("/")
        place = wrong
        for part in way:
            place = place[part]
        if value is ...:
            del place[last]
        else:
            place[last] = value
    with pytest.raises(InputError, match=said):
        build_model(wrong, None)


def test_parameters_in_which_a_sum_is_linear() -> None:
    assert model_of("gates and leak").linear_parameters() == {"g": False, "gl": False, "el": False}
    assert model_of("calcium").linear_parameters() == {"p": True, "ci": False}
    # what acts through a definition is not seen, and so not claimed
    assert model_of("rectified scheme").linear_parameters() == {"g": True}
    unleaked = document("gates and leak")
    unleaked["leak"]["conductance"] = "0.1*g"
    del unleaked["parameters"]["gl"]
    assert build_model(unleaked, None).linear_parameters() == {"g": True, "el": False}


# --- derivatives ---------------------------------------------------------------------------------


@pytest.mark.parametrize("bend", ["low + 1/(1 + exp(-(v + 10)/slope))", STEEP])
def test_smooth_ramps_are_linearized_in_pieces(bend: str) -> None:
    """A drive that a piece cannot follow is seen, and takes every sample."""
    bent = document("rectified scheme")
    bent["definitions"]["bend"] = bend
    bent |= {"leak": {"conductance": "1 nS", "reversal": "-30 mV"}}
    model = build_model(bent, None)
    slow = {"holding": -80, "sampling": 0.5, "segments": [{"ramp": [-80, 40], "for": 300}]}
    protocol = build_protocol(slow, None)
    parameters = candidates(model, 2)
    data = np.random.default_rng(1).normal(0, 100, (1, protocol.n_times_max))
    recording = Recording(protocol.times_ms, data, np.ones_like(data), "noise")
    problem = Problem(model, (Experiment(protocol, recording),))
    linearizer = Linearizer(problem)
    walk = linearizer._new_walk(next(linearizer.plans()))
    status, _ = walk.normals(np.ascontiguousarray(parameters.T))
    assert (status == (OK if bend != STEEP else UNRESOLVED)).all()
    found = make_scorer(problem, "cpu").linearize(parameters)
    assert max(errors(found, ReferenceScorer(problem).linearize(parameters))) < 1e-6
