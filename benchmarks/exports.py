"""Exported channels against this program's own currents: in NEURON and in Myokit.

Every shipped model, and every shipped fit whose file has values, is exported to .mod and .mmt and
run under nineteen steps. NEURON integrates with CVODE and with its fixed steps (25 us), Myokit with
CVODES. Compared is the whole trace: the largest difference over the largest current. With fixed
steps NEURON's `cnexp` is exact for gates; its `sparse` is implicit Euler, so that the error of a
scheme is that of the steps, which is reported here and has no limit.

    python benchmarks/exports.py [--out FOLDER]
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from published_mods import steps
from report import Row, as_script, compared, finish, missing

from channelfit.front import kinds
from channelfit.front.simulation import of_cell
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.protocol import Protocol
from channelfit.problem.waves import Constant
from channelfit.reading.errors import InputError
from channelfit.results.export.kinds import exported
from channelfit.results.export.nmodl import ExportSettings
from channelfit.results.export.subject import read_subject
from channelfit.scoring.neuron.mechanisms import compile_mechanism, neuron_hoc
from channelfit.scoring.scorer import make_scorer

ROOT = Path(__file__).parent.parent
_SHIPPED = sorted([*ROOT.glob("models/*.yaml"), *ROOT.glob("models/published/*.yaml")])
#: Without receptors, which no voltage opens.
MODELS = [file for file in _SHIPPED if "\nligands:" not in file.read_text(encoding="utf-8")]
#: Fits whose own file has values, and the cell whose values are taken.
FITS = (("nav_iv_two_clamps", "0CP"), ("nav_iv_two_clamps", "80CP"), ("nav_iv_80cp", None))
#: pF, of the cell whose conductance becomes a density; 1 uF/cm2.
CAPACITANCE = 20.0
#: Largest error over the largest current that an export may have.
BAR = 1e-5
#: Absolute tolerance of an occupancy.
TOLERANCE = 1e-10


def ours(file: Path, protocol: Protocol, cell: str | None = None) -> np.ndarray:
    """This program's own current of a model or fit file, (n_sweeps, n_times) pA."""
    model = of_cell(kinds.channel_document(file)[0], cell)
    problem, values = Problem(model, (Experiment(protocol),)), model.values()
    return np.asarray(make_scorer(problem, "cpu").simulate(values[:, None])[0][:, :, 0])


# --- NEURON


def in_neuron(
    text: str,
    protocol: Protocol,
    celsius: float | None = None,
    ions: dict[str, float] | None = None,
    fixed_step_ms: float | None = None,
    cache: Path | None = None,
) -> np.ndarray:
    """The current of an exported density under steps, (n_sweeps, n_times) pA, in NEURON.

    Arguments:
        text: NMODL of a SUFFIX, as exported for a cell of `CAPACITANCE`.
        celsius: the temperature; None leaves NEURON's.
        ions: what the cell decides, such as ``{"ena": 50.0}``.
        fixed_step_ms: of NEURON's fixed steps; None for CVODE.
    """
    h = neuron_hoc()
    solver = h.CVode()
    name = compile_mechanism(text, cache)
    currents = _currents(text)
    before = solver.active(), solver.atol(), solver.rtol(), h.celsius, h.dt
    section = h.Section(name="exported")
    section.L = section.diam = 10.0
    section.cm = 1e20
    section.insert(name)
    place = section(0.5)
    out = np.full((protocol.n_sweeps, protocol.n_times_max), np.nan)
    try:
        solver.active(fixed_step_ms is None)
        solver.atol(TOLERANCE)
        solver.rtol(0)
        h.celsius = h.celsius if celsius is None else celsius
        for own, value in (ions or {}).items():
            setattr(place, own, value)
        for sweep in range(protocol.n_sweeps):
            h.finitialize(protocol.holding_mV)
            _run(h, place, protocol, sweep, out[sweep], name, currents, fixed_step_ms)
    finally:
        h.delete_section(sec=section)
        active, atol, rtol, h.celsius, h.dt = before
        solver.atol(atol)
        solver.rtol(rtol)
        solver.active(active)
    return out


def _currents(text: str) -> list[str]:
    """The names of the currents that a mechanism writes."""
    found = re.findall(r"NONSPECIFIC_CURRENT ([\w, ]+)", text) + re.findall(r"WRITE (\w+)", text)
    return [name for part in found for name in part.split(", ")]


def _run(
    h: Any,
    place: Any,
    protocol: Protocol,
    sweep: int,
    row: np.ndarray,
    name: str,
    currents: list[str],
    fixed_step_ms: float | None,
) -> None:
    period, ranges = protocol.sampling_ms, protocol.sample_ranges(sweep)
    inside = getattr(place, name)
    for segment, (first, last) in zip(protocol.sweeps[sweep], ranges, strict=True):
        assert isinstance(segment.wave, Constant)
        # NEURON's clock starts anew, so that the first steps are not lost beside a late t.
        h.t, place.v = 0.0, segment.wave.v_mV
        h.CVode().re_init()
        for k in range(first, last):
            _advance(h, k * period - segment.start_ms, fixed_step_ms)
            h.fcurrent()
            owners = [place if hasattr(place, c) else inside for c in currents]
            density = sum(getattr(o, c) for o, c in zip(owners, currents, strict=True))
            # mA/cm2 on 100 um2 for each pF
            row[k] = 10.0 * density * 100.0 * CAPACITANCE
        _advance(h, segment.end_ms - segment.start_ms, fixed_step_ms)


