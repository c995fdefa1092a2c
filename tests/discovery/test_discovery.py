"""`channelfit discover`: models of schemes, the search among them, and what is said of them."""

from __future__ import annotations

import json
import math
import pickle
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import channelfit as cf
from channelfit.discovery import results
from channelfit.discovery.complete import CompleteScorers, SchemesObjective, is_part
from channelfit.discovery.complete import document as document_of_complete
from channelfit.discovery.models import SchemeModels, _stairs, unit_of
from channelfit.discovery.results import found_by
from channelfit.discovery.run import ready
from channelfit.discovery.schemes import Scheme, Space
from channelfit.discovery.search import Discovery
from channelfit.discovery.tasks import Effort, SchemeTasks, joined_points
from channelfit.front import discoveries
from channelfit.front.kinds import load_plan, make_scorer
from channelfit.front.main import main
from channelfit.model.evaluation import evaluate
from channelfit.problem.waves import Constant, Ramp, Segment
from channelfit.reading.documents import Section, dump_yaml
from channelfit.reading.errors import DeviceError, InputError
from channelfit.reading.keys import KEYS
from channelfit.reading.keys.discover import PARAMETERS
from channelfit.search.objective import Local
from channelfit.search.overrides import Changes
from channelfit.search.plan import FitPlan
from channelfit.tasks.executor import SerialExecutor, TaskSet
from channelfit.tasks.result_store import Arrays, Key, ResultStore
from support.browser import NARROW, WIDE, Page
from support.little import THREE_STEPS

#: Three states in a row: what is to be found.
TRUTH: dict[str, Any] = {
    "name": "truth",
    "states": ["C2", "C1", "O"],
    "rates": {
        "C2 -> C1": "k*a*exp(z*v)",
        "C1 -> C2": "b*exp(-z*v)",
        "C1 -> O": "3*a*exp(z*v)",
        "O -> C1": "2*b*exp(-z*v)",
    },
    "current": {"open": ["O"], "conductance": "g", "reversal": "erev"},
    "parameters": {
        "k": {"range": [0.1, 10], "value": 0.3, "fixed": True},
        "a": {"range": [1.0e-3, 1], "unit": "1/ms", "scale": "log", "value": 0.15},
        "z": {"range": [0, 0.1], "unit": "1/mV", "value": 0.02},
        "b": {"range": [1.0e-3, 1], "unit": "1/ms", "scale": "log", "value": 0.04},
        "g": {"range": [1, 100], "unit": "nS", "scale": "log", "value": 10},
        "erev": {"range": [-100, -80], "unit": "mV", "value": -90, "fixed": True},
    },
    "fit": {
        "protocols": ["steps.yaml"],
        "surrogate": {"noise": "5 pA", "seed": 2},
        "discover": {"states": [2, 3], "cycles": 0, "scan": 48, "starts": 3, "keep": 2},
    },
}
STEPS = THREE_STEPS.replace("for: 30 ms}", "for: 30 ms}\n  - {step: -60 mV, for: 30 ms}")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("discover")
    (folder / "steps.yaml").write_text(STEPS)
    (folder / "truth.yaml").write_text(dump_yaml(TRUTH))
    return folder


@pytest.fixture(scope="module")
def plan(place: Path) -> FitPlan:
    return discoveries.read(place / "truth.yaml", Changes(), "cpu")[0]


def models_of(plan: FitPlan, **keys: Any) -> SchemeModels:
    return SchemeModels.read(plan, Section(keys, plan.file, "fit.discover"))


def tasks_of(plan: FitPlan, **keys: Any) -> SchemeTasks:
    return ready(plan, {**TRUTH["fit"]["discover"], **keys}, backend="cpu")


