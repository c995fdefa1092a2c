"""Dynamic hERG binding: published fits of drugs by binding models, repeated.

    python benchmarks/drug_binding.py FOLDER [--problems 100] [--seed 1]

FOLDER holds the models and averaged recordings of Lei, Whittaker and Mirams (2023, Br J Pharmacol,
doi:10.1111/bph.16250), which are not ours to pass on:

    git clone https://github.com/CardiacModelling/hERG-binding-mechanisms FOLDER

28 drugs, each at its concentrations, under ten pulses of Milnes' protocol, by 17 binding models of
two hERG models: 952 problems, each fitted there by CMA-ES from ten starts. Problems are drawn by a
seed. The cost is the published one: of each concentration the root mean square of the current over
that before the drug less its record; of these the mean. For each concentration it is the root of
the weighted mean square that channelfit has, so that its exact derivatives give those of the cost:
its Gauss-Newton Hessian is that of the sum of squares which lies above it and touches it here.

The first row compares the published costs with ours at the published parameters. Each problem is
fitted by one process of one thread; its time includes that of reading and compiling its model.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from report import Row, finish

from channelfit.model.imports.myokit_model import read_myokit
from channelfit.model.model_file import build_model
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.protocol import Protocol
from channelfit.problem.recording import Recording
from channelfit.problem.statuses import NOT_FINITE, OK
from channelfit.reading.documents import parse_yaml
from channelfit.scoring.cpu import CpuScorer
from channelfit.scoring.layout.held_compression import compression
from channelfit.scoring.machine.threads import keep_to
from channelfit.scoring.neuron.importing_myokit import translated
from channelfit.scoring.scorer import Linearization, Score, Scorer
from channelfit.scoring.tangent_plan import may_oscillate
from channelfit.search.hybrid import Hybrid
from channelfit.search.objective import Objective
from channelfit.search.space import SearchSpace

FITS = "data/Milnes-data-fits-re"
BASES = {"li": "li-2017", "lei": "lei-2019"}
#: Parameters of each binding model in the order of the published files, and their published bounds.
#: K: a rate of binding or unbinding.
ORDER = {
    **dict.fromkeys(("0a", "0b", "1", "2", "2i", "3", "4", "5", "5i"), "kon koff hill"),
    "6": "kon koff k2f hill",
    "7": "kon_o koff_o kon_i koff_i hill",
    "8": "kon_o koff_o kon_i hill",
    "9": "kon_o koff_o kon_i hill",
    "10": "kon_o koff_o kon_i k2f hill",
    "11": "kon koff ku kt hill",
    "12": "kmax ku halfmax hill vhalf",
    "13": "kforward ku hill vhalf",
}
K = (1e-7, 1.0)
BOUNDS = {
    **dict.fromkeys(("kon", "koff", "kon_o", "koff_o", "kon_i", "koff_i", "kforward"), K),
    "ku": (1e-9, 1e3),
    "kt": (1e-9, 1e3),
    "k2f": (1e-9, 1.0),
    "hill": (0.2, 2.0),
    "kmax": (1e-1, 1e8),
    "halfmax": (1.0, 1e9),
    "vhalf": (0.0, 2e2),
}
LI_KU = (1e-5, 10.0)  # of ku in models 12 and 13

#: ms: rest with the drug before each pulse; a pulse; samples of it that are compared.
REST, PULSE, STEP, WINDOW = 10_000.0, 14_990.02, 10.0, (1100.0, 11_000.0)
N_PULSES = 10
HOLDING, PULSE_MV = -80.0, 0.0


class MeanOfRoots(Scorer):
    """The mean of the root mean squares of several experiments, each sample with its own weight.

    Arguments:
        problem: all experiments, with data of 0 pA and weights of 1 in the same samples.
        before: (n,) pA, the root of one over the weight of each sample of a pulse.
        ratios: (n_experiments, n_pulses, n), the data over `before`.
    """

    backend, path = "cpu", "stepping"

    def __init__(self, problem: Problem, before: np.ndarray, ratios: np.ndarray) -> None:
        model = problem.model
        held = replace(model, parameters=tuple(replace(p, fixed=True) for p in model.parameters))
        self.problem = problem
        self.currents = CpuScorer(problem, path="stepping")
        self.values = CpuScorer(replace(problem, model=held), path="stepping")
        basis = compression(len(before), may_oscillate(model)).basis
        q, self.r = np.linalg.qr(basis / before[:, None])
        # the runs are the pulses; where those of the compression stand among them
        starts = np.array(
            [places[:, places[0].argmax() + 1 - len(before)] for places in problem.scored.outputs]
        )
        order = np.argsort(np.argsort(starts.ravel())).reshape(starts.shape)
        self.order, self.target = order, ratios @ q
        self.rest = (ratios**2).sum(axis=(1, 2)) - (self.target**2).sum(axis=(1, 2))
        self.n = ratios[0].size
        self.free = [k for k, p in enumerate(model.parameters) if not p.fixed]

    def _of_runs(self, rows: np.ndarray) -> np.ndarray:
        """Rows (n_residuals, m) over `before`: (m, n_experiments, n_pulses, rank)."""
        found = rows.reshape(-1, self.order.size, rows.shape[-1])[:, self.order]
        return np.moveaxis(found, (0, 3), (3, 0)) @ self.r.T

    def _roots(self, residuals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Fit less data in the same order, and the roots (m, n_experiments)."""
        y = self._of_runs(residuals) - self.target
        square = ((y**2).sum(axis=(2, 3)) + self.rest) / self.n
        return y, np.sqrt(np.maximum(square, 1e-300))

    def score(self, parameters: Any) -> Score:
        """Return the mean of all roots."""
        _, root = self._roots(self.values.residuals(parameters)[0])
        cost = root.mean(axis=1)
        good = np.isfinite(cost)
        return Score(np.where(good, cost, np.inf), np.where(good, OK, NOT_FINITE).astype(np.int8))

    def linearize(self, parameters: Any) -> Linearization:
        """Return it with its derivatives."""
        found = Linearization.empty(*parameters.shape)
        residuals, jacobian, _ = self.currents.residuals(parameters)
        y, roots = self._roots(residuals)
        found.cost[:] = roots.mean(axis=1)
        found.status[:] = np.where(np.isfinite(found.cost), OK, NOT_FINITE)
        for c, root in enumerate(roots):
            if found.status[c] != OK:
                found.cost[c], found.gradient[:, c], found.hessian[..., c] = np.inf, 0.0, 0.0
                continue
            share = np.sqrt(1 / (len(root) * self.n * root))[:, None, None]
            dy = (self._of_runs(jacobian[:, self.free, c]) * share).reshape(len(self.free), -1)
            found.gradient[self.free, c] = dy @ (y[c] * share).ravel()
            found.hessian[np.ix_(self.free, self.free, [c])] = (dy @ dy.T)[..., None]
        return found


