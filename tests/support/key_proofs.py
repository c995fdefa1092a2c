"""For every key of a file, an effect of it that can be seen."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from click.testing import CliRunner

from channelfit.front.kinds import load_plan, make_scorer
from channelfit.front.main import main
from channelfit.functions.fit_file import FunctionPlan
from channelfit.functions.run_folder import FunctionWinner
from channelfit.functions.run_folder import summarize as summarize_function
from channelfit.model.channel import Parameter
from channelfit.model.terms import symbol
from channelfit.problem.experiment import Problem
from channelfit.reading.documents import dump_yaml
from channelfit.reading.errors import InputError
from channelfit.results.run_summary import rescore, summarize
from channelfit.search.genetic import Genetic
from channelfit.search.loop import StopRules, optimize
from channelfit.search.plan import FitPlan
from channelfit.search.seeds import seeds_of
from support import model_texts
from support.rig_files import write_heka

# through JSON, so that what is named in it is another object wherever it stands
_TABLE = json.loads(
    json.dumps(yaml.safe_load((Path(__file__).parent / "key_proofs.yaml").read_text("utf-8")))
)
BASES: dict[str, dict[str, Any]] = _TABLE["bases"]
TOLD = ("name", "description", "source")
#: Stands in the table for the value of a key that is not there.
_LEFT_OUT = "LEFT OUT"


def write_tables(folder: Path) -> None:
    """Recordings of the three steps, a command and a table of data."""
    random = np.random.default_rng(1)
    current = random.normal(0.1, 0.02, (17, 3)) + 0.01 * np.arange(17)[:, None]
    rows = [",".join(map(repr, row)) for row in current.tolist()]
    table = [f"{100 + k},{row},{100 + k}" for k, row in enumerate(rows)]
    gap = [",".join(row.split(",")[:4]) for row in table]
    gap[3] = "103,nan,1,1"
    swept = np.outer(np.arange(17), [-80 / 17, 5, -4]).T
    write_heka(folder / "two.dat", several=True, data=(1e3 * current.T, swept, 1.0))
    command = [f"{k},{v},{-v}" for k, v in enumerate([-80, -40, -20.5, 0, 20, 40, 10])]
    tables = {
        "r": ["t,x,y,z,t2", *table],
        "other": ["t,x,y,z,t2", *(row.replace("0.1", "0.2") for row in table)],
        "gap": ["t,x,y,z", *gap],
        "plain": ["-40,0,40", *rows],
        "v": ["0,1,2", *command],
        "v2": ["0,1,2", *command[:-1], "6,-20,20"],
        "swept": [
            "t (ms),I1 (nA),I2 (nA),I3 (nA),V1 (mV),V2 (mV),V3 (mV)",
            *(f"{k},{row},-80,{5 * k},{-4 * k}" for k, row in enumerate(rows)),
        ],
        "turned": [",".join(map(repr, column)) for column in current.T.tolist()],
        "parts": ["x,y,z", *rows[:5]],
        "turned_v": ["-80,-60,-40", "-20,0,20", "10,20,30"],
        "seen": ["v,w,a,b,e", "-40,1,10,12,1", "0,2,90,88,2", "40,3,120,130,3"],
        "seen2": ["v,w,a,b,e", "-40,1,11,12,1", "0,2,91,88,2", "40,3,120,130,3"],
        "commas": [f"{k},{k + 100}" for k in range(1, 18)],
        "d": ["x,x2,y,y2", "1,2,3,4.5", "2,1,5,6", "3,5,7,1"],
        "d2": ["x,x2,y,y2", "1,2,3,4.5", "2,1,9,6", "3,5,7,1"],
    }
    for name, lines in tables.items():
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")


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
    clamped = (
        any(e.clamp is not None for e in fit.problem.experiments) if fit.has_currents else False
    )
    if clamped:
        fit = replace(fit, problem=_with_clamps_as_parameters(fit.problem))
    filtered = fit.has_currents and fit.problem.noise is not None
    scorer = make_scorer(fit, "cpu" if clamped or filtered else "reference")
    objective = fit.objective(scorer)
    unit = np.random.default_rng(0).random((objective.n_free, 5))
    score = objective.score(unit)
    seen += [objective.physical(unit), score.cost, score.status]
    if fit.has_currents:
        seen += _currents(fit, scorer)
    seen += [fit.starting_point(), fit.seed, seeds_of(fit)]
    if told:
        genetic = Genetic(objective.n_free, 4, fit.seed, initial=fit.starting_point())
        seen.append(_summary(fit, optimize(genetic, objective, StopRules(generations=2)), scorer))
    return "\n".join(x.tobytes().hex() if isinstance(x, np.ndarray) else str(x) for x in seen)


def _with_clamps_as_parameters(problem: Problem) -> Problem:
    """The same problem, with a fixed parameter in place of each number of a clamp.

    Numbers stand in the text of a kernel; so all clamps with the same filter have one.
    """
    rows: dict[tuple[str, float], Parameter] = {}
    experiments = []
    for experiment in problem.experiments:
        clamp = experiment.clamp
        if clamp is not None:
            symbols = {}
            for name, expression in clamp.quantities().items():
                if not expression.free_symbols:
                    value = float(expression)
                    place = f"{name}_{len(rows)}"
                    row = Parameter(place, "", value, value, value=value, fixed=True)
                    symbols[name] = symbol(rows.setdefault((name, value), row).name)
            clamp = replace(clamp, **symbols)
        experiments.append(replace(experiment, clamp=clamp))
    parameters = (*problem.model.parameters, *rows.values())
    model = replace(problem.model, parameters=parameters)
    return replace(problem, model=model, experiments=tuple(experiments))


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
    left = {"seconds", "candidates_per_second", "finished", "file", "machine"}
    left |= {"settings", "stop", "seed", "optimizer"}
    return json.dumps({key: str(value) for key, value in summary.items() if key not in left})


def changed(document: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """A copy with one entry changed, or without it where the value is LEFT OUT."""
    return model_texts.changed(document, path, ... if value == _LEFT_OUT else value)


@dataclass(frozen=True)
class Proof:
    """Documents that differ in one key, and what comes of it.

    base: which document; path: where the key stands in it; values: two of them.
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
        """Return whether the key only describes, so that its effect is to be printed."""
        labels = {("model", "states"), ("function", "parameters/w/unit")}
        labels |= {("fit", "fit/experiments/0/observe/x")}
        return self.path.split("/")[-1] in TOLD or (self.base, self.path) in labels

    def documents(self) -> list[dict[str, Any]]:
        """Both documents."""
        document = BASES[self.base]
        for path, value in self.given:
            document = changed(document, path, value)
        return [changed(document, self.path, value) for value in self.values]

    def seen(self, folder: Path) -> list[str]:
        """The effect of both, in a folder that `prepare` has filled."""
        return [seen(folder, self.base, dump_yaml(one), self.told) for one in self.documents()]


