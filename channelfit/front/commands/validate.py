"""`channelfit validate`: a model's currents compared with NEURON's, a table and figures."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from channelfit.front.commands.inputs import load_channel
from channelfit.front.verbs.models import ValidateOptions
from channelfit.model.channel import ChannelModel
from channelfit.problem.experiment import Experiment, Problem
from channelfit.problem.extreme_rates import examples, extremes, failing, fastest_rates, voltages_of
from channelfit.problem.protocol import Protocol, load_protocol, with_ligands
from channelfit.reading.documents import Section
from channelfit.reading.errors import InputError
from channelfit.reading.keys import KEYS
from channelfit.results.report.plots import save, traces_figure
from channelfit.results.report.terminal import PlainConsole, SearchScreen, table
from channelfit.results.report.traces import Traces
from channelfit.results.run_folder import file_name
from channelfit.scoring.neuron.comparison import OracleComparison, compare, random_candidates
from channelfit.scoring.neuron.oracle import NeuronOracle
from channelfit.scoring.scorer import make_scorer
from channelfit.search.space import middle

STEP_TOLERANCE, VARYING_TOLERANCE = 1e-5, 1e-4
#: 1/ms, of the rates of random parameter sets; those of the file's own values are what they are.
FASTEST = 1e10
_MOST_HALVES = 12


def tolerance(protocol: Protocol) -> float:
    """Return largest error over largest current: tighter where all that is commanded is held."""
    return STEP_TOLERANCE if protocol.in_steps else VARYING_TOLERANCE


def validate(options: ValidateOptions) -> None:
    """Compare a model with NEURON, and print the errors; exit with code 1 beyond the tolerance.

    Raises InputError: a protocol that cannot be used, or no NEURON.
    """
    model, document = load_channel(options.model, options.overrides)
    n = options.candidates
    protocols = _protocols(model, document, options.model, options.protocols)
    with SearchScreen(f"{model.name} against NEURON") as screen:
        screen.begin("compiling the mechanism for NEURON")
        oracle = NeuronOracle(model)
        screen.begin("simulating with channelfit")
        voltages = voltages_of(protocols, model.ligands)
        drawn, some_drawn_in = _drawn(model, 4 * n + 4, options.seed, voltages)
        candidates, traces, left_out = _simulated(model, protocols, options.backend, n, drawn)
        worst: list[OracleComparison] = []
        for k, protocol in enumerate(protocols):
            screen.begin(f"simulating {protocol.name} with NEURON ({k + 1} of {len(protocols)})")
            worst += compare(oracle, [protocol], _Given(traces[k]), candidates)
    console = PlainConsole(highlight=False)
    _print_errors(console, protocols, worst)
    _print_sets(console, model, candidates, left_out, some_drawn_in, voltages)
    gave_up = sorted({k for case in worst for k in case.gave_up})
    if gave_up:
        console.print(f"NEURON's integrator gave up on set {_counted(gave_up)}: not compared")
    for note, sets in _extremes(model, candidates, voltages).items():
        console.print(f"note: set {_counted(sets)}: {note}", style="dim", markup=False)
    if options.out is not None:
        file = _draw(model, protocols, worst, options.out)
        console.print(f"figure in {file}", soft_wrap=True, markup=False)
    if 0 in gave_up or not all(map(_is_within, protocols, worst)):  # 0: the file's own values
        sys.exit(1)


def _is_within(protocol: Protocol, case: OracleComparison) -> bool:
    return case.relative_error <= tolerance(protocol)


def _print_errors(
    console: PlainConsole, protocols: Sequence[Protocol], worst: Sequence[OracleComparison]
) -> None:
    """Print a row for each protocol: its largest error, and where that is."""
    rows = [
        [
            protocol.name,
            f"{case.relative_error:.1e}",
            f"{tolerance(protocol):.0e}",
            "ok" if _is_within(protocol, case) else "BEYOND",
            f"{case.scale_pA:.4g} pA",
            str(case.candidate + 1),
            str(case.sweep + 1),
            f"{case.time_ms:.6g} ms",
        ]
        for protocol, case in zip(protocols, worst, strict=True)
    ]
    headers = ["protocol", "error", "tolerance", "", "current", "set", "sweep", "time"]
    console.print(table(headers, rows, left=(0, 3)))


def _print_sets(
    console: PlainConsole,
    model: ChannelModel,
    candidates: np.ndarray,
    left_out: np.ndarray,
    some_drawn_in: bool,
    voltages_mV: np.ndarray,
) -> None:
    """Print which parameter sets (n_parameters, n) were compared, and which were not."""
    count = candidates.shape[1]
    console.print(
        f"{count} parameter set{'s' if count > 1 else ''} each; error: the largest difference "
        "over the largest current of the trace",
        style="dim",
    )
    if left_out.size:
        console.print(
            f"{left_out.shape[1]} more gave no finite current and were left out: "
            f"{'; '.join(examples(model, left_out, voltages_mV, 1))}",
            style="dim",
            markup=False,
        )
    if some_drawn_in:
        console.print(
            f"sets are drawn in until no rate exceeds {FASTEST:g} /ms, about what NEURON's "
            "integrator can follow",
            style="dim",
            soft_wrap=True,
        )


def _extremes(
    model: ChannelModel, candidates: np.ndarray, voltages_mV: np.ndarray
) -> dict[str, list[int]]:
    """Return extreme rates in words, each with its parameter sets, counted from 0."""
    notes: dict[str, list[int]] = {}
    for k in range(candidates.shape[1]):
        for extreme in extremes(model, candidates[:, k], voltages_mV):
            notes.setdefault(str(extreme), []).append(k)
    return notes


def _counted(places: Sequence[int]) -> str:
    return ", ".join(str(k + 1) for k in places)


@dataclass(frozen=True, eq=False)
class _Given:
    """Currents that are simulated already, for `compare` to ask for."""

    traces: np.ndarray

    def __call__(self, candidates: np.ndarray) -> list[np.ndarray]:
        return [self.traces]


def _protocols(
    model: ChannelModel, document: Mapping[str, Any], file: Path, protocol_files: Sequence[Path]
) -> list[Protocol]:
    if protocol_files:
        return [load_protocol(path) for path in protocol_files]
    usual = Protocol.steps(  # in which most channels open and close
        name="steps of 100 ms",
        holding=-80,
        levels=range(-120, 61, 20),
        duration=100,
        sampling=0.1,
    )
    if own := protocols_of(document, file):
        return own
    model.refuse_ligands("the usual steps command the voltage alone (--protocol names others)")
    return [usual]


def protocols_of(document: Mapping[str, Any], file: Path) -> list[Protocol]:
    """Return the protocols that a file's fit section names, [] without any."""
    fit = Section(document.get("fit") or {}, file, "fit")
    fit.expect(KEYS["fit"])
    if "protocols" in fit:
        names = [str(name) for name in fit.items("protocols")]
        return [load_protocol(fit.existing(name, "protocols")) for name in names]
    rows = fit.items("experiments", [])
    sections = [Section(row, file, "fit.experiments") for row in rows]
    found = []
    for section in sections:
        section.expect(KEYS["experiment"])
        protocol = load_protocol(fit.existing(section.text("protocol"), "protocols"))
        found.append(with_ligands(section, protocol))
    return found


