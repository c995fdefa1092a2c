"""The limits beyond which a well is to be checked, and the sentences about it.

All limits are here. `require:` of a fit file replaces those that it names, and adds others.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from channelfit.batch.checks import FaultSize, ResidualFaults


@dataclass(frozen=True)
class Limit:
    """A limit of a measure.

    Attributes:
        value: of the measure, in `unit`.
        why: where it comes from.
    """

    value: float
    unit: str
    why: str


#: The limits by the name of the measure, as in a condition on the table of wells.
LIMITS: Mapping[str, Limit] = {
    "rms/noise": Limit(2.0, "", "Three quarters of the residuals' squares are then the model's."),
    "seal": Limit(100.0, "MOhm", "Least seal of the wells selected by Lei et al. 2019."),
    "run_down": Limit(0.2, "", "The change of the peaks over equal sweeps."),
    "clamp_lost": Limit(5.0, "mV", "Where the fit has no series resistance: as in `inspect`."),
    "slow_misfit": Limit(2.0, "", "Half of the slow residuals is then the model's."),
    "residual_rundown": Limit(0.05, "", "The share of the conductance that is lost."),
    "residual_series_resistance": Limit(2.0, "mV", "Lost at the largest current of the fit."),
    "residual_leak": Limit(0.05, "", "Its current over the command, against that of the channels."),
    "residual_holding": Limit(0.05, "", "Its change, against the current of the channels."),
}
#: How many of its standard errors a fault must be from 0.
SURE = 4.0


def doubts(
    checked: ResidualFaults, measured: Mapping[str, float], replaced: Collection[str]
) -> list[str]:
    """Return why a well should be checked, beyond its parameters and the size of its misfit.

    Arguments:
        checked: the faults that its residuals show.
        measured: `seal`, `run_down` and `clamp_lost` of the well; NaN where they are not known.
        replaced: limits that do not count, since the fit file has others.

    Returns: a sentence each, with the measure, its value and the limit.
    """
    found = {**_of_the_cell(measured), **dict(_of_the_residuals(checked))}
    return [text for name, text in found.items() if name not in replaced]


def _of_the_cell(measured: Mapping[str, float]) -> dict[str, str]:
    found = {}
    seal, change = measured.get("seal", math.nan), measured.get("run_down", math.nan)
    if seal < LIMITS["seal"].value:
        found["seal"] = f"the seal of {seal:.3g} MOhm is below {LIMITS['seal'].value:g} MOhm"
    if abs(change) > LIMITS["run_down"].value:
        found["run_down"] = (
            f"the peak changes by {100 * change:+.0f} % over equal sweeps, more than "
            f"{100 * LIMITS['run_down'].value:.0f} %"
        )
    lost = measured.get("clamp_lost", math.nan)
    if lost > LIMITS["clamp_lost"].value:
        found["clamp_lost"] = (
            f"the largest current loses {lost:.2g} mV over "
            f"{measured.get('clamp_resistance', math.nan):.3g} MOhm, more than "
            f"{LIMITS['clamp_lost'].value:g} mV, and the fit has no clamp"
        )
    return found


def _of_the_residuals(checked: ResidualFaults) -> Iterator[tuple[str, str]]:
    """Yield the fault that the residuals follow best, and whether they are slow."""
    if checked.slow > LIMITS["slow_misfit"].value and checked.slow_sure > SURE:
        yield (
            "slow_misfit",
            f"the slow misfit is {checked.slow:.3g} times the noise in power, more than "
            f"{LIMITS['slow_misfit'].value:g}",
        )
    faults = [*_conductance(checked), *_clamp(checked), *_drifts(checked)]
    if faults:
        _, name, text = max(faults)
        yield name, text


#: How sure a fault is, the name of its measure, and a sentence.
_Fault = tuple[float, str, str]


def _counts(found: FaultSize, size: float, name: str) -> bool:
    return found.sure > SURE and size > LIMITS[name].value


def _conductance(checked: ResidualFaults) -> Iterator[_Fault]:
    found, name = checked.rundown, "residual_rundown"
    if _counts(found, abs(found.value), name):
        yield (
            found.sure,
            name,
            f"residuals follow a rundown of {_percent(found.value)} (± {_percent(found.error)}) "
            f"over the recording, more than {_percent(LIMITS[name].value)}",
        )


def _clamp(checked: ResidualFaults) -> Iterator[_Fault]:
    found, name = checked.series_MOhm, "residual_series_resistance"
    lost = 1e-3 * found.value * checked.largest_pA
    if _counts(found, lost, name):
        yield (
            found.sure,
            name,
            f"residuals follow a series resistance of about {found.value:.2g} MOhm, which loses "
            f"{lost:.2g} mV, more than {LIMITS[name].value:g} mV",
        )


def _drifts(checked: ResidualFaults) -> Iterator[_Fault]:
    rows = (
        ("residual_leak", checked.leak_nS, checked.range_mV, "leak", "nS"),
        ("residual_holding", checked.holding_pA, 1.0, "holding current", "pA"),
    )
    for name, found, volts, quantity, unit in rows:
        share = abs(found.value) * volts / checked.peak_pA if checked.peak_pA > 0 else math.nan
        if _counts(found, share, name):
            yield (
                found.sure,
                name,
                f"residuals follow a {quantity} that changes by {found.value:+.2g} {unit} "
                f"(± {found.error:.1g}), {_percent(share)} of the channels' current, more than "
                f"{_percent(LIMITS[name].value)}",
            )


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if abs(share) < 1 else f"{100 * share:.0f} %"