def prepare(folder: Path) -> Path:
    """All that the documents name."""
    write_tables(folder)
    for name in ("model", "steps", "bound", "puff"):
        (folder / f"{name}.yaml").write_text(dump_yaml(BASES[name]))
    (folder / "model2.yaml").write_text(dump_yaml(changed(BASES["model"], "rates/O -> C", "2*b")))
    return folder


@cache
def seen(folder: Path, base: str, text: str, told: bool) -> str:
    """The effect of a document in place of its base, which is there again afterwards."""
    file = folder / f"{base}.yaml"
    before = file.read_text() if file.exists() else ""
    file.write_text(text)
    try:
        models = {"steps": "model.yaml", "puff": "bound.yaml"}
        return effect(folder, models.get(base, file.name), told)
    except InputError as error:
        return f"refused: {error}"
    finally:
        file.write_text(before)


def _place(text: str) -> str:
    """A path of the table without its abbreviations."""
    recording = text.replace("RECORDING", "EXPERIMENT/recording")
    observed = recording.replace("OBSERVED", "EXPERIMENT/observe")
    return observed.replace("EXPERIMENT", "fit/experiments/0")


def _proofs() -> dict[tuple[str, str], Proof]:
    """By section and key."""
    out = {}
    for row in _TABLE["proofs"]:
        base, _, at = _place(row["in"]).partition("/")
        given = tuple((_place(path), value) for path, value in row.get("given", {}).items())
        for key, values in row["values"].items():
            path = f"{at}/{key}" if at else key
            refused = row.get("refused", {}).get(key, "")
            out[row["section"], key] = Proof(base, path, tuple(values), given, refused)
    return out


PROOFS = _proofs()
