"""For every key of a file, an effect of it that can be seen."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner

from channelfit.front.kinds import load_plan, make_scorer
from channelfit.front.main import main
from channelfit.functions.fit_file import FunctionPlan
from channelfit.functions.run_folder import FunctionWinner
from channelfit.functions.run_folder import summarize as summarize_function
from channelfit.reading.documents import dump_yaml
from channelfit.reading.errors import InputError
from channelfit.results.run_summary import rescore, summarize
from channelfit.search.genetic import Genetic
from channelfit.search.loop import StopRules, optimize
from channelfit.search.plan import FitPlan
from channelfit.search.seeds import seeds_of

MODEL: dict[str, Any] = {
    "name": "little",
    "description": "two states",
    "source": "invented",
    "temperature": 22,
    "states": ["C", "O"],
    "definitions": {"q": "3**((celsius - 22)/10)"},
    "rates": {"C -> O": "q*a*exp(z*v)", "O -> C": "b"},
    "current": {"open": ["O"], "conductance": "g", "reversal": "-90 mV"},
    "parameters": {
        "a": {"range": [0.1, 1000], "unit": "1/s", "scale": "log", "value": 100},
        "z": {"range": [0, 0.1], "unit": "1/mV", "value": 0.02},
        "b": {"range": [1.0e-3, 1], "unit": "1/ms", "value": 0.05, "fixed": True},
        "g": {"range": [1, 100], "unit": "nS", "value": 10},
    },
    "fit": {"protocols": ["steps.yaml"], "surrogate": {"noise": 5, "seed": 3}},
}


GATES: dict[str, Any] = {
    **{key: MODEL[key] for key in ("parameters", "fit")},
    "gates": {
        "m": {"power": 2, "alpha": "a*exp(z*v)", "beta": "b"},
        "h": {"inf": "1/(1 + exp((v + 40)/5))", "tau": "1/b"},
    },
    "current": {"conductance": "g", "reversal": "-90 mV"},
}


PRINTED: dict[str, Any] = {
    "model": {
        "nStates": 2,
        "nParams": 3,
        "params": [
            {"name": "a", "min": 0.01, "max": 1, "val": 0.1},
            {"name": "b", "min": 0.01, "max": 1, "val": 0.1},
            {"name": "g", "min": 1, "max": 10, "val": 5},
        ],
        "rates": ["k12 = a*exp(v/30)", "k21 = b"],
        "nOpenStates": 1,
        "openStates": [2],
        "eRev": -90,
    },
    "fit": {"protocols": ["steps.yaml"]},
}


STEPS: dict[str, Any] = {
    "name": "steps",
    "description": "three steps",
    "source": "invented",
    "holding": -80,
    "sampling": 1,
    "segments": [{"hold": 5}, {"step": {"values": [-40, 0, 40]}, "for": 12}],
}


SINES = (
    {"hold": 5},
    {
        "sines": {
            "offset": -20,
            "origin": 1,
            "terms": [
                {"amplitude": 20, "omega": 0.3, "phase": 0.2},
                {"amplitude": 5, "frequency": 0.02},
            ],
        },
        "for": 12,
    },
)


RECORDING: dict[str, Any] = {
    "file": "r.csv",
    "time": {"column": "t", "unit": "ms", "start": 100},
    "current": {"columns": ["x", "y", "z"], "unit": "nA"},
    "source": "cell 1",
}


EXPERIMENT: dict[str, Any] = {"protocol": "steps.yaml", "recording": RECORDING, "weight": 1}


FIT_FILE: dict[str, Any] = {
    "model": "model.yaml",
    "name": "cell one",
    "description": "the first",
    "source": "the bench",
    "temperature": 22,
    "current": {"reversal": -90},
    "parameters": {"g": {"value": 10}},
    "fit": {"experiments": [EXPERIMENT, copy.deepcopy(EXPERIMENT)]},
}


FUNCTION: dict[str, Any] = {
    "name": "plane",
    "description": "a plane",
    "source": "invented",
    "sizes": {"n": 2},
    "parameters": {
        "w": {
            "size": "n",
            "range": [1, 2],
            "scale": "linear",
            "value": 1.5,
            "unit": "mV",
            "fixed": False,
        }
    },
    "definitions": {"d": "3*w[1]"},
    "outputs": {"y": "d + sum(w[i]*x, i, 1, n)"},
    "data": {"file": "d.csv", "inputs": {"x": "x"}, "targets": {"y": "y"}, "scale": "none"},
    "fit": {"seed": 1},
}


COST = {key: FUNCTION[key] for key in ("sizes", "parameters", "definitions", "fit")} | {
    "cost": "d + sum(w[i]**2, i, 1, n)"
}


def write_tables(folder: Path) -> None:
    """Recordings of the three steps, a command and a table of data."""
    random = np.random.default_rng(1)
    current = random.normal(0.1, 0.02, (17, 3)) + 0.01 * np.arange(17)[:, None]
    rows = [",".join(f"{x!r}" for x in row) for row in current.tolist()]
    times = [f"{100 + k}" for k in range(17)]
    table = [f"{t},{row},{t}" for t, row in zip(times, rows, strict=True)]
    (folder / "r.csv").write_text("\n".join(["t,x,y,z,t2", *table]) + "\n")
    other = [f"{t},{row.replace('0.1', '0.2')},0" for t, row in zip(times, rows, strict=True)]
    (folder / "other.csv").write_text("\n".join(["t,x,y,z,t2", *other]) + "\n")
    (folder / "gap.csv").write_text("\n".join(["t,x,y,z", *table[:3], "103,nan,1,1"]) + "\n")
    gap = [",".join(row.split(",")[:4]) for row in table]
    gap[3] = "103,nan,1,1"
    (folder / "gap.csv").write_text("\n".join(["t,x,y,z", *gap]) + "\n")
    (folder / "plain.csv").write_text("\n".join(["-40,0,40", *rows]) + "\n")
    command = [f"{k},{v},{-v}" for k, v in enumerate([-80, -40, -20.5, 0, 20, 40, 10])]
    (folder / "v.csv").write_text("\n".join(["0,1,2", *command]) + "\n")
    (folder / "v2.csv").write_text("\n".join(["0,1,2", *command[:-1], "6,-20,20"]) + "\n")
    headings = "t (ms),I1 (nA),I2 (nA),I3 (nA),V1 (mV),V2 (mV),V3 (mV)"
    swept = [f"{k},{row},-80,{5 * k},{-4 * k}" for k, row in enumerate(rows)]
    (folder / "swept.csv").write_text("\n".join([headings, *swept]) + "\n")
    turned = [",".join(repr(x) for x in column) for column in current.T.tolist()]
    (folder / "turned.csv").write_text("\n".join(turned) + "\n")
    (folder / "parts.csv").write_text("\n".join(["x,y,z", *rows[:5]]) + "\n")
    (folder / "turned_v.csv").write_text("-80,-60,-40\n-20,0,20\n10,20,30\n")
    (folder / "commas.csv").write_text("\n".join(f"{k},{k + 100}" for k in range(1, 18)) + "\n")
    (folder / "d.csv").write_text("x,x2,y,y2\n1,2,3,4.5\n2,1,5,6\n3,5,7,1\n")
    (folder / "d2.csv").write_text("x,x2,y,y2\n1,2,3,4.5\n2,1,9,6\n3,5,7,1\n")


def effect(folder: Path, file: str, told: bool) -> str:
    """All that a fit, model or function file leads to; the same where nothing differs.

    told: what is printed and written counts too, not only what is computed.
    """
    fit = load_plan(folder / file, (), "reference")
    seen: list[Any] = []
    if told:
        shown = CliRunner().invoke(main, ["show", str(folder / file)])
        assert shown.exit_code == 0, shown.output
        seen.append(shown.output)
    # the reference takes minutes for a clamp
    text = (folder / file).read_text()
    slow = "clamp" in text or "lowpass" in text
    scorer = make_scorer(fit, "cpu" if slow else "reference")
    objective = fit.objective(scorer)
    unit = np.random.default_rng(0).random((objective.n_free, 5))
    score = objective.score(unit)
    seen += [objective.physical(unit), score.cost, score.status]
    if fit.has_currents:
        seen += _currents(fit, scorer)
    generations = StopRules(generations=2)
    result = optimize(
        Genetic(objective.n_free, 4, fit.seed, initial=fit.starting_point()), objective, generations
    )
    seen += [result.values, fit.starting_point(), seeds_of(fit)]
    if told:
        seen.append(_summary(fit, result, scorer))
    return "\n".join(x.tobytes().hex() if isinstance(x, np.ndarray) else str(x) for x in seen)


def _currents(fit: FitPlan, scorer: Any) -> list[Any]:
    seen: list[Any] = []
    for experiment in fit.problem.experiments:
        seen += [experiment.protocol.command(), experiment.protocol.times_ms]
        if experiment.recording is not None:
            seen += [experiment.recording.current_pA, experiment.recording.weight]
    if all(p.value is not None for p in fit.problem.parameters):
        seen += scorer.simulate(fit.problem.values()[:, None])
    return seen


def _summary(fit: FitPlan, result: Any, scorer: Any) -> str:
    """The summary of a run, less clocks, paths, and what is told again as it was given."""
    if isinstance(fit, FunctionPlan):
        summary = summarize_function(fit, result, scorer, FunctionWinner(result.values, 1.0))
    else:
        summary = summarize(fit, result, scorer, rescore(fit, scorer, result.values))
    left = (
        "seconds",
        "candidates_per_second",
        "finished",
        "file",
        "machine",
        "settings",
        "stop",
        "seed",
        "optimizer",
    )
    return json.dumps({key: str(value) for key, value in summary.items() if key not in left})


def changed(document: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """A copy with one entry changed, or without it where the value is ...; path a/b/0/c."""
    out = copy.deepcopy(document)
    *way, last = path.split("/")
    place: Any = out
    for part in way:
        place = place[int(part)] if isinstance(place, list) else place.setdefault(part, {})
    if value is ...:
        del place[last]
    elif isinstance(place, list):
        place[int(last)] = value
    else:
        place[last] = value
    return out


BASES = {
    "model": MODEL,
    "gates": GATES,
    "printed": PRINTED,
    "steps": STEPS,
    "fit": FIT_FILE,
    "function": FUNCTION,
    "cost": COST,
}


TOLD = ("name", "description", "source")


@dataclass(frozen=True)
class Proof:
    """Documents that differ in one key, and what comes of it.

    base: which document; path: where the key stands in it; values: two of them, ... for none.
    given: changes that both documents share. refused: words of the refusal of the second one,
    where the key is there to be checked against something else, or is not accepted at all.
    """

    base: str
    path: str
    values: tuple[object, object]
    given: tuple[tuple[str, object], ...] = ()
    refused: str = ""

    @property
    def told(self) -> bool:
        """Whether the key describes, so that being told is its effect."""
        labels = {("model", "states"), ("function", "parameters/w/unit")}
        return self.path.split("/")[-1] in TOLD or (self.base, self.path) in labels

    def seen(self, folder: Path) -> list[str]:
        """The effect of both."""
        write_tables(folder)
        for name in ("model", "steps"):
            (folder / f"{name}.yaml").write_text(dump_yaml(BASES[name]))
        (folder / "model2.yaml").write_text(dump_yaml(changed(MODEL, "rates/O -> C", "2*b")))
        document = BASES[self.base]
        for path, value in self.given:
            document = changed(document, path, value)
        effects = []
        for value in self.values:
            one = changed(document, self.path, value)
            (folder / f"{self.base}.yaml").write_text(dump_yaml(one))
            file = "model" if self.base == "steps" else self.base
            try:
                effects.append(effect(folder, f"{file}.yaml", self.told))
            except InputError as error:
                effects.append(f"refused: {error}")
        return effects


def proofs() -> dict[tuple[str, str], Proof]:
    """By section and key."""
    out: dict[tuple[str, str], Proof] = {}

    def show(
        section: str,
        base: str,
        at: str,
        given: tuple[tuple[str, object], ...] = (),
        refused: str = "",
        /,
        **keys: tuple[object, object],
    ) -> None:
        for key, values in keys.items():
            name = key.rstrip("_")  # from_ for `from`, and so on
            path = f"{at}/{name}" if at else name
            out[section, name] = Proof(base, path, values, given, refused)

    # a model
    show(
        "model",
        "model",
        "",
        name=("one", "two"),
        description=("one", "two"),
        source=("one", "two"),
        temperature=(22, 32),
        states=(["C", "O"], ["O", "C"]),
        definitions=({"q": "1"}, {"q": "2"}),
        rates=(MODEL["rates"], MODEL["rates"] | {"O -> C": "2*b"}),
        parameters=(MODEL["parameters"], changed(MODEL["parameters"], "a/value", 10)),
        current=(MODEL["current"], MODEL["current"] | {"reversal": -80}),
        fit=(MODEL["fit"], {"protocols": ["steps.yaml"]}),
    )
    show("model", "gates", "", gates=(GATES["gates"], changed(GATES["gates"], "m/power", 3)))
    free = (("parameters/b/fixed", False),)
    show(
        "parameter",
        "model",
        "parameters/a",
        range=([1, 1000], [1, 500]),
        unit=("1/s", "1/ms"),
        value=(100, 200),
        scale=("linear", "log"),
    )
    show("parameter", "model", "parameters/b", fixed=(True, False))
    show("parameter", "model", "parameters/b", free, tie=("a/2", "a/3"))
    # what it does is seen in exports: tests/model/test_import_inputs.py
    no_ion = "is no variable of an ion"
    show("parameter", "model", "parameters/b", (), no_ion, input=("cai", "b"))
    prior = (("parameters/g/prior", {}), ("fit/noise", 5))
    show(
        "parameter",
        "model",
        "parameters/g",
        (("fit/noise", 5),),
        prior=({"normal": [9, 2]}, {"normal": [9, 1]}),
    )
    show(
        "prior",
        "model",
        "parameters/g/prior",
        prior,
        normal=([9, 2], [5, 2]),
        lognormal=([9, 2], [9, 3]),
    )
    show(
        "gate",
        "gates",
        "gates/m",
        power=(1, 2),
        alpha=("a*exp(z*v)", "2*a*exp(z*v)"),
        beta=("b", "2*b"),
    )
    show("gate", "gates", "gates/h", inf=("0.5", "0.25"), tau=("5", "10"))
    show(
        "current",
        "model",
        "current",
        open=(["O"], {"O": 0.5}),
        conductance=("g", "2*g"),
        reversal=(-90, -80),
    )
    show(
        "current",
        "model",
        "current",
        (("parameters/g/unit", "mS/cm2"),),
        area=("1000 um2", "2000 um2"),
    )
    show(
        "current",
        "model",
        "current",
        (("parameters/g/unit", "mS/uF"),),
        capacitance=("10 pF", "20 pF"),
    )

    ghk = {
        "open": ["O"],
        "permeability": "g",
        "ion": {"valence": 2, "inside": "1 uM", "outside": "2 mM"},
    }
    monovalent = {"valence": 1, "inside": "1 uM", "outside": "2 mM"}
    permeable = (("parameters/g/unit", "um3/ms"), ("current", ghk))
    show("current", "model", "current", (), rectification=("0.5", "exp(v/50)"))
    show(
        "current",
        "model",
        "current",
        permeable,
        permeability=("g", "2*g"),
        ion=(ghk["ion"], monovalent),
    )
    show(
        "ion",
        "model",
        "current/ion",
        permeable,
        valence=(2, 1),
        inside=("1 uM", "1 mM"),
        outside=("2 mM", "5 mM"),
        thermal=("25 mV", "26 mV"),
    )
    leak = {"conductance": "2 nS", "reversal": 0}
    show("model", "model", "", leak=(leak, leak | {"reversal": -10}))
    show("leak", "model", "leak", (("leak", leak),), conductance=(1, 2), reversal=(0, -10))
    one = {key: MODEL[key] for key in ("states", "rates")} | MODEL["current"]
    moved = tuple((key, ...) for key in ("states", "rates", "current"))
    show("model", "model", "", moved, currents=({"k": one}, {"k": one | {"reversal": -80}}))
    apart = (*moved, ("currents", {"k": one}))
    show(
        "one current",
        "model",
        "currents/k",
        apart,
        rates=(one["rates"], one["rates"] | {"O -> C": "2*b"}),
        gates=(GATES["gates"], {"m": GATES["gates"]["m"]}),
        open=(["O"], {"O": 0.5}),
        conductance=("g", "2*g"),
        reversal=(-90, -80),
        rectification=("0.5", "exp(v/50)"),
    )
    show(
        "one current",
        "model",
        "currents/k",
        apart,
        "cannot be reached",
        states=(["C", "O"], ["C", "O", "I"]),
    )
    apart = (
        *moved,
        permeable[0],
        ("currents", {"k": {k: one[k] for k in ("states", "rates")} | ghk}),
    )
    show(
        "one current",
        "model",
        "currents/k",
        apart,
        permeability=("g", "2*g"),
        ion=(ghk["ion"], monovalent),
    )

    # the printed form
    show(
        "printed file",
        "printed",
        "",
        model=(PRINTED["model"], PRINTED["model"] | {"eRev": 0}),
        fit=(PRINTED["fit"], PRINTED["fit"] | {"surrogate": {"noise": 5}}),
    )
    params = PRINTED["model"]["params"]
    show(
        "printed model",
        "printed",
        "model",
        params=(params, changed(params, "0/val", 0.2)),
        rates=(PRINTED["model"]["rates"], ["k12 = a", "k21 = b"]),
        openStates=([2], [1]),
        eRev=(-90, -80),
    )
    show("printed model", "printed", "model", (), "cannot be reached", nStates=(2, 3))
    show("printed model", "printed", "model", (), "nParams: 4 are announced", nParams=(3, 4))
    show("printed model", "printed", "model", (), "2 are announced", nOpenStates=(1, 2))
    show("printed parameter", "printed", "model/params/2", min=(1, 2), max=(10, 9), val=(5, 6))
    show("printed parameter", "printed", "model/params/2", (), 'unknown name "a"', name=("g", "h"))
    out["printed parameter", "name"] = replace(
        out["printed parameter", "name"], path="model/params/0/name", values=("a", "c")
    )

    # a fit file and its section
    show(
        "fit file",
        "fit",
        "",
        model=("model.yaml", "model2.yaml"),
        name=("one", "two"),
        description=("one", "two"),
        source=("one", "two"),
        temperature=(22, 32),
        current=({"reversal": -90}, {"reversal": -80}),
        leak=(leak, leak | {"reversal": -10}),
        parameters=({}, {"g": {"value": 20}}),
        fit=(FIT_FILE["fit"], {"experiments": [EXPERIMENT]}),
    )
    show(
        "fit",
        "model",
        "fit",
        name=("one", "two"),
        description=("one", "two"),
        source=("one", "two"),
        protocols=(["steps.yaml"], ["steps.yaml", "steps.yaml"]),
        surrogate=({"noise": 5}, {"noise": 6}),
        seed=(0, 1),
        seeds=(1, 2),
        rates_within=(["1e-9 /ms", "1000 /ms"], ["1e-9 /ms", "0.2 /ms"]),
        solve=("none", "g"),
    )
    judges = "judges the wells of `channelfit batch`"  # see test_batch_checks.py
    show("fit", "model", "fit", (), judges, require=({}, {"seal": "> 500 MOhm"}))
    show("fit", "model", "fit", (("parameters/g/prior", {"normal": [9, 2]}),), noise=(5, 6))
    show(
        "fit",
        "fit",
        "fit",
        experiments=([EXPERIMENT], [EXPERIMENT, EXPERIMENT]),
        start=("none", "values"),
    )
    show("surrogate", "model", "fit/surrogate", noise=(5, 6), seed=(0, 1))
    first = "fit/experiments/0"
    other = (("fit/experiments/1/recording", RECORDING | {"file": "other.csv"}),)
    show("experiment", "fit", first, other, weight=(1, 2))
    show("experiment", "fit", first, mask=(..., {"from": 3, "to": 5}), every=(1, 2), delay=(0, 2))
    out["experiment", "mask"] = replace(
        out["experiment", "mask"], values=({"from": 3, "to": 4}, {"from": 3, "to": 5})
    )
    cells = tuple((f"fit/experiments/{k}/cell", cell) for k, cell in enumerate("ab"))
    show("parameter", "fit", "parameters/g", cells, per=(None, "cell"))
    show("experiment", "fit", first, (("parameters/g/per", "cell"), cells[1]), cell=("a", "b"))
    show("experiment", "fit", first, temperature=(22, "30 degC"))
    show("experiment", "fit", first, (), "no such file", protocol=("steps.yaml", "no.yaml"))
    show("experiment", "fit", first, recording=(RECORDING, RECORDING | {"file": "other.csv"}))
    clamp = {"series_resistance": "20 MOhm", "membrane_capacitance": "30 pF"}
    alone = (("fit/experiments", [EXPERIMENT]),)
    show("experiment", "fit", first, alone, clamp=(clamp, clamp | {"delay": "0.3 ms"}))
    show("fit", "fit", "fit", clamp=(clamp, clamp | {"offset": "5 mV"}))
    held = (("fit/clamp", clamp),)
    lagging = (*held, ("fit/clamp/compensation", {"fraction": 0.5, "lag": "0.1 ms"}))
    show(
        "clamp",
        "fit",
        "fit/clamp",
        held,
        series_resistance=("20 MOhm", "40 MOhm"),
        membrane_capacitance=("30 pF", "60 pF"),
        compensation=(0.5, 0.9),
        cancellation=(0.2, 0.5),
        leak=({"conductance": "2 nS"}, {"conductance": "1 nS"}),
        offset=("1 mV", "3 mV"),
        delay=("0.1 ms", "0.4 ms"),
        lowpass=({"cutoff": "0.1 kHz"}, {"cutoff": "0.2 kHz"}),
    )
    show("clamp", "fit", "fit/clamp", lagging, pipette_capacitance=("1 pF", "5 pF"))
    place = "fit/clamp/compensation"
    show(
        "clamp compensation",
        "fit",
        place,
        lagging,
        fraction=(0.2, 0.7),
        prediction=(0.2, 0.7),
        lag=("0.1 ms", "0.2 ms"),
    )
    leak = (*held, ("fit/clamp/leak", {"conductance": "1 nS"}))
    show(
        "clamp leak",
        "fit",
        "fit/clamp/leak",
        leak,
        conductance=("1 nS", "2 nS"),
        reversal=("0 mV", "10 mV"),
    )
    filtered = (*held, ("fit/clamp/lowpass", {"cutoff": "0.2 kHz"}))
    show(
        "clamp lowpass",
        "fit",
        "fit/clamp/lowpass",
        filtered,
        poles=(2, 4),
        cutoff=("0.2 kHz", "0.1 kHz"),
    )
    mask = f"{first}/mask"
    show("mask", "fit", mask, after_steps=(1, 3), before_steps=(1, 3), from_=(3, 5), to=(3, 5))
    show("mask", "fit", mask, ((f"{mask}/from", 9),), weight=(0, 0.5), sweeps=([1], [2]))
    within = {"range": ["1e-9 /ms", "0.2 /ms"]}
    bounds = ("fit/rates_within", within)
    show(
        "rates_within",
        "model",
        "fit/rates_within",
        (bounds,),
        voltages=([-80], [40]),
        rates=(["C -> O"], ["O -> C"]),
        range=(["1e-9 /ms", "0.2 /ms"], ["1e-9 /ms", "1000 /ms"]),
    )
    largest = (("fit/rates_within", {"range": ["0.02 /ms", "10 /ms"]}),)
    show("rates_within", "model", "fit/rates_within", largest, of=("all", "largest"))

    # a recording
    place = f"{first}/recording"
    show(
        "recording",
        "fit",
        place,
        file=("r.csv", "other.csv"),
        sweeps=([1, 2, 3], [3, 2, 1]),
        source=("cell 1", "cell 2"),
        baseline=({"from": 0, "to": 3}, {"from": 0, "to": 4}),
        current=(RECORDING["current"], RECORDING["current"] | {"unit": "pA"}),
        time=(RECORDING["time"], {"column": "t2", "unit": "ms", "start": 100}),
    )
    untimed = ((f"{place}/time", ...),)
    show("recording", "fit", place, untimed, "sampled every 2 ms", sampling=(1, 2))
    plain = (
        *untimed,
        (f"{place}/sampling", 1),
        (f"{place}/file", "plain.csv"),
        (f"{place}/current/columns", "all"),
    )
    show("recording", "fit", place, plain, "18 samples", header=(True, False))
    show(
        "recording",
        "fit",
        place,
        ((f"{place}/file", "gap.csv"),),
        "line 5 (3 ms) is NaN",
        missing=("mask", "refuse"),
    )
    show(
        "recording",
        "fit",
        place,
        (),
        "stands beside the recording",
        capacitance=(..., "10 pF"),
        series_resistance=(..., "5 MOhm"),
    )
    for key in ("capacitance", "series_resistance"):
        out["recording", key] = replace(out["recording", key], values=("1", "2"))
    out["recording", "time"] = replace(
        out["recording", "time"],
        refused="the column begins at 100 ms",
        values=(RECORDING["time"], {"column": "t", "unit": "ms"}),
    )
    show("recording time", "fit", f"{place}/time", (), "no column", column=("t2", "t3"))
    show(
        "recording time",
        "fit",
        f"{place}/time",
        ((f"{place}/time/start", "100"),),
        "are these times in ms?",
        unit=("ms", "s"),
    )
    show("recording time", "fit", f"{place}/time", (), "begins at 100 ms", start=(100, 0))
    show(
        "recording current",
        "fit",
        f"{place}/current",
        columns=(["x", "y", "z"], ["y", "x", "z"]),
        unit=("nA", "pA"),
    )
    alone = ((f"{place}/current/columns", ...), (f"{place}/sweeps", [1]))
    show("recording current", "fit", f"{place}/current", alone, column=("x", "y"))
    show(
        "recording current",
        "fit",
        f"{place}/current",
        ((f"{place}/current/unit", "uA/cm2"),),
        area=("1000 um2", "2000 um2"),
    )
    show(
        "recording current",
        "fit",
        f"{place}/current",
        ((f"{place}/current/unit", "A/F"),),
        capacitance=("10 pF", "20 pF"),
    )
    swept = (
        *untimed,
        (f"{place}/file", "swept.csv"),
        (f"{place}/current", {"signal": "I", "sweeps": [1, 2, 3]}),
    )
    at = f"{place}/current"
    show("recording current", "fit", at, swept, sweeps=([1, 2, 3], [2, 1, 3]))
    show("recording current", "fit", at, swept, "is a voltage, in mV", signal=(1, "V"))
    parts = ((f"{place}/file", "parts.csv"), *untimed, (f"{place}/sampling", 1))
    show("recording", "fit", place, parts, starts=(2, [1, 2, 3]))
    turned = (
        *untimed,
        (f"{place}/file", "turned.csv"),
        (f"{place}/sampling", 1),
        (f"{place}/header", False),
        (f"{place}/current", {"columns": "all", "unit": "nA"}),
    )
    rows, columns = "sweeps x samples", "samples x sweeps"
    show("recording", "fit", place, turned, "17 columns", layout=(rows, columns))
    commas = (
        *untimed,
        (f"{place}/file", "commas.csv"),
        (f"{place}/sampling", 1),
        (f"{place}/header", False),
        (f"{place}/sweeps", [1]),
        (f"{place}/current", {"column": "1", "unit": "nA"}),
    )
    show("recording", "fit", place, commas, decimal=("comma", "point"))
    show("baseline", "fit", f"{place}/baseline", ((f"{place}/baseline", {"to": 5}),), from_=(0, 1))
    show("baseline", "fit", f"{place}/baseline", ((f"{place}/baseline", {"from": 0}),), to=(4, 5))

    condition = f"{place}/condition"
    leak, other = {"from": 0, "to": 9}, {"file": "other.csv"}
    show("recording", "fit", place, condition=([], [{"baseline": {"from": 0, "to": 3}}]))
    steps = {
        "baseline": ({"from": 0, "to": 3}, {"from": 0, "to": 4}),
        "leak": (leak, leak | {"to": 6}),
        "subtract": (other, {"file": "r.csv"}),
        "run_down": ({"from": 0, "to": 3, "trend": "each"}, {"from": 0, "to": 2, "trend": "each"}),
    }
    quick = {"cutoff": 0.2}
    steps["lowpass"] = (quick, {"cutoff": 0.1})
    show(
        "condition lowpass",
        "fit",
        f"{condition}/0/lowpass",
        ((condition, [{"lowpass": quick}]),),
        cutoff=(0.2, 0.1),
        poles=(4, 2),
        every=(1, 2),
    )
    for step, values in steps.items():
        show("condition", "fit", f"{condition}/0", ((condition, [{}]),), **{step: values})
    first_step = f"{condition}/0"
    show(
        "condition leak",
        "fit",
        f"{first_step}/leak",
        ((condition, [{"leak": leak}]),),
        from_=(0, 2),
        to=(9, 6),
        reversal=(-80, -60),
    )
    show(
        "condition leak",
        "fit",
        f"{first_step}/leak",
        ((condition, [{"leak": {"reversal": -80}}]),),
        conductance=(1, 2),
    )
    show(
        "condition run_down",
        "fit",
        f"{first_step}/run_down",
        ((condition, [{"run_down": {"from": 0, "to": 3}}]),),
        from_=(0, 1),
        to=(3, 2),
        trend=("each", "line"),
    )
    fitted = ((condition, [{"subtract": other | {"scale": "fit", "over": {"from": 0, "to": 9}}}]),)
    show(
        "condition subtract",
        "fit",
        f"{first_step}/subtract",
        fitted,
        file=("other.csv", "r.csv"),
        drift=("none", "line"),
        over=({"from": 0, "to": 9}, {"from": 0, "to": 6}),
    )
    plainly = ((condition, [{"subtract": other}]),)
    show(
        "condition subtract",
        "fit",
        f"{first_step}/subtract",
        plainly,
        scale=(1, 2),
        sweeps=([1, 2, 3], [3, 2, 1]),
        current=(RECORDING["current"], RECORDING["current"] | {"unit": "pA"}),
    )
    early = {"column": "t", "unit": "ms"}
    subtract = f"{first_step}/subtract"
    times = (RECORDING["time"], early)
    show("condition subtract", "fit", subtract, plainly, "begins at 100 ms", time=times)
    table = {"file": "plain.csv", "current": {"columns": "all", "unit": "pA"}, "sampling": 1}
    heading = ((condition, [{"subtract": table}]),)
    show(
        "condition subtract",
        "fit",
        f"{first_step}/subtract",
        heading,
        "18 samples",
        header=(True, False),
    )
    heading = ((condition, [{"subtract": table | {"header": True}}]),)
    show("condition subtract", "fit", subtract, heading, "sampled every 2 ms", sampling=(1, 2))
    gap = ((condition, [{"subtract": {"file": "gap.csv"}}]),)
    show("condition subtract", "fit", subtract, gap, "is NaN", missing=("mask", "refuse"))

    # a protocol
    show(
        "protocol",
        "steps",
        "",
        name=("one", "two"),
        description=("one", "two"),
        source=("one", "two"),
        holding=(-80, -60),
        sampling=(1, 0.5),
        junction_potential=(0, "4.5 mV"),
        between_sweeps=("steady state", "carry over"),
        segments=(STEPS["segments"], STEPS["segments"][:1]),
    )
    show(
        "between_sweeps",
        "steps",
        "between_sweeps",
        (("between_sweeps", {}),),
        carry_over=(True, False),
        rest=(0, 5),
    )
    rest = (("between_sweeps", {"rest": 5}),)
    show("between_sweeps", "steps", "between_sweeps", rest, at=(-80, -60))
    show("segment", "steps", "segments/0", hold=(5, 6))
    show("segment", "steps", "segments/1", step=(0, 20), for_=(12, 13))
    wave = (("segments/1", {"for": 12}),)
    show(
        "segment",
        "steps",
        "segments/1",
        wave,
        ramp=([-80, 0], [-80, 20]),
        sines=(SINES[1]["sines"], changed(SINES[1]["sines"], "offset", 0)),
        recorded=(
            {"file": "v.csv", "header": True, "column": "1", "sampling": 1},
            {"file": "v.csv", "header": True, "column": "2", "sampling": 1},
        ),
    )
    place = "segments/1/step"
    show("family of voltages", "steps", place, values=([0, 20], [0, 40]))
    ends = ((place, {"from": -40, "to": 40, "by": 40}),)
    show("family of voltages", "steps", place, ends, from_=(-40, -80), to=(40, 80), by=(40, 20))
    place, still = "segments/1/for", ("segments/1/step", 0)
    show("family of times", "steps", place, (still, (place, {})), values=([5, 6], [5, 7]))
    ends = (still, (place, {"from": 5, "to": 9, "by": 2}))
    show("family of times", "steps", place, ends, from_=(5, 7), to=(9, 11), by=(2, 4))
    sines = (("segments", list(SINES)),)
    show(
        "sines",
        "steps",
        "segments/1/sines",
        sines,
        offset=(-20, 0),
        origin=(1, 2),
        terms=(SINES[1]["sines"]["terms"], SINES[1]["sines"]["terms"][:1]),
    )
    show(
        "sine",
        "steps",
        "segments/1/sines/terms/0",
        sines,
        amplitude=(20, 10),
        omega=(0.3, 0.2),
        phase=(0.2, 0),
    )
    show("sine", "steps", "segments/1/sines/terms/1", sines, frequency=(0.02, 0.01))
    command = {"file": "v.csv", "header": True, "column": "1", "unit": "mV", "sampling": 2}
    recorded = (("segments/1", {"recorded": command}),)
    show(
        "recorded",
        "steps",
        "segments/1/recorded",
        recorded,
        file=("v.csv", "v2.csv"),
        column=("1", "2"),
        sampling=(2, 3),
        header=(True, False),
    )
    family = (("segments/1", {"recorded": {"file": "v.csv", "header": True, "sampling": 2}}),)
    show("recorded", "steps", "segments/1/recorded", family, columns=(["1", "2"], ["2", "1"]))
    show(
        "recorded", "steps", "segments/1/recorded", recorded, "is the unit right?", unit=("mV", "V")
    )
    place = "segments/1/recorded"
    swept = (("segments/1", {"recorded": {"file": "swept.csv", "signal": "V"}}),)
    show("recorded", "steps", place, swept, "is a current, in nA", signal=("V", "I"))
    show("recorded", "steps", place, swept, sweeps=([1, 2, 3], [3, 2, 1]))
    turned = {"file": "turned_v.csv", "header": False, "column": "1", "sampling": 2}
    show(
        "recorded", "steps", place, (("segments/1", {"recorded": turned}),), layout=(rows, columns)
    )
    commas = {"file": "commas.csv", "header": False, "column": "1", "sampling": 2}
    show(
        "recorded",
        "steps",
        place,
        (("segments/1", {"recorded": commas}),),
        decimal=("comma", "point"),
    )
    clock = {"column": "0", "unit": "ms"}
    timed = (
        ("sampling", 500),
        ("segments/1/recorded", {"file": "v.csv", "header": True, "column": "1", "time": clock}),
        ("segments/1/step", ...),
        ("segments/1/for", ...),
    )
    show(
        "recorded",
        "steps",
        "segments/1/recorded",
        timed,
        time=({"column": "0"}, {"column": "0", "unit": "s"}),
    )
    show("recorded time", "steps", "segments/1/recorded/time", timed, unit=("ms", "s"))
    show(
        "recorded time",
        "steps",
        "segments/1/recorded/time",
        timed,
        "its times must increase",
        column=("0", "1"),
    )

    # a function
    show(
        "function",
        "function",
        "",
        name=("one", "two"),
        description=("one", "two"),
        source=("one", "two"),
        sizes=({"n": 2}, {"n": 3}),
        parameters=(FUNCTION["parameters"], changed(FUNCTION["parameters"], "w/range", [0, 1])),
        definitions=({"d": "3*w[1]"}, {"d": "4*w[1]"}),
        outputs=(FUNCTION["outputs"], {"y": "d"}),
        data=(FUNCTION["data"], FUNCTION["data"] | {"scale": "range"}),
        fit=({"seed": 1}, {"seed": 2}),
    )
    show("function", "cost", "", cost=("d", "2*d"))
    show(
        "function parameter",
        "function",
        "parameters/w",
        size=(2, 3),
        range=([1, 2], [1, 3]),
        scale=("linear", "log"),
        unit=("mV", "V"),
    )
    another = (("parameters/u", {"range": [0, 1]}), ("definitions/e", "u"))
    show("function parameter", "function", "parameters/w", another, fixed=(False, True))
    still = (*another, ("parameters/w/fixed", True))
    show("function parameter", "function", "parameters/w", still, value=(1.5, 1.6))
    show(
        "function data",
        "function",
        "data",
        file=("d.csv", "d2.csv"),
        inputs=({"x": "x"}, {"x": "x2"}),
        targets=({"y": "y"}, {"y": "y2"}),
        scale=("none", "range"),
    )
    show(
        "function fit",
        "function",
        "fit",
        name=("one", "two"),
        description=("one", "two"),
        source=("one", "two"),
        seed=(0, 1),
        seeds=(1, 2),
        start=("none", "values"),
    )
    return out


PROOFS = proofs()
