"""Cells with fitted channels against NEURON: how exact their voltages are, and how fast.

Accuracy: one compartment with the channels of the squid, and one with schemes of sodium and
potassium channels, as `channelfit cell` steps them, against NEURON by CVODE with one mechanism a
channel, each exported by itself. The largest difference of the whole voltage over its amplitude.

Speed: parameter sets of the squid's cell (sodium, potassium and leak, a spread of 5 %), 500 ms in
steps of 10 us, by processor time of one core; NEURON takes the same steps (`secondorder` 2), set
after set.

A cable: the shipped axon of the squid in 101 segments, in the same way, with its velocity.

    python benchmarks/cell.py [--sets 10000] [--cables 256] [--neuron-sets 3] [--out FOLDER]
    python benchmarks/cell.py --backend cuda     on a GPU, beside the CPU; writes cell_cuda.json

What a GPU has to do for the speed, counted before it ran. A step of one set is 270 instructions
in float64 and 21 divisions of ten each (in the PTX that NVRTC makes of the generated text), 480
together: 2.4e11 for 10,000 sets and 50,000 steps. The 132 multiprocessors of an H200 issue
1.5e13 a second, so 16 ms where all of them are always busy. They are not: 10,000 threads are 313
warps, and there are 528 schedulers, so a warp waits for its own results. At four to eight cycles
an instruction a step takes 2,000 to 4,000 cycles, and 50,000 steps 55 to 110 ms, for 300 sets as
for 16,000. Bytes: 80 MB of voltages, one every 0.5 ms, cross the bus once, in 10 to 30 ms;
parameters and stimulus are 2 MB. State is in registers. Of the axon a step moves 111 numbers of a
segment to or from memory: 0.9 GB for 10,000 sets and 101 segments, 0.2 ms of a step at 4.8 TB/s.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import sympy
from report import Row, as_script, compared, finish, missing

from channelfit.cells.cell_file import Cell, load_cell
from channelfit.cells.membrane import CAPACITANCE, CellChannel, joined
from channelfit.cells.results import measured_run
from channelfit.cells.simulation import CellSimulator
from channelfit.cells.spikes import velocities
from channelfit.cells.stimulus import Pulse, Stimulus
from channelfit.model.model_file import load_model
from channelfit.scoring.machine import gpu
from channelfit.scoring.machine.threads import keep_to, usable_cores
from channelfit.scoring.neuron.mechanisms import NeuronUnavailable, compile_mechanism, neuron_hoc
from channelfit.scoring.neuron.nmodl import Kind, nmodl_names, nmodl_text

ROOT = Path(__file__).parent.parent
SQUID, AXON = (ROOT / "models" / "cells" / f"{name}.yaml" for name in ("squid", "squid_axon"))
#: Name, file, conductance in nS and reversal in mV of the channels of the second cell.
SCHEMES = (
    ("na", "na_nav15.yaml", 600.0, 50.0),
    ("k", "k_hh_gate.yaml", 360.0, -77.0),
    ("na2", "na_markov.yaml", 600.0, 50.0),
)
#: Error over the amplitude that a voltage may have.
BAR = 1e-4
#: Sets that are simulated at once: what their traces take of the memory stays small.
BATCH = 1024
#: Seconds that 10,000 sets may take on two cores, and on a GPU.
AIM, AIM_GPU = 60.0, 1.0
#: Difference of a GPU from the CPU, over the amplitude: rounding, which spikes enlarge.
SAME = 1e-8


def schemes() -> Cell:
    """A cell whose sodium channels are schemes, of which one fires."""
    channels = [
        CellChannel(name, load_model(ROOT / "models" / file), 1.0, g, e)
        for name, file, g, e in SCHEMES
    ]
    membrane = joined("schemes", channels, 10.0, (3.0, -54.387))
    stimulus = Stimulus((Pulse((200.0,), 2.0, 10.0),))
    return Cell("schemes", membrane, stimulus, -75.0, 0.0, 20.0, 0.01, 0.01)


def squid(duration_ms: float) -> Cell:
    """The shipped cell, stimulated until it ends."""
    pulse = Pulse((100.0,), 5.0, duration_ms)
    return replace(load_cell(SQUID), duration_ms=duration_ms, stimulus=Stimulus((pulse,)))


class NeuronCell:
    """The same compartment in NEURON, of one mechanism for each channel.

    Arguments:
        cell: with one pulse, whose channels have a conductance and a reversal of their own.
        step_ms: of fixed steps of order two; None for CVODE, to 1e-10.
    """

    def __init__(self, cell: Cell, step_ms: float | None = None) -> None:
        h = self.h = neuron_hoc()
        h.load_file("stdrun.hoc")
        self.cell, self.step_ms = cell, step_ms
        values = dict(zip(cell.membrane.model.parameter_names, cell.parameters[:, 0], strict=True))
        self.section = section = h.Section(name="cell")
        side = math.sqrt(values[CAPACITANCE] / 0.01 / math.pi)  # um, at 1 uF/cm2
        section.L, section.diam, section.cm, section.nseg = side, side, 1.0, 1
        place, cable = 0.5, cell.cable
        if cable is not None:
            section.L, section.diam = cable.length_um, cable.diameter_um
            section.nseg, section.Ra = cable.segments, cable.axial_ohm_cm
            section.cm = 100 * values[CAPACITANCE] / cable.area_um2
            place = (cable.segment(cable.at_um) + 0.5) / cable.segments
        kind: Kind = "point_process" if cable is None else "density"
        section.insert("pas")
        self.section.g_pas = section.cm * values["leak_conductance"] * 1e-3 / values[CAPACITANCE]
        self.section.e_pas = values["leak_reversal"]
        middle = section(place)
        self.channels = []
        for channel in cell.membrane.channel_models:
            assert channel.conductance is not None
            assert channel.reversal is not None
            model = channel.model
            term = replace(
                model.terms[0],
                conductance=sympy.Float(channel.conductance),
                reversal=sympy.Float(channel.reversal),
            )
            model = replace(model, terms=(term,))
            used = tuple(p for p in model.parameters if p.name in model.used_names())
            model = replace(model, parameters=used)
            name = compile_mechanism(nmodl_text(model, kind, "cell"))
            names = nmodl_names(model, kind).parameters
            if cable is None:
                point = getattr(h, name)(middle)
                for parameter in used:
                    setattr(point, names[parameter.name], parameter.value)
                self.channels.append(point)
            else:
                section.insert(name)
                setattr(section, f"gbar_{name}", 0.1 * channel.conductance / cable.area_um2)
                for parameter in used:
                    setattr(section, f"{names[parameter.name]}_{name}", parameter.value)
        (pulse,) = cell.stimulus.pulses
        self.push = h.IClamp(middle)
        self.push.delay, self.push.dur = pulse.start_ms, pulse.length_ms
        self.push.amp = 1e-3 * pulse.amplitudes[0]

    @contextmanager
    def _solver(self) -> Iterator[Any]:
        """NEURON's settings for this cell; the ones before come back."""
        h, solver = self.h, self.h.CVode()
        before = solver.active(), solver.atol(), solver.rtol(), h.secondorder, h.dt
        solver.active(self.step_ms is None)
        solver.atol(1e-10)
        solver.rtol(0)
        if self.step_ms is not None:
            h.secondorder, h.dt = 2, self.step_ms
            h.steps_per_ms = 1 / self.step_ms
        try:
            yield solver
        finally:
            solver.active(before[0])
            solver.atol(before[1])
            solver.rtol(before[2])
            h.secondorder, h.dt = before[3:]

    def voltages(self, times_ms: np.ndarray) -> np.ndarray:
        """The voltage at some times in each recorded segment, (n_places, n_times) mV."""
        h, cable = self.h, self.cell.cable
        n, segments = (1, [0]) if cable is None else (cable.segments, cable.recorded)
        recorded, moments = [h.Vector() for _ in segments], h.Vector(times_ms)
        for vector, segment in zip(recorded, segments, strict=True):
            vector.record(self.section((segment + 0.5) / n)._ref_v, moments)
        with self._solver():
            h.finitialize(self.cell.initial_mV)
            h.continuerun(float(times_ms[-1]) + 0.1)  # past the last sample, or it is lost
        return np.array([np.array(vector)[: len(times_ms)] for vector in recorded])

    def voltage(self, times_ms: np.ndarray) -> np.ndarray:
        """The voltage of one compartment at some times, (n_times,) mV."""
        return self.voltages(times_ms)[0]

    def seconds(self) -> float:
        """Processor time of one run, without a recording."""
        h = self.h
        with self._solver():
            h.finitialize(self.cell.initial_mV)
            begin = time.process_time()
            h.continuerun(self.cell.duration_ms)
            return time.process_time() - begin