def model_document(folder: Path, base: str, binding: str) -> dict[str, Any]:
    """The model of a Myokit file, with its drug as a ligand and its parameters to be fitted."""
    path = folder / "models" / f"{BASES[base]}-m{binding}.mmt"
    plain = read_myokit(path)
    # the concentration is 0 there, which would leave out all that the drug binds to
    plain["variables"]["ikr.D"].update(value=2.0, rhs=["Number", 2.0])
    document = parse_yaml(translated(plain, path, path.name, "ikr.IKr").imported.text)
    parameters = document["parameters"]
    for row in parameters.values():
        row.pop("range", None)
        row.pop("scale", None)
        row["fixed"] = True
    del parameters["D"]
    document["ligands"] = ["drug"]
    document["definitions"] = {
        "D": "1e6*drug",
        **document.get("definitions", {}),
    }  # nM, as in the file
    current = document["current"]
    if binding == "0a":  # what binds at once is a gate that is there long before the first sample
        text = str(current["conductance"])
        conductance, _, unbound = text.partition("*(1 - ")
        document["gates"] = {"unbound": {"inf": f"1 - {unbound.removesuffix(')')}", "tau": 0.01}}
        current["conductance"] = conductance
    for name in names_of(base, binding):
        low, high = LI_KU if name == "ku" and binding in ("12", "13") else BOUNDS[role_of(name)]
        scale = "linear" if name == "vhalf" else "log"
        parameters[name] = {"range": [low, high], "scale": scale, "value": float(low or high)}
    return document


def names_of(base: str, binding: str) -> list[str]:
    """The parameters of a binding model in the order of its published files."""
    names = ORDER[binding].split()
    if base == "lei":
        return names
    return [name.replace("_o", "O").replace("_i", "I") for name in names]


def role_of(name: str) -> str:
    """The name under which bounds are."""
    return name.replace("O", "_o").replace("I", "_i") if name[:2] in ("ko",) else name


def milnes(drug: dict[str, str]) -> Protocol:
    """Ten pulses with a drug that comes after the steady state without it."""
    return Protocol.from_segments(
        [{"hold": REST + 1000}, {"step": PULSE_MV, "for": 10_000}, {"hold": PULSE - 11_000}],
        holding=HOLDING,
        sampling=STEP,
        between_sweeps="carry over",
        ligands={"drug": {"step": {"values": [drug] * N_PULSES}}},
    )