@pytest.fixture(scope="module")
def run(place: Path) -> Path:
    """The folder of a run."""
    folder = place / "run"
    words = ["discover", str(place / "truth.yaml"), "--out", str(folder), "--quiet"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    return folder


# --- models ---------------------------------------------------------------------------------------


def test_cycles_keep_microscopic_reversibility_or_do_not(plan: FitPlan) -> None:
    """By the products of rates around every cycle of all schemes of four states."""
    random = np.random.default_rng(0)
    for reversible in (True, False):
        models = models_of(plan, reversible=reversible)
        for scheme in Space((4, 4), (1, 2)).schemes:
            own = models.plan_of(scheme)
            model = own.problem.model
            expected = 4 * len(scheme.edges) - 2 * scheme.cycles * reversible + 1
            assert own.space.n_free == expected
            values = own.space.to_physical(random.uniform(0.3, 0.7, (own.space.n_free, 1)))[:, 0]
            names = dict(zip(model.parameter_names, values.tolist(), strict=True))
            for name, expression in model.definitions:
                names[name] = evaluate(expression, names | {"v": -37.0})
            (chain,) = model.chains
            log = np.zeros((4, 4))
            for t in chain.transitions:
                i, j = chain.states.index(t.source), chain.states.index(t.target)
                log[i, j] = np.log(float(evaluate(t.rate, names | {"v": -37.0})))
            # at equilibrium the logarithms of ratios are differences of a potential of the states
            ratio = log - log.T
            rows = [(i, j) for i in range(4) for j in range(i) if log[i, j] != 0]
            potential = np.zeros((len(rows), 4))
            for row, (i, j) in enumerate(rows):
                potential[row, i], potential[row, j] = -1, 1
            wanted = np.array([ratio[pair] for pair in rows])
            left = wanted - potential @ np.linalg.lstsq(potential, wanted, rcond=None)[0]
            assert (np.abs(left).max() < 1e-9) == (reversible or scheme.cycles == 0)


def test_stairs_stand_for_ramps() -> None:
    """Held voltages on the grid of samples, each in the middle of what it stands for."""
    held = Segment(0, 10, Constant(-80))
    for h, end in ((0.5, 80.0), (3.0, -119.0), (40.0, -80.0)):
        first, *steps = _stairs((held, Segment(10, 110, Ramp(-120, end))), h)
        assert first == held
        assert (steps[0].start_ms, steps[-1].end_ms) == (10, 110)
        assert all(a.end_ms == b.start_ms for a, b in pairwise(steps))
        for one in steps:
            assert one.is_constant
            assert (one.start_ms / h).is_integer() or one is steps[0]
            middle = -120 + (end + 120) * ((one.start_ms + one.end_ms) / 2 - 10) / 100
            assert abs(one.voltage(np.array(0.0)) - middle) < 0.6 * (end + 120) / len(steps)


def test_subunits_have_the_rates_of_equal_subunits(plan: FitPlan) -> None:
    models = models_of(plan)
    backbone = (("C3", "C2"), ("C2", "C1"), ("C1", "O"))
    (scheme,) = Space((4, 4), cycles=0, backbone=backbone, arm=("C3", "C2", "C1", "O")).schemes
    rates = models.document(scheme)["rates"]
    on, off = "(a_on*exp(z_on*v))", "(a_off*exp(z_off*v))"
    assert rates == {
        "C3 -> C2": f"3*{on}",
        "C2 -> C1": f"2*{on}",
        "C1 -> O": on[1:-1],
        "O -> C1": f"3*{off}",
        "C1 -> C2": f"2*{off}",
        "C2 -> C3": off[1:-1],
    }
    assert models.plan_of(scheme).space.n_free == 5


def test_another_form_of_rates_and_what_the_model_keeps(plan: FitPlan) -> None:
    rows = {"k0": {"range": [0.01, 1], "unit": "1/ms"}}
    models = models_of(plan, rate="k*k0", parameters=rows)
    document = models.document(Space((2, 2)).schemes[0])
    assert document["rates"] == {"C1 -> O": "k*k0_C1_O", "O -> C1": "k*k0_O_C1"}
    assert list(document["parameters"]) == ["k", "g", "erev", "k0_O_C1", "k0_C1_O"]
    with pytest.raises(InputError, match="parameters.q: is not in the rate"):
        models_of(plan, rate="k", parameters={"q": {"range": [0, 1]}})
    with pytest.raises(InputError, match="voltage: a and z must be among"):
        models_of(plan, voltage="choose", parameters={"a": PARAMETERS["a"]})


def test_definitions_that_serve_rates_alone_go_with_them(plan: FitPlan) -> None:
    """And open states of different conductance, which the schemes would not have, are refused."""
    rates = {way: "fast" if way == "C1 -> O" else rate for way, rate in TRUTH["rates"].items()}
    document = {**plan.document, "definitions": {"fast": "a*exp(v/30)"}, "rates": rates}
    models = models_of(replace(plan, document=document))
    assert "definitions" not in models.document(Space((3, 3)).schemes[0])
    assert models.plan_of(Space((3, 3)).schemes[0]).space.n_free > 0
    for levels in ({"O": 1, "C1": 0.5}, {"O": 0.5}):
        unequal = {**plan.document["current"], "open": levels}
        with pytest.raises(InputError, match="current.open: open states of schemes have the whole"):
            models_of(replace(plan, document={**plan.document, "current": unequal}))


def test_schemes_without_a_closed_state_are_left_out(plan: FitPlan) -> None:
    schemes = tasks_of(plan, states=[2, 3], open=[1, 3]).schemes
    assert {(one.n, one.n_open) for one in schemes} == {(2, 1), (3, 1), (3, 2)}


@pytest.mark.parametrize("reversible", [True, False])
def test_a_child_begins_near_the_currents_of_its_parent(plan: FitPlan, reversible: bool) -> None:
    """With one more state or transition, in schemes with and without cycles."""
    models, random = models_of(plan, reversible=reversible), np.random.default_rng(3)
    checked = 0
    for child in Space((4, 4), (1, 2), cycles=2).schemes:
        parts = [child.without_state(k) for k in range(4)]
        parts += [child.without_edge(edge) for edge in child.edges]
        one = parts[int(random.integers(len(parts)))]
        if one is None:
            continue
        parent, states = one
        mothers, own = models.plan_of(parent), models.plan_of(child)
        points = random.uniform(0.42, 0.6, (mothers.space.n_free, 20))  # 2e-3 to 1 /ms at 0 mV
        scorer = make_scorer(mothers, "reference")
        (currents,) = scorer.simulate(mothers.space.to_physical(points))
        lively = int(np.nanstd(currents, axis=(0, 1)).argmax())
        values = mothers.space.to_physical(points[:, [lively]])[:, 0].tolist()
        known = dict(zip((p.name for p in mothers.problem.parameters), values, strict=True))
        begun = models.inherited(child, [(parent, states, known)])
        unit = np.array([unit_of(own, v) for v in begun]).T
        (near,) = make_scorer(own, "reference").simulate(own.space.to_physical(unit))
        apart = np.nanstd(near - currents[:, :, [lively]], axis=(0, 1)).min()
        assert apart < 0.1 * np.nanstd(currents[:, :, lively]), (child.text, parent.text)
        checked += 1
    assert checked > 10


def test_rates_of_a_child_stay_within_their_ranges(plan: FitPlan) -> None:
    """At steep rates, of which those that follow from others are beyond the ranges of free ones."""
    models, random = models_of(plan), np.random.default_rng(5)
    outside = 0
    for child in Space((4, 4), cycles=2).schemes:
        own = {p.name: p for p in models.plan_of(child).problem.parameters}
        for parent, states in filter(None, map(child.without_edge, child.edges)):
            space = models.plan_of(parent).space
            values = space.to_physical(random.uniform(0.1, 0.9, (space.n_free, 1)))[:, 0].tolist()
            known = dict(zip((p.name for p in space.parameters), values, strict=True))
            (first, *_) = models.inherited(child, [(parent, states, known)])
            before = models._rates(parent, known)
            after = models._rates(child, first)
            apart = max(after[way]["a"] / after[way[::-1]]["a"] for way in after)
            for name, value in first.items():
                if name.startswith("a_"):
                    assert value >= own[name].lower * (1 - 1e-9)
                    # unless both directions are further apart than the ends of the range
                    assert value <= own[name].upper * (1 + 1e-9) or apart > 1e10
            for (i, j), rate in before.items():
                way = states[i], states[j]
                outside += after[way]["a"] != rate["a"]
                back = before[j, i]["a"] / rate["a"]
                assert after[way[::-1]]["a"] / after[way]["a"] == pytest.approx(back, rel=1e-9)
    assert outside > 10


def test_rough_costs_are_those_of_the_file_where_nothing_is_a_ramp(plan: FitPlan) -> None:
    """With a conductance that the file solves, and one that it does not."""
    for how in ("none", "g"):
        tasks = tasks_of(replace(plan, section={**plan.section, "solve": how}))
        own = tasks.models.plan_of(tasks.schemes[1])
        fine = tasks._objective(own, make_scorer(own, "reference"))
        rough = tasks._rough(1, own)
        points = rough.sample(3, np.random.default_rng(1))
        assert len(points) == own.space.n_free == 5 - (how == "g") + 4
        np.testing.assert_allclose(rough.score(points).cost, fine.score(points).cost, rtol=1e-8)


# --- the search -----------------------------------------------------------------------------------


@pytest.mark.optimized  # `run` is compared with that of workers, bit for bit
def test_the_true_scheme_is_found_and_the_table_is_that_of_compare(run: Path) -> None:
    """Of the files in the folder, compared as any fits are."""
    summary = json.loads((run / "summary.json").read_text())
    table = {row["scheme"]: row for row in summary["table"]}
    best = summary["table"][0]
    assert best["graph"] == "C2-C1-O" == table[summary["best"]]["graph"]
    assert best["rms_pA"] == pytest.approx(5, rel=0.05)
    assert best["starts_agreed"] >= 3
    fitted = [name for name, row in table.items() if row["stage"] == "fitted"]
    assert len(table) == 3
    assert sorted(p.stem for p in (run / "schemes").glob("*.yaml")) == sorted(fitted)
    compared = cf.compare(*(run / "schemes" / f"{n}.yaml" for n in fitted), progress=False)
    for row in compared.summary["fits"]:
        own = table[row["label"]]
        assert own["cost"] == pytest.approx(row["cost"], rel=1e-6)
        assert own["parameters"] == row["free_parameters"]
        assert own["bic_difference"] == pytest.approx(row["bic_difference"], abs=0.01)
        assert own["aic_difference"] == pytest.approx(row["aic_difference"], abs=0.01)
    assert (run / "schemes.csv").read_text().count("\n") == 4
    page = (run / "discover.html").read_text()
    assert page.count("<svg") == len(fitted)
    assert all(f"{row['scheme']}" in page for row in summary["table"])


@pytest.mark.optimized  # `run` is compared with that of workers, bit for bit
def test_a_folder_with_results_is_not_written_to_and_a_finished_run_is_not_resumed(
    place: Path, run: Path
) -> None:
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    words = ["discover", str(place / "truth.yaml"), "--out", str(run)]
    again = CliRunner().invoke(main, words)
    assert again.exit_code == 2
    assert "never overwrites another" in again.output
    assert CliRunner().invoke(main, ["discover", "--resume", str(run)]).exit_code == 0
    assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file()} == before