def accuracy(cell: Cell) -> Row:
    """The largest difference from NEURON, over the amplitude."""
    trace, _ = CellSimulator(cell.membrane).simulate(cell, cell.parameters)
    ours = trace[0, 0, :, 0]
    theirs = NeuronCell(cell).voltage(cell.times_ms)
    error = float(np.abs(ours - theirs).max() / np.ptp(theirs))
    note = f"amplitude {np.ptp(theirs):.1f} mV, {cell.duration_ms:g} ms, CVODE"
    return compared(f"{cell.name}: largest error", error, "of the amplitude", BAR, note)


def axon() -> Cell:
    """The shipped axon, with the stimulated segment and the far end recorded as well."""
    cell = load_cell(AXON)
    assert cell.cable is not None
    places = (cell.cable.at_um, *cell.cable.record_um, cell.cable.length_um)
    return replace(cell, cable=replace(cell.cable, record_um=places))


def cable_accuracy(cell: Cell) -> tuple[float, np.ndarray]:
    """The largest difference from NEURON at any place, over the amplitude there.

    And the velocity between places over that of NEURON, less 1, of the places but the first.
    """
    assert cell.cable is not None
    trace, _ = CellSimulator(cell.membrane).simulate(cell, cell.parameters)
    theirs = NeuronCell(cell).voltages(cell.times_ms)
    error = np.abs(trace[0, ..., 0] - theirs).max(axis=1) / np.ptp(theirs, axis=1)
    ours, exact = (
        velocities(v, cell.sampling_ms, cell.cable.distances_um)[1:, 0]
        for v in (trace[0], theirs[..., None])
    )
    return float(error.max()), ours / exact - 1