class Case:
    """One of the 952 problems, with its data."""

    def __init__(self, folder: Path, drug: str, base: str, binding: str) -> None:
        self.folder, self.drug, self.base, self.binding = folder, drug, base, binding
        prefix = f"{drug}-{'li-' if base == 'li' else ''}m{binding}"
        published = folder / FITS / f"{prefix}.txt"
        self.published = np.loadtxt(published)
        self.cost = float(np.loadtxt(folder / FITS / f"{prefix}-errors.txt").min())
        self.name = prefix

    def scorer(self, document: dict[str, Any]) -> tuple[Problem, MeanOfRoots]:
        """The problem, and the scorer of the published cost."""
        model = build_model(document, None)
        free = Problem(model, (Experiment(milnes("0 nM")),))
        (control,) = CpuScorer(free, path="stepping").simulate(model.values()[:, None])
        window = REST + np.arange(WINDOW[0], WINDOW[1], STEP)
        at = np.round(window / STEP).astype(int)
        before = control[0, at, 0]
        experiments, ratios = list[Experiment](), list[np.ndarray]()
        for file, level in recordings(self.folder, self.drug):
            protocol = milnes(f"{level} nM")
            ratio = np.loadtxt(file, delimiter=",", skiprows=1)[:, 1]
            ratios.append(ratio.reshape(N_PULSES, len(at)))
            weight = np.zeros((N_PULSES, protocol.n_times_max))
            weight[:, at] = 1.0
            none = Recording.from_arrays(protocol, 0 * weight, weight=weight)
            experiments.append(Experiment(protocol, none))
        problem = Problem(model, tuple(experiments))
        return problem, MeanOfRoots(problem, before, np.array(ratios))

    def parameters(self, model: Any, values: np.ndarray) -> np.ndarray:
        """All parameters of a model (n_parameters, 1), with the published ones."""
        own = dict(zip(names_of(self.base, self.binding), values.tolist(), strict=True))
        return np.array([[own.get(p.name, p.value)] for p in model.parameters])


def recordings(folder: Path, drug: str) -> list[tuple[Path, str]]:
    """The files of a drug's averaged recordings, with their concentrations, nM."""
    files = (folder / "data/Milnes-data").glob(f"drug-{drug}-conc-*-Milnes.csv")
    return sorted(
        ((f, f.name.split("-conc-")[1].split("-Milnes")[0]) for f in files),
        key=lambda p: float(p[1]),
    )


def fitted(problem: Problem, scorer: MeanOfRoots, seed: int) -> tuple[float, int]:
    """The lowest cost that a search found, and how many candidates it took."""
    objective = Objective(SearchSpace(problem.model.parameters), scorer)
    search = Hybrid(objective.n_free, seed)
    least = min(found.best for found in search.search(objective))
    return float(least), objective.evaluations


def solved(folder: Path, drug: str, base: str, binding: str, seed: int) -> dict[str, Any]:
    """Fit one problem; returns its costs and the time that it took, compilation included."""
    began, busy = time.perf_counter(), time.process_time()
    case = Case(folder, drug, base, binding)
    problem, scorer = case.scorer(model_document(folder, base, binding))
    again = float(scorer.score(case.parameters(problem.model, case.published)).cost[0])
    cost, candidates = fitted(problem, scorer, seed)
    return {
        "name": case.name,
        "published": case.cost,
        "published values, ours": again,
        "cost": cost,
        "candidates": candidates,
        "seconds": time.perf_counter() - began,
        "busy": time.process_time() - busy,
    }


def drawn(folder: Path, n: int, seed: int) -> list[tuple[str, str, str]]:
    """The problems that are fitted: n of all, drawn without replacement."""
    drugs = sorted({f.name.split("-conc-")[0][5:] for f in (folder / "data/Milnes-data").iterdir()})
    every = [(d, base, binding) for d in drugs for base in BASES for binding in ORDER]
    some = np.random.default_rng(seed).choice(len(every), min(n, len(every)), replace=False)
    return [every[k] for k in some]


def main() -> None:
    """Fit the problems and write their costs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--problems", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path)
    given, _ = parser.parse_known_args()
    began, results = time.perf_counter(), []
    cases = drawn(given.folder, given.problems, given.seed)
    with ProcessPoolExecutor(given.processes, initializer=keep_to, initargs=(1,)) as pool:
        waiting = [pool.submit(solved, given.folder, *case, given.seed) for case in cases]
        for one in as_completed(waiting):
            results.append(one.result())
            r = results[-1]
            print(
                f"{len(results):4d} {r['name']:28s} {r['cost']:.6g} published "
                f"{r['published']:.6g} ({r['cost'] / r['published'] - 1:+.2e}) {r['busy']:.1f} s",
                flush=True,
            )
    wall = time.perf_counter() - began
    ratio = np.array([r["cost"] / r["published"] for r in results])
    same = np.array([r["published values, ours"] / r["published"] for r in results])
    busy = sum(r["busy"] for r in results)
    rows = [
        Row("published costs, by our currents: largest difference", float(abs(same - 1).max()), ""),
        Row("problems", len(results), "", note=f"of 952, drawn by seed {given.seed}"),
        Row("costs above the published by more than 1 %", int((ratio > 1.01).sum()), "", 0),
        Row("costs lower than the published by more than 0.1 %", int((ratio < 0.999).sum()), ""),
        Row("costs lower by more than 1 %", int((ratio < 0.99).sum()), ""),
        Row("lowest ratio of costs", float(ratio.min()), "", note=results[ratio.argmin()]["name"]),
        Row("highest ratio of costs", float(ratio.max()), "", note=results[ratio.argmax()]["name"]),
        Row(
            "processor time a problem, median", float(np.median([r["busy"] for r in results])), "s"
        ),
        Row("processor time", busy, "s", note=f"{given.processes} processes of one thread"),
        Row("wall time", wall, "s", 600.0, wall / 600.0),
    ]
    title = "Dynamic hERG binding: published fits, repeated"
    finish("drug_binding", title, rows, folder=given.out, series={"problems": results})


if __name__ == "__main__":
    main()