@pytest.mark.integration
@pytest.mark.parametrize(("width", "dark"), [(WIDE, False), (NARROW, True)])
def test_the_page_serves_everybody(page: Page, run: Path, width: int, dark: bool) -> None:
    page.open(run / "discover.html", width, dark)
    page.check()


@pytest.mark.integration
def test_workers_give_the_same_table(place: Path, run: Path) -> None:
    folder = place / "by_workers"
    words = ["discover", str(place / "truth.yaml"), "--out", str(folder), "--cluster", "local:2"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    for file in ("schemes.csv", *(f"schemes/{f.name}" for f in (run / "schemes").iterdir())):
        assert (folder / file).read_bytes() == (run / file).read_bytes(), file


class Elsewhere:
    """Computes tasks in copies of the task set that were sent, the last one first."""

    def __init__(self, most: int | None = None) -> None:
        self.left = most

    def __call__(self, tasks: TaskSet, keys: Sequence[Key]) -> Iterator[tuple[Key, Arrays]]:
        for key in reversed(keys):
            if self.left is not None:
                if not self.left:
                    raise KeyboardInterrupt
                self.left -= 1
            assert isinstance(tasks, SchemeTasks)
            yield key, pickle.loads(pickle.dumps(tasks)).compute(key, tasks.arguments(key))


def found_in(tasks: SchemeTasks, executor: Any = None, store: Any = None) -> list[Any]:
    discovery = Discovery(tasks, executor, store)
    discovery.scan()
    found = found_by(discovery, discovery.fit())
    for k, fit in discovery.fits.items():  # a scheme can have every current of those it contains
        parts = [discovery.fits[part].best for part, _ in discovery._parts(k)]
        assert fit.best <= 1.001 * min(parts, default=np.inf) or fit.failure
    return [found.rows, [vars(one) for one in found.follows]]


def test_the_same_bits_elsewhere_and_after_an_interrupt(plan: FitPlan, tmp_path: Path) -> None:
    tasks = tasks_of(plan, starts=1)
    here = found_in(tasks)
    store = ResultStore(tmp_path / "pieces.bin")
    with pytest.raises(KeyboardInterrupt):
        found_in(tasks, Elsewhere(4), store)
    store.close(keep=True)
    store = ResultStore(tmp_path / "pieces.bin")
    assert len(store.keys) >= 3
    assert found_in(tasks, Elsewhere(), store) == here
    store.close(keep=False)
    other = replace(tasks, seed=1, given={("scan", 0, 0): {"unit": np.empty((5, 0))}})
    (key,) = other.given
    assert (other.compute(key)["cost"] != replace(other, seed=0).compute(key)["cost"]).all()


@pytest.mark.integration
def test_a_gpu_finds_what_a_processor_does(plan: FitPlan, device: str) -> None:
    """Full fits end at the same costs, and currents of one are followed by the other."""
    keys = {"cycles": 0, "states": [2, 3], "open": 1, "keep": 2}
    tables = [
        found_in(ready(plan, {**TRUTH["fit"]["discover"], **keys}, backend=backend))
        for backend in ("cpu", "cuda")
    ]
    cpu, cuda = ({row["scheme"]: row for row in table} for table, _ in tables)
    assert list(cpu)[:2] == list(cuda)[:2]
    for name in list(cpu)[:2]:
        assert cuda[name]["cost"] == pytest.approx(cpu[name]["cost"], rel=1e-6)
        assert cuda[name]["stage"] == "fitted"
    assert len(tables[0][1]) == len(tables[1][1])


@pytest.mark.integration
def test_schemes_that_share_a_gpu_have_the_bits_that_each_has_alone(
    plan: FitPlan, device: str
) -> None:
    keys = {"states": [3, 4], "open": 1, "cycles": 1, "distance": 1, "starts": 1, "scan": 4}
    tasks = ready(plan, {**TRUTH["fit"]["discover"], **keys}, backend="cuda")
    discovery = Discovery(tasks)
    places = range(len(tasks.schemes))
    given: dict[Key, Arrays] = {("scan", k, 0): discovery._known(k, 0) for k in places}
    together = discovery._computed(given)
    alone = Discovery(replace(tasks), SerialExecutor())._computed(given)
    assert len(together) == 4
    fits: dict[Key, Arrays] = {("fit", 0, 0): {"unit": together["scan", 0, 0]["unit"]}}
    together |= discovery._computed(fits)
    alone |= Discovery(replace(tasks), SerialExecutor())._computed(fits)
    for key, found in together.items():
        for name, array in found.items():
            np.testing.assert_array_equal(array, alone[key][name])


@pytest.mark.integration
@pytest.mark.parametrize("reversible", [True, False])
def test_a_scheme_is_scored_as_a_part_of_its_complete_graph(
    plan: FitPlan, device: str, reversible: bool
) -> None:
    """Against a scorer of its own: with cycles, two open states, subunits and a z that is 0."""
    models = models_of(plan, reversible=reversible)
    scorers = CompleteScorers(models, "cuda")
    arm = Scheme(4, 1, ((0, 2), (0, 3), (1, 2), (2, 3)), (1, 2, 0))
    schemes = [*Space((3, 3), (1, 1)).schemes, *Space((4, 4), (2, 2)).schemes[::9], arm]
    random = np.random.default_rng(5)
    for scheme in schemes:
        for still in ((), (f"z_{scheme.states[0]}_{scheme.states[2]}",)):
            own = models.plan_of(scheme, still)
            if still and still[0] not in {p.name for p in own.problem.parameters}:
                continue
            alone = make_scorer(own, "cpu")
            part = scorers(scheme, own.problem)
            values = own.space.to_physical(random.uniform(0.4, 0.6, (own.space.n_free, 4)))
            # and the fastest rates, and slopes z that are 0
            ends = [own.space.to_physical(np.full((own.space.n_free, 1), u)) for u in (1.0, 0.5)]
            values = np.concatenate([values, *ends], axis=1)
            for name in ("score", "preview", "rescore"):
                found, true = (getattr(one, name)(values) for one in (part, alone))
                np.testing.assert_array_equal(found.status, true.status)
                np.testing.assert_allclose(found.cost, true.cost, rtol=1e-9)
            found, true = part.linearize(values), alone.linearize(values)
            np.testing.assert_allclose(found.cost, true.cost, rtol=1e-9)
            for what in ("gradient", "hessian"):
                size = np.abs(getattr(true, what)).max()
                np.testing.assert_allclose(
                    getattr(found, what), getattr(true, what), rtol=1e-8, atol=1e-10 * size
                )
            for mine, others in zip(part.simulate(values), alone.simulate(values), strict=True):
                np.testing.assert_allclose(mine, others, atol=1e-8 * np.nanmax(np.abs(others)))
    assert len(scorers._whole) == 3
    assert len(pickle.dumps(scorers)) < 2 * len(pickle.dumps(models))


def test_points_of_many_schemes_side_by_side_are_those_of_each(plan: FitPlan) -> None:
    """With a conductance that is fixed, and at ends of ranges; no digit depends on the others."""
    rows = plan.document["parameters"]
    fixed = {**rows, "g": {**rows["g"], "value": 4.0, "fixed": True}}
    models = models_of(replace(plan, document={**plan.document, "parameters": fixed}))
    scorers, random = CompleteScorers(models, "cpu"), np.random.default_rng(6)
    objectives, units = [], []
    for scheme in Space((4, 4)).schemes[::4]:
        own = models.plan_of(scheme)
        objectives.append(own.objective(scorers(scheme, own.problem)))
        unit = random.uniform(0.4, 0.6, (own.space.n_free, 40))
        unit[:, 1], unit[::2, 2], unit[1::2, 2] = 0.5, 0.0, 1.0
        units.append(unit)
    joined = SchemesObjective(objectives)
    unit, which = joined_points(units, joined.n_free)
    found = joined.linearize(unit, which)
    assert np.isfinite(found.cost).all()
    for k, (one, own_unit) in enumerate(zip(objectives, units, strict=True)):
        true, mine, n = one.linearize(own_unit), which == k, one.n_free
        np.testing.assert_allclose(found.cost[mine], true.cost, rtol=1e-9)
        for what in ("gradient", "hessian"):
            array, expected = getattr(found, what)[..., mine], getattr(true, what)
            own_rows = (slice(n),) * (array.ndim - 1)
            size = np.abs(expected).max(axis=tuple(range(array.ndim - 1)))
            np.testing.assert_allclose((array[own_rows] - expected) / size, 0.0, atol=1e-9)
            assert not array[n:].any()
    some = random.permutation(unit.shape[1])[:37]
    part = joined.linearize(unit[:, some], which[some])
    for array, whole in zip(vars(part).values(), vars(found).values(), strict=True):
        np.testing.assert_array_equal(array, whole[..., some])


@pytest.fixture
def descents(plan: FitPlan) -> Discovery:
    """Schemes of four states, as on a GPU, with points from which they descend together."""
    tasks = tasks_of(plan, states=4, cycles=1)
    tasks = replace(tasks, complete=CompleteScorers(tasks.models, "cpu"))
    random, given = np.random.default_rng(7), {}
    for k, scheme in enumerate(tasks.schemes):
        n_free = tasks.models.plan_of(scheme).space.n_free
        given["down", k, 0] = {"unit": random.uniform(0.4, 0.6, (n_free, 2))}
    return Discovery(replace(tasks, given=given))


def test_a_scheme_that_fails_among_others_fails_alone(
    descents: Discovery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others keep their bits."""
    expected, made = descents._computed(descents.tasks.given), SchemesObjective.linearize
    models, third = descents.tasks.models, descents.tasks.schemes[2]
    own = models.plan_of(third)
    scorer = CompleteScorers(models, "cpu")(third, own.problem)
    (bad,) = SchemesObjective([own.objective(scorer)])._embedding.power

    def linearize(self: SchemesObjective, unit: np.ndarray, well: np.ndarray) -> Local:
        if any(np.array_equal(one, bad) for one in self._embedding.power):
            raise InputError("its rates overflow")
        return made(self, unit, well)

    monkeypatch.setattr(SchemesObjective, "linearize", linearize)
    found = descents._computed(descents.tasks.given)
    assert found.keys() == expected.keys()
    for key, one in found.items():
        if key[1] == 2:
            assert b"its rates overflow" in bytes(one["facts"])
        else:
            assert all(np.array_equal(one[name], expected[key][name]) for name in one)


@pytest.mark.parametrize("most", [9, 0])
def test_a_device_that_fails_is_no_failure_of_a_scheme(
    descents: Discovery, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, most: int
) -> None:
    """Fewer schemes share its memory; where even one is too many nothing is kept."""
    expected, made = descents._computed(descents.tasks.given), SchemesObjective.linearize

    def linearize(self: SchemesObjective, unit: np.ndarray, well: np.ndarray) -> Local:
        if unit.shape[1] > most:
            raise DeviceError("the GPU's memory does not suffice")
        return made(self, unit, well)

    monkeypatch.setattr(SchemesObjective, "linearize", linearize)
    if most:
        found = descents._computed(descents.tasks.given)
        for key, one in found.items():
            assert all(np.array_equal(one[name], expected[key][name]) for name in one)
        return
    descents.store = ResultStore(tmp_path / "results.bin")
    with pytest.raises(DeviceError, match="does not suffice"):
        descents._computed(descents.tasks.given)
    assert not descents.store.keys


def test_what_is_no_part_of_a_complete_graph(plan: FitPlan) -> None:
    """Rates of another form, of range 0, per cell, and those that overflow where there is none."""
    scheme, a = Space((3, 3)).schemes[0], {"unit": "1/ms", "scale": "log"}
    z = {"range": [-0.1, 0.1], "unit": "1/mV"}
    wide, zero = {**a, "range": [1e-90, 1e90]}, {"range": [0, 1], "unit": "1/ms"}
    for keys, expected in (
        ({}, True),
        ({"rate": "a", "parameters": {"a": {**a, "range": [0.1, 1]}}}, False),
        ({"parameters": {"a": zero, "z": z}}, False),
        ({"parameters": {"a": wide, "z": z}}, False),
        ({"parameters": {"a": {**a, "range": [0.1, 1], "per": "cell"}, "z": z}}, False),
    ):
        models = models_of(plan, **keys)
        assert is_part(models, models.plan_of(scheme), 7) is expected


def test_rates_may_share_the_z_of_the_model(plan: FitPlan) -> None:
    """Each transition has an a alone, also where rates follow around a cycle."""
    row = {"range": [1e-4, 10], "unit": "1/ms", "scale": "log"}
    discovery = Discovery(tasks_of(plan, cycles=1, scan=8, starts=1, parameters={"a": row}))
    discovery.scan()
    assert len(discovery.fits) == 4
    assert not any(fit.failure for fit in discovery.fits.values())


def test_a_name_that_the_complete_graph_needs_is_refused(plan: FitPlan) -> None:
    row = {"range": [1, 2], "value": 1.5}
    document = {**plan.document, "parameters": {**plan.document["parameters"], "e_C1": row}}
    document["current"] = {**document["current"], "conductance": "g*e_C1"}
    models = models_of(replace(plan, document=document))
    with pytest.raises(InputError, match="parameters.e_C1: is a name that discover gives"):
        document_of_complete(models, Space((3, 3)).schemes[0])


def test_without_a_choice_schemes_are_fitted_on_the_processor(plan: FitPlan, device: str) -> None:
    tasks = [ready(plan, TRUTH["fit"]["discover"], backend=one) for one in ("auto", "cuda")]
    assert [one.backend for one in tasks] == ["cpu", "cuda"]


def test_a_scheme_that_fails_is_named_and_the_others_are_fitted(
    plan: FitPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks, make = tasks_of(plan, keep=1), SchemeModels.plan_of

    def failing(models: SchemeModels, scheme: Any, *rest: Any, **how: Any) -> FitPlan:
        if scheme.text == "C2-O-C1":
            raise InputError("this one cannot be had")
        return make(models, scheme, *rest, **how)

    monkeypatch.setattr(SchemeModels, "plan_of", failing)
    table, _ = found_in(tasks)
    assert [row["graph"] for row in table if row["failure"]] == ["C2-O-C1"]
    assert table[-1]["failure"] == "this one cannot be had"
    assert table[0]["graph"] == "C2-C1-O"
    monkeypatch.setattr(SchemeModels, "plan_of", lambda models, *_: failing(models, None))
    with pytest.raises(AttributeError):  # a defect of the program is no failure of a scheme
        found_in(tasks)


def test_schemes_with_the_same_currents_are_said_to_have_them(plan: FitPlan) -> None:
    """C2-C1-O and C1-O-C2 share currents where no rate depends on the voltage (Kienker 1989)."""
    rows = {"a": {"range": [1e-4, 10], "unit": "1/ms", "scale": "log"}}
    tasks = tasks_of(plan, rate="a", parameters=rows, starts=6, states=3)
    # at one voltage alone, after a jump of the conductance's driving force there is no relaxation;
    # data that were made with rates that depend on the voltage fit both schemes equally badly
    discovery = Discovery(tasks)
    discovery.scan()
    found = found_by(discovery, discovery.fit())
    costs = [discovery.fits[k].best for k in found.best]
    assert costs[0] == pytest.approx(costs[1], rel=1e-3)
    assert found.equivalent() == [tuple(tasks.schemes[k].name for k in found.near)]
    said = " ".join(found.conclusions())
    assert "have the same currents" in said
    assert "those of the best fit are correlated, up to" in said  # as `compare` says
    samples, names = found.as_independent
    time = min(found.compared, key=lambda c: c.cost).correlation_time
    assert time > 1
    assert samples == pytest.approx(discovery.n_samples / time)
    fits = [fit for fit in discovery.fits.values() if not fit.failure]
    bic = {  # with one more number that is estimated, the noise
        fit.scheme.name: samples * math.log(fit.best) + (fit.n_parameters + 1) * math.log(samples)
        for fit in fits
    }
    close = [name for name in sorted(bic, key=bic.__getitem__) if bic[name] - min(bic.values()) < 6]
    assert sorted(names) == sorted(close)
    assert (f"With {samples:,.0f} independent samples in place of" in said) == (
        names != [tasks.schemes[k].name for k in found.near]
    )
    assert "at an end of its range" not in said
    assert "by more than 6" not in said
    alone = replace(found, best=found.best[:1], compared=found.compared[:1]).conclusions()
    assert "within 6 of it: 1 more that were not fitted fully" in alone[0]
    first = found.compared[0]
    names = [p.name for p in first.fit.problem.parameters]
    ends = {p.name: p.upper for p in first.fit.problem.parameters}
    values = first.values.copy()
    values[names.index("a_O_C1")] = ends["a_O_C1"]
    pushed = replace(found, compared=(replace(first, values=values), *found.compared[1:]))
    assert f"{first.label}: a_O_C1 at an end of its range" in " ".join(pushed.conclusions())


def test_rates_that_do_not_depend_on_the_voltage_are_found(place: Path, tmp_path: Path) -> None:
    """Of three states where two of four rates do not, from the file as a fit would have it."""
    rates = {**TRUTH["rates"], "C2 -> C1": "k*a", "C1 -> C2": "b"}
    (tmp_path / "steps.yaml").write_text(STEPS)
    (tmp_path / "truth.yaml").write_text(dump_yaml({**TRUTH, "rates": rates}))
    plan, section = discoveries.read(tmp_path / "truth.yaml", Changes(), "cpu")
    discovery = Discovery(ready(plan, {**section, "states": 3, "voltage": "choose"}))
    discovery.scan()
    found = found_by(discovery, discovery.fit())
    first = found.rows[0]
    assert (first["graph"], first["without_voltage"], first["parameters"]) == ("C2-C1-O", 2, 7)
    fixed = {p.name for p in found.compared[0].fit.problem.parameters if p.fixed}
    assert fixed == {"erev", "z_C2_C1", "z_C1_C2"}
    assert all(len(one.to) for one in found.follows)


# --- keys, options and Python ---------------------------------------------------------------------

#: By key two values that lead to different schemes, models or searches.
PROOFS: dict[str, tuple[Any, Any]] = {
    "states": (4, "3..4"),
    "open": (1, 2),
    "degree": (2, 3),
    "cycles": (0, 1),
    "distance": (1, 2),
    "backbone": (["C1 - O"], ["C2 - C1", "C1 - O"]),
    "subunits": (False, True),
    "reversible": (False, True),
    "rate": ("a*exp(z*v)", "a*exp(2*z*v)"),
    "parameters": ({"a": {"range": [1, 2]}, "z": {"range": [0, 1]}},
                   {"a": {"range": [1, 3]}, "z": {"range": [0, 1]}}),
    "voltage": ("all", "choose"),
    "scan": (8, 9),
    "starts": (1, 2),
    "keep": (1, 2),
}  # fmt: skip


def test_every_key_acts(plan: FitPlan) -> None:
    assert set(PROOFS) == set(KEYS["discover"])
    for key, values in PROOFS.items():
        seen = []
        for value in values:
            given = {"states": [3, 4], "open": 1, "backbone": ["C2 - C1", "C1 - O"], key: value}
            tasks = ready(plan, given)
            documents = [tasks.models.document(scheme) for scheme in tasks.schemes]
            seen.append((documents, tasks.effort, tasks.models.chooses))
        assert seen[0] != seen[1], key


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("fit.discover.states=9", "fit.discover.states: a whole number from 2 to 7"),
        ("fit.discover.states=2", "leaves one scheme"),
        ("fit.discover.scheme=2", 'unknown key "scheme"'),
        ("fit.discover=3", "a mapping (key: value) was expected"),
        ("fit.discover.rate=__import__('os')", "rate"),
        ("fit.discover.rate=nothing*a*z", "nothing"),
        ("fit.discover.parameters.a=3", "a mapping"),
        ("fit.discover.keep=0", "fit.discover.keep: a whole number, 1 or more"),
        ("gates={m: {alpha: a, beta: b}}", ""),
    ],
)
def test_hostile_input_is_refused(place: Path, tmp_path: Path, change: str, told: str) -> None:
    words = ["discover", str(place / "truth.yaml"), "--out", str(tmp_path / "o")]
    if "parameters.a" in change:
        change = "fit.discover.parameters={a: 3, z: {range: [0, 1]}}"
    done = CliRunner().invoke(main, [*words, "--set", change])
    if not told:  # the template's own gates are no part of the schemes, and must be right
        assert done.exit_code == 2
        return
    assert done.exit_code == 2, done.output
    assert told in done.output
    assert "Traceback" not in done.output
    assert not (tmp_path / "o").exists()


def test_a_fit_of_one_scheme_refuses_the_section(place: Path) -> None:
    with pytest.raises(InputError, match="says which schemes `channelfit discover` compares"):
        cf.fit(place / "truth.yaml", progress=False)


def test_a_folder_of_many_schemes_is_no_fit(run: Path) -> None:
    with pytest.raises(InputError, match=r"holds no fit\.yaml; .*3-1-0\d\.yaml may be meant"):
        cf.design(run, progress=False)


def test_options_and_python_say_the_same(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An experiment in memory, with data that are those of the file."""
    asked: list[SchemeTasks] = []

    def keep(tasks: SchemeTasks, *rest: Any) -> Any:
        asked.append(tasks)
        raise InputError("enough")

    monkeypatch.setattr("channelfit.discovery.run.run", keep)
    file = place / "truth.yaml"
    words = ["discover", str(file), "--states", "3..4", "--open", "1..2", "--seed", "5"]
    assert CliRunner().invoke(main, [*words, "--out", str(tmp_path / "o")]).exit_code == 2
    with pytest.raises(InputError, match="enough"):
        cf.discover(file, states="3..4", open=(1, 2), seed=5, progress=False)
    one, other = asked
    assert one.schemes == other.schemes == tuple(Space((3, 4), (1, 2), cycles=0).schemes)
    assert (one.seed, one.effort) == (other.seed, other.effort) == (5, Effort(48, 3, 2))
    with pytest.raises(InputError, match="experiments are needed"):
        cf.discover(cf.Model.load(file), progress=False)


def test_the_result_in_python(place: Path, tmp_path: Path) -> None:
    model, steps = cf.Model.load(place / "truth.yaml"), cf.Protocol.load(place / "steps.yaml")
    current = cf.simulate(model, steps).current
    noisy = current + 5 * np.random.default_rng(1).normal(size=current.shape)
    own = {"cycles": 0, "scan": 48, "starts": 3, "keep": 2}
    found = cf.discover(
        model, cf.Experiment(steps, noisy), states=(2, 3), schemes=own, progress=False
    )
    assert found.table.loc[found.best, "graph"] == "C2-C1-O"
    assert found.near[0] == found.best
    best = found.model()
    assert np.std(cf.simulate(best, steps).current - current) < 1.5
    files = found.save(tmp_path / "saved")
    assert {"discover.html", "schemes.csv", "summary.json"} <= {file.name for file in files}
    again = cf.compare(*sorted((tmp_path / "saved" / "schemes").glob("*-*.yaml")), progress=False)
    assert len(again.table) == 2
    assert len(found.plot().axes) == 1
    with pytest.raises(InputError, match="was not fitted fully"):
        found.model("x")


def test_longest_ways_are_drawn_in_a_row() -> None:
    for scheme in Space((2, 5), (1, 2), cycles=1).schemes:
        first = scheme.text.split(", ")[0].split("-")
        ways = [[scheme.states.index(name) for name in first]]
        assert all(scheme.joined[pair] for way in ways for pair in pairwise(way))
        assert sum(text.count("-") for text in scheme.text.split(", ")) == len(scheme.edges)


# --- observations ---------------------------------------------------------------------------------


def test_misfits_of_observations_are_in_standard_errors(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By hand from the numbers that the best schemes predict; no table or page says pA."""
    monkeypatch.setattr(results, "NEAR_BIC", 1e3)  # so that two are compared
    kinds: dict[str, dict[str, Any]] = {
        "late": {"measure": "mean", "window": {"segment": 2, "from": "20 ms"}},
        "peak": {},
        "rise": {"measure": "rise", "fractions": 0.5},
        "early": {"measure": "mean", "window": {"segment": 2, "to": "6 ms"}},
        "tail": {"window": {"segment": 3}},
    }
    usual = {"window": {"segment": 2}, "x": "v", "value": "i", "error": "sem"}
    rows = [usual | keys | {"file": f"{name}.csv", "name": name} for name, keys in kinds.items()]

    def tabulate(numbers: np.ndarray) -> None:
        for row, own in zip(rows, numbers, strict=True):
            lines = [f"{v},{y},{abs(y) / 20}" for v, y in zip((-40, 0, 40), own, strict=True)]
            (place / row["file"]).write_text("\n".join(["v,i,sem", *lines]))

    experiments: list[dict[str, Any]] = [
        {"protocol": "steps.yaml", "observe": rows[1:]},
        {"protocol": "steps.yaml", "observe": rows[0], "weight": 0},
    ]
    file = place / "observed.yaml"
    file.write_text(dump_yaml(TRUTH | {"fit": {"experiments": experiments}}))
    tabulate(np.ones((5, 3)))
    plan = load_plan(file)
    first, late = make_scorer(plan, "cpu").simulate(plan.problem.values()[:, None])
    scales = [o.scale for e in plan.problem.experiments for o in e.observations]
    numbers = np.concatenate([late, first])[..., 0] / np.roll(scales, 1, axis=0)
    tabulate(numbers * (1 + np.random.default_rng(5).standard_normal((5, 3)) / 20))
    schemes = {"states": 3, "cycles": 0, "scan": 8, "starts": 1, "keep": 2}
    file.write_text(dump_yaml(TRUTH | {"fit": {"experiments": experiments, "discover": schemes}}))
    folder = place / "of_numbers"
    words = ["discover", str(file), "--out", str(folder)]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    assert "rms in" in done.output
    summary = json.loads((folder / "summary.json").read_text())
    apart = []
    for best in summary["table"][:2]:
        plan = load_plan(folder / "schemes" / f"{best['scheme']}.yaml")
        predicted = make_scorer(plan, "cpu").simulate(plan.problem.values()[:, None])
        own = [
            [
                (row[:, 0] / o.scale - o.value) / o.error
                for o, row in zip(e.observations, of, strict=True)
            ]
            for e, of in zip(plan.problem.experiments, predicted, strict=True)
        ]
        for name, part in zip(("rms_in_errors", "held_out_in_errors"), own, strict=True):
            assert best[name] == pytest.approx(np.sqrt(np.mean(np.square(part))), rel=1e-6), name
        apart.append(np.concatenate(own))
    assert len(summary["differences"]) == 5
    for row, part in zip(summary["differences"], np.abs(apart[0] - apart[1]), strict=True):
        assert row["unit"] == "standard errors"
        assert row["largest"] == pytest.approx(part.max(), rel=1e-5)
        assert row["sweep"] == 1 + part.argmax()
    page = (folder / "discover.html").read_text()
    for text in (done.output, page, (folder / "schemes.csv").read_text()):
        assert "pA" not in re.sub(r"base64,[^\"]*", "", text)