def _advance(h: Any, until_ms: float, fixed_step_ms: float | None) -> None:
    span = until_ms - h.t
    if span < 1e-9:
        return
    if fixed_step_ms is None:
        h.CVode().solve(until_ms)
        return
    n = max(1, round(span / fixed_step_ms))
    h.dt = span / n
    for _ in range(n):
        h.fadvance()
    h.t = until_ms


# --- Myokit


def in_myokit(text: str, protocol: Protocol) -> np.ndarray:
    """The current of an exported .mmt under steps, (n_sweeps, n_times) pA, in Myokit (CVODES).

    It runs in a process of its own: NEURON and Myokit bring different versions of one library.

    Arguments:
        text: as exported for the holding potential of the protocol.

    Raises:
        ImportError: Myokit is not installed.
        RuntimeError: it could not compile the simulation.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_in_myokit, text, protocol).result()


def _in_myokit(text: str, protocol: Protocol) -> np.ndarray:
    import myokit  # optional, and takes long to load

    model = myokit.parse_model(text[: text.index("[[protocol]]")])
    channel = next(c for c in model.components() if c.name() != "membrane")
    current = channel.get("i_total" if channel.has_variable("i_total") else "i")
    try:
        simulation = myokit.Simulation(model)
    except myokit.CompilationError as error:  # its own error does not survive the way back
        raise RuntimeError(f"Myokit cannot compile a simulation: {str(error)[:300]}") from None
    simulation.set_tolerance(TOLERANCE, TOLERANCE)
    out = np.full((protocol.n_sweeps, protocol.n_times_max), np.nan)
    for sweep, segments in enumerate(protocol.sweeps):
        command = myokit.Protocol()
        for segment in segments:
            assert isinstance(segment.wave, Constant)
            length = segment.end_ms - segment.start_ms
            command.schedule(segment.wave.v_mV, segment.start_ms, length)
        simulation.set_protocol(command)
        simulation.reset()
        # a sample at a jump belongs to the new voltage
        times = protocol.times_ms[: protocol.n_times(sweep)] + 1e-9
        log = simulation.run(times[-1] + 1e-6, log=[current.qname()], log_times=times)
        out[sweep, : len(times)] = log[current.qname()]
    return out


def apart(theirs: np.ndarray, own: np.ndarray) -> float:
    """The largest difference over the largest current; no number is as far off as can be."""
    error = np.nan_to_num(np.abs(theirs - own), nan=np.inf).max()
    return float(error / np.abs(own).max())


# --- all


def cases() -> Iterator[tuple[str, Path, str | None]]:
    """Name, file and cell of everything that is exported."""
    for file in MODELS:
        yield file.stem, file, None
    for name, cell in FITS:
        yield " ".join(filter(None, (name, cell))), ROOT / "models" / "fits" / f"{name}.yaml", cell


def measured(
    name: str, file: Path, cell: str | None, protocol: Protocol, cache: Path
) -> Iterator[Row]:
    """The rows of one channel."""
    subject = replace(read_subject(file, cell=cell), holding_mV=protocol.holding_mV)
    own = ours(file, protocol, cell)
    text = exported(subject, "nmodl", ExportSettings(capacitance_pF=CAPACITANCE))
    unit, celsius = "of largest current", subject.temperature_C
    gates = "METHOD cnexp" in text
    for how, step in (("CVODE", None), ("fixed steps of 25 us", 0.025)):
        label = f"{name}: NEURON, {how}"
        try:
            theirs = in_neuron(text, protocol, celsius, fixed_step_ms=step, cache=cache)
        except InputError as error:
            yield missing(label, unit, str(error))
            continue
        error = apart(theirs, own)
        if step is None or gates:
            yield compared(label, error, unit, BAR)
        else:
            yield Row(label, error, unit, note="a scheme by implicit Euler: the error of the steps")
    try:
        theirs = in_myokit(exported(subject, "myokit", ExportSettings()), protocol)
        yield compared(f"{name}: Myokit, CVODES", apart(theirs, own), unit, BAR)
    except (ImportError, RuntimeError) as error:
        yield missing(f"{name}: Myokit, CVODES", unit, str(error))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="folder of the results")
    options = parser.parse_args()
    protocol = replace(steps(), sampling_ms=0.05)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as cache:
        for name, file, cell in cases():
            rows += measured(name, file, cell, protocol, Path(cache))
            print(f"{name} done", flush=True)
    title = "Exported channels against this program's own currents, nineteen steps"
    finish("exports", title, rows, folder=options.out)


if __name__ == "__main__":
    as_script(main)