def spread(cell: Cell, n_sets: int) -> np.ndarray:
    """Parameter sets with a spread of 5 %; that of the capacitance belongs to a cable's shape."""
    sets = np.repeat(cell.parameters, n_sets, axis=1)
    names = cell.membrane.model.parameter_names
    free = [k for k, name in enumerate(names) if cell.cable is None or name != CAPACITANCE]
    sets[free] *= 1 + 0.05 * np.random.default_rng(0).standard_normal((len(free), n_sets))
    return sets


def cable(n_sets: int, n_neuron: int) -> Iterator[Row]:
    """How exact an axon of many segments is, and how many a core simulates in a second."""
    cell = axon()
    assert cell.cable is not None
    error, velocity = cable_accuracy(cell)
    about = f"{cell.cable.segments} segments, {cell.duration_ms:g} ms, steps of {cell.step_ms:g} ms"
    yield compared("axon: largest error", error, "of the amplitude", BAR, f"{about}; CVODE")
    # between the places of the file; under the stimulus and at the end there is no wave
    slower = float(np.abs(velocity[1:-1]).max())
    yield compared("axon: error of the velocity", slower, "of it", 1e-3, "CVODE")
    coarse, _ = cable_accuracy(replace(cell, step_ms=2 * cell.step_ms))
    yield Row("axon: largest error in steps twice as long", coarse, "of the amplitude")
    sets = spread(cell, n_sets)
    simulator = CellSimulator(cell.membrane)
    seconds = {}
    for n in (1, n_sets):
        simulator.simulate(cell, sets[:, :1])  # compiles
        begin = time.process_time()
        simulator.simulate(cell, sets[:, :n])
        seconds[n] = (time.process_time() - begin) / n
    neuron = NeuronCell(cell, cell.step_ms)
    theirs = min(neuron.seconds() for _ in range(n_neuron))
    ours = seconds[n_sets]
    yield compared("axon: milliseconds of a core for a set", 1e3 * ours, "ms", 1e3 * theirs, about)
    yield compared("axon: the same of one set alone", 1e3 * seconds[1], "ms", 1e3 * theirs)
    exact = NeuronCell(cell).voltages(cell.times_ms)
    apart = np.abs(neuron.voltages(cell.times_ms) - exact).max(axis=1) / np.ptp(exact, axis=1)
    yield Row("axon: error of NEURON's own steps", float(apart.max()), "of the amplitude")


def speed(n_sets: int, n_neuron: int) -> Iterator[Row]:
    """Seconds of a core for the sets, ours and NEURON's."""
    cell = replace(squid(500.0), sampling_ms=0.5)
    sets = spread(cell, n_sets)
    simulator = CellSimulator(cell.membrane)
    simulator.simulate(replace(cell, duration_ms=1.0), sets[:, :16])  # compiles
    failed, fired = 0, 0
    begin, clock = time.process_time(), time.perf_counter()
    for first in range(0, n_sets, BATCH):
        trace, status = simulator.simulate(cell, sets[:, first : first + BATCH])
        failed += int((status != 0).sum())
        fired += int((trace[0, 0].max(axis=0) > 0).sum())
    spent, waited = time.process_time() - begin, time.perf_counter() - clock
    begin = time.process_time()
    measured_run(simulator, cell, sets, currents=False)
    measured = (time.process_time() - begin) / n_sets * 1e4
    neuron = NeuronCell(cell, 0.01)
    theirs = min(neuron.seconds() for _ in range(n_neuron))
    note = f"{n_sets:,} sets of 50,000 steps; {fired:,} fired, {failed:,} failed"
    yield compared(
        "seconds of a core for 10,000 sets", spent / n_sets * 1e4, "s", theirs * 1e4, note
    )
    yield Row("the same with measures of all steps", measured, "s")
    yield compared("the same on two cores", spent / n_sets * 5e3, "s", AIM, "half of that")
    yield Row("waited for them, on a machine that may be busy", waited, "s")
    exact = NeuronCell(squid(500.0)).voltage(cell.times_ms)
    ours = simulator.simulate(cell, cell.parameters)[0][0, 0, :, 0]
    for name, v in (("ours", ours), ("NEURON's", neuron.voltage(cell.times_ms))):
        error = float(np.abs(v - exact).max() / np.ptp(exact))
        yield Row(f"error of {name} steps after 500 ms", error, "of the amplitude")