def _drawn(
    model: ChannelModel, n: int, seed: int, voltages_mV: np.ndarray
) -> tuple[np.ndarray, bool]:
    """Return parameter sets (n_parameters, n), and whether any was drawn in.

    The file's values are the first, if it has any; the others are anywhere in the ranges.
    """
    drawn = random_candidates(model, n, seed)
    if all(p.value is not None for p in model.parameters):
        drawn[:, 0] = model.values()
    inside = drawn_in(model, drawn, voltages_mV)
    return inside, not np.array_equal(inside, drawn)


def drawn_in(model: ChannelModel, candidates: np.ndarray, voltages_mV: np.ndarray) -> np.ndarray:
    """Return parameter sets (n_parameters, n) whose rates NEURON's integrator can follow.

    Beyond about 1e10 /ms it gives up or, on a ramp, may not move at all. A set with a rate above
    FASTEST at any of the voltages (n_voltages,) comes nearer by halves to the model's own values,
    or to the middle of the ranges; those own values themselves are left as they are.
    """

    own = np.array([middle(p) if p.value is None else p.value for p in model.parameters])
    found = np.array(candidates, dtype=float)
    for _ in range(_MOST_HALVES):
        fast = fastest_rates(model, found, voltages_mV) > FASTEST
        fast &= (found != own[:, None]).any(axis=0)
        if not fast.any():
            break
        found[:, fast] = 0.5 * (found[:, fast] + own[:, None])
    return found


def _simulated(
    model: ChannelModel, protocols: Sequence[Protocol], backend: str, n: int, drawn: np.ndarray
) -> tuple[np.ndarray, list[np.ndarray], np.ndarray]:
    """Return the first n drawn candidates (n_parameters, n) with finite currents, and the currents.

    The third array has the candidates before the last of them without finite currents.

    Raises InputError: the file's own values, or all that were drawn, give no current.
    """

    scorer = make_scorer(Problem(model, tuple(Experiment(p) for p in protocols)), backend)
    traces = scorer.simulate(drawn)
    finite = np.ones(drawn.shape[1], dtype=bool)
    for protocol, current in zip(protocols, traces, strict=True):
        finite &= np.isfinite(current[np.isfinite(protocol.command())]).all(axis=0)
    picks = np.flatnonzero(finite)[:n]
    if not picks.size:
        why = "; ".join(examples(model, drawn, voltages_of(protocols, model.ligands), 1))
        raise InputError(f"no parameter set within the ranges gives a finite current: {why}")
    if picks[0] and all(p.value is not None for p in model.parameters):
        why = (
            failing(model, drawn[:, 0], voltages_of(protocols, model.ligands)) or "it is not finite"
        )
        raise InputError(f"the values of the file give no current: {why}")
    left_out = drawn[:, : picks[-1]][:, ~finite[: picks[-1]]]
    return drawn[:, picks], [current[:, :, picks] for current in traces], left_out


def _draw(
    model: ChannelModel, protocols: Sequence[Protocol], worst: Sequence[OracleComparison], out: Path
) -> Path:
    panels = [
        Traces(
            protocol,
            case.channelfit_pA,
            case.neuron_pA,
            title=protocol.name,
            subtitle=(f"largest error {case.relative_error:.1e} of {case.scale_pA:.4g} pA",),
        )
        for protocol, case in zip(protocols, worst, strict=True)
    ]
    names = ("NEURON", "channelfit", "difference")
    file = out / f"{file_name(model.name)}-validation.png"
    try:
        out.mkdir(parents=True, exist_ok=True)
        save(traces_figure(panels, model.name, "worst parameter set", names), file)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror or error}", file) from None
    return file
