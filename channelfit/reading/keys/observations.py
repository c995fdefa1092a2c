"""The keys of an observation: numbers that were published in place of the currents."""

from __future__ import annotations

from channelfit.reading.keys.shapes import (
    Choice,
    Integer,
    Key,
    Keys,
    List,
    Number,
    Quantity,
    Rules,
    Text,
    UnitText,
    Within,
    either,
)

#: What is taken from a window of a sweep.
MEASURES = (
    *("peak", "trough", "mean", "last", "time to peak", "rise", "fall"),
    *("tau", "amplitude"),
)
_COLUMN = Text("the name of a column")
_MEASURE = Key(
    Choice(MEASURES),
    "What is taken from the window. `peak` and `trough` are the values of largest and of smallest "
    "size, between samples; `rise` and `fall` the times that the current takes before and after "
    "its peak, between `fractions` of it; `tau` and `amplitude` those of exponentials and a "
    "constant, fitted to the samples of the window by least squares.",
    "peak",
    "peak",
)
_WINDOW = Key(
    Within("window"),
    "The part of each sweep from which it is taken.",
    {"segment": 2},
    {},
    otherwise="the whole sweep",
)
_FRACTIONS = Key(
    List(Number(0, 1), 1, 2),
    "The fractions of the peak between which the time of a `rise` or `fall` is taken. A single one "
    "counts from the beginning of the window, or from the peak.",
    [0.1, 0.9],
    otherwise="needed by rise and fall",
)
_EXPONENTIALS = Key(
    Integer(1, 2), "The number of exponentials that are fitted for `tau` or `amplitude`.", 2, 1
)
_COMPONENT = Key(Integer(1, 2), "Which exponential is meant, counted from the fastest one.", 2, 1)

OBSERVATION = Keys(
    "observation",
    "One number of each sweep, such as its peak, from a table with a row for each of them.",
    Rules(one=(("error", "sd"),), needs={"sd": ("n",)}),
    name=Key(
        Text(), "What it is called in pictures.", "activation", otherwise="the name of the file"
    ),
    file=Key(
        Text("the path of a file", strict=True),
        "The table, relative to the fit file.",
        "activation.csv",
        required=True,
    ),
    x=Key(
        _COLUMN,
        "The column of what was varied from sweep to sweep, against which it is drawn.",
        "voltage (mV)",
        required=True,
    ),
    value=Key(_COLUMN, "The column of the numbers.", "g/gmax", required=True),
    error=Key(
        either(_COLUMN, Number(0)),
        "The column of their standard errors, or one number for all.",
        "sem",
        otherwise="needed, unless sd is",
    ),
    sd=Key(
        either(_COLUMN, Number(0)),
        "The column of standard deviations, or one for all: divided by the root of `n` they are "
        "the standard errors.",
        "sd",
    ),
    n=Key(
        either(_COLUMN, Integer(1)),
        "The column of the number of cells, or one number for all.",
        12,
        otherwise="not known",
    ),
    unit=Key(
        UnitText(("current", "conductance", "time", "none")),
        "The unit of the numbers and their errors.",
        "nA",
        otherwise="pA, nS or ms; none of a ratio",
    ),
    sweeps=Key(
        List(Integer(1), 1),
        "The sweep of the protocol to which each row of the table belongs, counted from 1.",
        [4, 5, 6],
        otherwise="every sweep has a row, in their order",
    ),
    measure=_MEASURE,
    window=_WINDOW,
    fractions=_FRACTIONS,
    exponentials=_EXPONENTIALS,
    component=_COMPONENT,
    reversal=Key(
        Quantity("voltage"),
        "Takes the conductance, current/(V - reversal), in place of the current.",
        "-85 mV",
        otherwise="the current is taken",
    ),
    relative_to=Key(
        Within("observation reference"),
        "Another measure of the same sweep by which it is divided, such as the peak of the first "
        "of two pulses.",
        {"window": {"segment": 2}},
        otherwise="it is not divided",
    ),
    normalize=Key(
        either(Choice(("maximum",)), Integer(1)),
        "Divides all by the largest of them in size, or by that of one sweep, counted from 1.",
        "maximum",
        otherwise="they are not normalized",
    ),
)
REFERENCE = Keys(
    "observation reference",
    "A measure by which an observation is divided.",
    measure=_MEASURE,
    window=_WINDOW,
    fractions=_FRACTIONS,
    exponentials=_EXPONENTIALS,
    component=_COMPONENT,
)
WINDOW = Keys(
    "window",
    "A part of each sweep.",
    segment=Key(
        Integer(1),
        "The segment of the protocol that it lies in, counted from 1.",
        2,
        otherwise="the whole sweep",
    ),
    from_=Key(
        Quantity("time"),
        "Its beginning, after that of the segment or sweep; below 0, before its end.",
        "-5 ms",
        0.0,
    ),
    to=Key(
        Quantity("time"),
        "Its end, after the beginning of the segment or sweep; 0 or less, before its end.",
        "20 ms",
        0.0,
    ),
)

SECTIONS = (OBSERVATION, REFERENCE, WINDOW)
