"""Receptors of glutamate and GABA under jumps of the transmitter, against the authors' mechanisms.

    python benchmarks/receptors.py FOLDER

FOLDER holds the mechanisms of Destexhe, Mainen and Sejnowski (1998), which are not ours to pass on:
ampa5.mod, nmda5.mod and gabaa5.mod of ModelDB, https://modeldb.science/18500. They are clamped in
NEURON and integrated with steps of variable size, the transmitter jumping at the times that the
shipped protocols say; channelfit has the shipped models. The bar is 1e-6 of the largest current.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from report import Row, finish

from channelfit.model.model_file import load_model
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.protocol import Protocol, load_protocol
from channelfit.scoring.neuron.mechanisms import compile_mechanism
from channelfit.scoring.scorer import make_scorer

ROOT = Path(__file__).parents[1]
RECEPTORS = {"ampa5": "AMPA5", "nmda5": "NMDA5", "gabaa5": "GABAa5"}
BAR, UNIT = 1e-6, "of largest current"
#: MOhm between the clamp and the cell: too little for the current to move the voltage.
SERIES = 1e-6


def in_neuron(folder: Path, receptor: str, protocol: Protocol) -> np.ndarray:
    """The current (n_sweeps, n_times) pA of a mechanism in NEURON."""
    from neuron import h

    mechanism = compile_mechanism((folder / f"{receptor}.mod").read_text(encoding="utf-8"))
    h.load_file("stdrun.hoc")
    h("transmitter = 0")
    cell = h.Section(name="cell")
    cell.L = cell.diam = 10
    synapse = getattr(h, mechanism)(cell(0.5))
    h.setpointer(h._ref_transmitter, "C", synapse)
    if receptor == "nmda5":
        setattr(h, f"mg_{mechanism}", 1.0)
        setattr(h, f"usetable_{mechanism}", 0)  # which rounds the block by magnesium
    clamp = h.SEClamp(cell(0.5))
    clamp.rs = SERIES
    h.cvode_active(1)
    h.cvode.atol(1e-12)
    h.cvode.rtol(1e-12)
    (ligand,) = protocol.ligands
    out = np.empty((protocol.n_sweeps, protocol.n_times_max))
    for k, (sweep, (_, course)) in enumerate(
        zip(protocol.sweeps, ligand.course(False, 0.0), strict=True)
    ):
        levels = [(s.start_ms, float(s.wave.v_mV)) for s in course]
        volts = [(s.start_ms, float(s.wave.v_mV)) for s in sweep]
        clamp.dur1, clamp.amp1 = 1e9, volts[0][1]
        h.transmitter = levels[0][1]
        h.finitialize(volts[0][1])

        def jump(name: str, value: float) -> None:
            if name == "transmitter":
                h.transmitter = value
            else:
                clamp.amp1 = value
                cell.v = value
            h.cvode.re_init()

        for t, value in levels[1:]:
            h.cvode.event(t, (jump, ("transmitter", value)))
        for t, value in volts[1:]:
            h.cvode.event(t, (jump, ("voltage", value)))
        edges = {t for t, _ in levels + volts}
        for i, t in enumerate(protocol.times_ms):
            h.cvode.solve(t if t else 1e-9)
            if any(abs(t - edge) < 1e-9 for edge in edges):  # at once after a jump
                h.cvode.solve(t + 1e-9)
            h.fcurrent()
            out[k, i] = 1e3 * synapse.i
    return out


def main() -> None:
    """Compare the three receptors."""
    folder, rows = Path(sys.argv[1]), []
    for receptor in RECEPTORS:
        model = load_model(ROOT / f"models/published/{receptor}.yaml")
        name = "gaba" if receptor == "gabaa5" else "glutamate"
        protocol = load_protocol(ROOT / f"protocols/{name}_puff.yaml")
        truth = in_neuron(folder, receptor, protocol)
        problem = Problem(model, (Experiment(protocol),))
        for backend in ("reference", "cpu"):
            (ours,) = make_scorer(problem, backend).simulate(model.values()[:, None])
            error = float(np.abs(ours[..., 0] - truth).max() / np.abs(truth).max())
            rows.append(Row(f"{receptor}, {backend}", error, UNIT, BAR, error / BAR))
    finish("receptors", "Receptors under jumps of transmitter, against NEURON", rows)


if __name__ == "__main__":
    main()
