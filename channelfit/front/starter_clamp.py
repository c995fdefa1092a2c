"""The `clamp:` section of a starter fit, from what a recording's file says of the amplifier."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from channelfit.problem.inspection import LOST_MV, Inspection
from channelfit.reading.errors import InputError

#: What a pipette's resistance, MOhm, and a cell's capacitance, pF, may be; outside of that the file
#: has another unit than its format wants.
_RESISTANCES, _CAPACITANCES = (0.1, 200.0), (0.5, 5000.0)
#: Poles of an amplifier's filter where a file says its cutoff alone.
_POLES = 4
#: The largest prediction that a clamp section takes.
_MOST_PREDICTION = 0.99
#: A compensation above 0 that is smaller was stored as a fraction instead of percent.
_LEAST_COMPENSATION = 0.0101


@dataclass(frozen=True)
class StarterClamp:
    """The clamp that a file describes, and whether the starter fit takes it into account.

    Attributes:
        resistance_MOhm: of pipette and access; None where the file says what cannot be.
        capacitance_pF: of the membrane; None where the file does not say it.
        fraction, prediction: of the compensation, 0 to 1.
        lost_mV: how far the membrane is from the command when the current is largest.
        active: whether the fit has the section; else it is written as comments.
        reason: why, in words that may follow "because".
    """

    resistance_MOhm: float | None
    capacitance_pF: float | None
    fraction: float
    prediction: float
    lost_mV: float
    active: bool
    reason: str

    def lines(self, found: Inspection) -> Iterator[str]:
        """Yield the section as lines of YAML, from `clamp:` on, without indentation.

        There are no lines where the file says what cannot be.
        """
        if self.resistance_MOhm is None:
            return
        yield "clamp:"
        spread = _spread(found, "series_resistance_MOhm", "MOhm")
        yield f"  series_resistance: {self.resistance_MOhm:.6g} MOhm{spread}"
        if self.capacitance_pF is not None:
            spread = _spread(found, "membrane_capacitance_pF", "pF")
            yield f"  membrane_capacitance: {self.capacitance_pF:.6g} pF{spread}"
        parts = {"fraction": self.fraction, "prediction": self.prediction}
        if self.capacitance_pF is None:  # there is nothing to predict then
            del parts["prediction"]
        given = ", ".join(f"{key}: {value:.6g}" for key, value in parts.items() if value > 0)
        if given:
            yield f"  compensation: {{{given}}}"
        if self.capacitance_pF is not None:
            yield "  cancellation: 1    # the amplifier subtracts what charges this capacitance"
        cutoff = found.of_the_clamp("lowpass_kHz")
        if cutoff is not None:
            yield f"  lowpass: {{poles: {_POLES}, cutoff: {cutoff:.6g} kHz}}    # as the file says"
        else:
            yield f"  # lowpass: {{poles: {_POLES}, cutoff: 10 kHz}}    # if it is known"


def starter_clamp(found: Inspection, use_clamp: bool | None) -> StarterClamp | None:
    """Return the clamp of a recording, as far as its file says it.

    A clamp makes scoring hundreds of times slower. So it is active where resistance and capacitance
    are known and more than `LOST_MV` are lost when the current is largest, unless the user decides.

    Arguments:
        found: the recording, inspected.
        use_clamp: True to take the clamp into account, False to leave it out; None to decide by the
            voltage that is lost.

    Returns: None where the file does not say the series resistance.

    Raises:
        InputError: `use_clamp` is true, and the file does not say the series resistance, or an
            impossible one.
    """
    resistance = found.of_the_clamp("series_resistance_MOhm")
    capacitance = found.of_the_clamp("membrane_capacitance_pF")
    fraction = found.of_the_clamp("compensation") or 0.0
    prediction = found.of_the_clamp("prediction") or 0.0
    if resistance is None:
        if use_clamp:
            raise InputError(
                "the file does not say the series resistance, so that no clamp can be written; "
                "leave --clamp out, and add a section `clamp:` to the fit (docs/clamp.md)",
                found.file,
            )
        return None
    if wrong := _wrong(resistance, capacitance, fraction, prediction):
        if use_clamp:
            raise InputError(
                f"{wrong} Leave --clamp out, and add a section `clamp:` to the fit (docs/clamp.md)",
                found.file,
            )
        return StarterClamp(None, None, 0.0, 0.0, 0.0, False, wrong)
    lost, bound = f"{found.lost_mV:.2g} mV are lost", f"{LOST_MV:g} mV"
    at_peak = f"up to {lost} when the current is largest"
    if use_clamp is not None:
        reason, active = f"you asked for it; {at_peak}", use_clamp
    elif found.lost_mV <= LOST_MV:
        reason, active = f"{at_peak}, no more than {bound}", False
    elif "compensation" not in found.contents.clamp:
        text = "the file does not say how much of the series resistance is compensated, although"
        reason, active = f"{text} without any {at_peak}", False
    elif capacitance is None:
        reason, active = f"the file does not say the capacitance, although {at_peak}", False
    else:
        reason, active = f"{at_peak}, more than {bound}", True
    return StarterClamp(
        resistance,
        capacitance,
        fraction,
        min(prediction, _MOST_PREDICTION),
        found.lost_mV,
        active,
        f"{reason}.",
    )


def _wrong(resistance: float, capacitance: float | None, fraction: float, prediction: float) -> str:
    """Return why the numbers of a file cannot be what its format says; empty where they can be."""
    for what, value, unit, (least, most) in (
        ("series resistance", resistance, "MOhm", _RESISTANCES),
        ("membrane capacitance", capacitance, "pF", _CAPACITANCES),
    ):
        if value is not None and not least <= value <= most:
            return f"the file says a {what} of {value:.3g} {unit}; was it stored in another unit?"
    for what, value in (("compensation", fraction), ("prediction", prediction)):
        if 0 < value < _LEAST_COMPENSATION:
            return f"the file says a {what} of {100 * value:.3g} %; was {1e4 * value:.3g} % meant?"
        if not 0 <= value <= 1:
            return f"the file says a {what} of {100 * value:.3g} %; was it stored in percent?"
    return ""


def _spread(found: Inspection, name: str, unit: str) -> str:
    """Return a comment on a quantity that changes over the sweeps, whose median is taken."""
    values = np.atleast_1d(np.asarray(found.contents.clamp[name], dtype=float))
    low, high = float(values.min()), float(values.max())
    if low == high:
        return ""
    return f"    # {low:.4g} to {high:.4g} {unit} over the sweeps; this is their median"