def on_gpu(n_sets: int, n_neuron: int) -> Iterator[Row]:
    """Seconds of a GPU for the sets of a cell, and of an axon, beside the CPU and NEURON.

    All are seconds of the clock, from parameters to voltages on the host; 10,000 of the CPU and
    of NEURON are reckoned from fewer.
    """
    for name, cell in (("squid", replace(squid(500.0), sampling_ms=0.5)), ("axon", axon())):
        sets, few = spread(cell, n_sets), min(n_sets, 256)
        run, ours = (CellSimulator(cell.membrane, backend) for backend in ("cuda", "cpu"))
        (trace, status), _ = timed(run, cell, sets)  # compiles
        seconds = [timed(run, cell, sets)[1] for _ in range(3)]
        (found, _), _ = timed(ours, cell, sets[:, :few])
        _, spent = timed(ours, cell, sets[:, :few])
        amplitude = np.ptp(found[0], axis=1)
        apart = np.nanmax(np.abs(trace[0, ..., :few] - found[0]).max(axis=1) / amplitude)
        fired, failed = int((trace[0, 0].max(axis=0) > 0).sum()), int((status != 0).sum())
        note = f"{n_sets:,} sets, {cell.duration_ms:g} ms; {fired:,} fired, {failed:,} failed"
        took = min(seconds) / n_sets * 1e4
        yield compared(
            f"{name}: largest difference from the CPU", float(apart), "of the amplitude", SAME
        )
        if cell.cable is None:
            yield compared("squid: seconds for 10,000 sets", took, "s", AIM_GPU, note)
        cores = f"{usable_cores()} cores, from {few} sets"
        yield compared(f"{name}: seconds beside the CPU", took, "s", spent / few * 1e4, cores)
        try:
            neuron = NeuronCell(cell, cell.step_ms)
            theirs = min(neuron.seconds() for _ in range(n_neuron)) * 1e4
            yield compared(f"{name}: seconds beside NEURON", took, "s", theirs, "one core; " + note)
        except NeuronUnavailable as error:
            yield missing(f"{name}: seconds beside NEURON", "s", str(error))
        begin = time.perf_counter()
        measured_run(run, cell, sets, currents=False)
        measured = (time.perf_counter() - begin) / n_sets * 1e4
        yield Row(f"{name}: seconds with measures of all steps", measured, "s")
        last = replace(cell, sampling_ms=cell.duration_ms)
        quiet = min(timed(run, last, sets)[1] for _ in range(3)) / n_sets * 1e4
        yield Row(f"{name}: seconds with two samples", quiet, "s", note="hardly any copy")
        alone = min(timed(run, cell, sets[:, :1])[1] for _ in range(3))
        yield Row(f"{name}: seconds of one set alone", alone, "s")


def timed(simulator: CellSimulator, cell: Cell, sets: np.ndarray) -> tuple[Any, float]:
    """The result of a simulation and its seconds."""
    begin = time.perf_counter()
    found = simulator.simulate(cell, sets)
    return found, time.perf_counter() - begin


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", type=int, default=10_000)
    parser.add_argument("--cables", type=int, default=256, help="sets of the axon")
    parser.add_argument("--neuron-sets", type=int, default=3)
    parser.add_argument("--backend", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--cores", type=int, default=0, help="cores to use; 0 for all")
    parser.add_argument("--out", type=Path, help="folder of the results")
    options = parser.parse_args(arguments)
    keep_to(options.cores)
    if options.backend == "cuda":
        rows = list(on_gpu(options.sets, options.neuron_sets))
        title = "Cells with fitted channels on a GPU"
        finish("cell_cuda", title, rows, gpu.device().name, options.out)
        return
    rows = [accuracy(squid(50.0)), accuracy(schemes())]
    rows += speed(options.sets, options.neuron_sets)
    rows += cable(options.cables, options.neuron_sets)
    finish("cell", "Cells with fitted channels, and NEURON", rows, folder=options.out)


if __name__ == "__main__":
    as_script(main)
