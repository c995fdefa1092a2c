"""The keys of a cell file, which says what `channelfit cell` simulates."""

from __future__ import annotations

from channelfit.reading.keys.models import DESCRIPTION, SOURCE
from channelfit.reading.keys.shapes import (
    Integer,
    Key,
    Keys,
    List,
    Named,
    Quantity,
    Rules,
    Text,
    UnitText,
    Within,
)

#: Of a channel in a cell: its parameters get it and an underscore before their own names.
CHANNEL_NAME = r"[A-Za-z][A-Za-z0-9]{0,15}"

CELL = Keys(
    "cell",
    "A cell file describes one compartment, or a cable, under current clamp: its membrane, the "
    "channels in it and the stimulus.",
    name=Key(Text(), "What the cell is called.", "pyramidal", otherwise="the file's name"),
    description=DESCRIPTION,
    source=SOURCE,
    membrane=Key(
        Within("membrane"), "Size and leak of the membrane.", {"area": "1000 um2"}, required=True
    ),
    cable=Key(
        Within("cable"),
        "The shape of an axon with the same membrane everywhere and sealed ends. Its area follows "
        "from it; conductances are those of all of it, or per area.",
        {"length": "20 mm", "diameter": "500 um", "axial": "35 Ohm cm", "record": "10 mm"},
        otherwise="one compartment",
    ),
    channels=Key(
        Named(Within("cell channel"), "channel", CHANNEL_NAME, 1),
        "The channels by names of letters and digits, by which `--knock-out` and `--scale` know "
        "them.",
        {"na": {"model": "na_hh.yaml", "conductance": "120 mS/cm2"}},
        required=True,
    ),
    stimulus=Key(
        Within("stimulus"),
        "The injected current, depolarizing where it is positive.",
        {"pulses": [{"amplitude": "100 pA", "start": "10 ms", "for": "2 ms"}]},
        otherwise="no current",
    ),
    initial=Key(
        Quantity("voltage"),
        "The voltage at which the cell rests before the simulation begins.",
        "-65 mV",
        -65.0,
    ),
    settle=Key(
        Quantity("time"),
        "How long the cell is left alone, from that voltage on, before time 0.",
        "200 ms",
        0.0,
    ),
    duration=Key(Quantity("time"), "How long a sweep is.", "100 ms", required=True),
    step=Key(
        Quantity("time"),
        "The step of the integration.",
        "10 us",
        otherwise="10 us, and 5 us of a cable",
    ),
    sampling=Key(
        Quantity("time"),
        "The interval of the samples, a multiple of the step.",
        "50 us",
        otherwise="the step",
    ),
    sets=Key(
        Integer(1),
        "How many parameter sets are drawn from the samples of channels.",
        500,
        otherwise="as many as the longest table of samples has; 1 without samples",
    ),
    seed=Key(Integer(), "Of the draws: the same seed gives the same sets.", 3, 0),
)
CABLE = Keys(
    "cable",
    "A cylinder in segments of equal length. A place is a distance from the beginning, and stands "
    "for the segment that it is in.",
    length=Key(Quantity("length"), "The length of the cable.", "20 mm", required=True),
    diameter=Key(Quantity("length"), "The diameter.", "500 um", required=True),
    axial=Key(
        Quantity("resistivity"), "The resistivity of the inside.", "35.4 Ohm cm", required=True
    ),
    segments=Key(Integer(2, 10_000), "How many segments there are.", 101, 101),
    at=Key(Quantity("length"), "Where the stimulus is injected.", "10 mm", 0.0),
    record=Key(
        List(Quantity("length"), 1),
        "Where the voltage is recorded. The velocity is measured from each place to the next.",
        ["5 mm", "15 mm"],
        required=True,
    ),
)
MEMBRANE = Keys(
    "membrane",
    "The membrane of a cell without its channels.",
    area=Key(
        Quantity("area"),
        "The area, which a cable has from its shape. Without a capacitance there is 1 uF/cm2.",
        "1000 um2",
        null=True,
    ),
    capacitance=Key(Quantity("capacitance"), "The capacitance.", "20 pF", null=True),
    temperature=Key(
        Quantity("temperature"),
        "The temperature of all channels, in place of that of their models.",
        "34 degC",
        otherwise="that of each model",
    ),
    leak=Key(
        Within("leak"),
        "A conductance that is always open.",
        {"conductance": "0.3 mS/cm2", "reversal": "-54.4 mV"},
        otherwise="no leak",
    ),
)
CHANNEL = Keys(
    "cell channel",
    "One kind of channel in a cell.",
    model=Key(
        Text("the path of a file"),
        "A model file or a fit file, such as the fit.yaml of a run; relative to this file. A leak "
        "in it belongs to its recording and is left out.",
        "na_hh.yaml",
        required=True,
    ),
    values=Key(
        Named(Quantity("none"), "parameter"),
        "Values of parameters, in base units (ms, mV, nS, pA, mM), in place of the model's. "
        "Concentrations on which rates depend have to be here.",
        {"vam": -38},
    ),
    conductance=Key(
        Quantity("conductance", sized=True),
        "The conductance when all channels are open, in place of the model's.",
        "120 mS/cm2",
        otherwise="the model's",
    ),
    reversal=Key(
        Quantity("voltage"),
        "The reversal potential, in place of the model's.",
        "50 mV",
        otherwise="the model's",
    ),
    scale=Key(Quantity("none"), "A factor of the current.", 0.5, 1.0),
    samples=Key(
        Text("the path of a file"),
        "A table with a column for each of some of the model's parameters and a row for each "
        "parameter set, in base units, such as the posterior.csv of a run.",
        "posterior.csv",
        otherwise="one set, the model's values",
    ),
)
STIMULUS = Keys(
    "stimulus",
    "The current that is injected; pulses and a recorded current add up.",
    pulses=Key(
        List(Within("pulse")),
        "Pulses, which add up where they overlap.",
        [{"amplitude": "100 pA", "start": "10 ms", "for": "2 ms"}],
        [],
    ),
    recorded=Key(
        Within("recorded current"),
        "A current from a table, a straight line between its rows and 0 outside of them.",
        {"file": "synaptic.csv", "time": "t", "current": "i"},
        otherwise="none",
    ),
)
PULSE = Keys(
    "pulse",
    "A pulse of current, or a train of them.",
    Rules(needs={"every": ("count",), "count": ("every",)}),
    amplitude=Key(
        List(Quantity("current", sized=True), 1),
        "The current. A list gives a sweep for each entry; all lists are equally long.",
        ["50 pA", "100 pA"],
        required=True,
    ),
    start=Key(Quantity("time"), "When the first pulse begins.", "10 ms", 0.0),
    for_=Key(Quantity("time"), "How long a pulse is.", "2 ms", required=True),
    every=Key(Quantity("time"), "The time from one pulse of a train to the next.", "20 ms"),
    count=Key(Integer(1), "The number of pulses of a train.", 10),
)
RECORDED = Keys(
    "recorded current",
    "A current that was recorded or computed elsewhere.",
    file=Key(Text("the path of a file"), "A table, relative to this file.", "i.csv", required=True),
    time=Key(Text("the name of a column"), "The column of times, ms.", "time_ms", required=True),
    current=Key(Text("the name of a column"), "The column of currents.", "current", required=True),
    unit=Key(UnitText(("current",), sized=True), "The unit of the currents.", "nA", "pA"),
)

SECTIONS = (CELL, CABLE, MEMBRANE, CHANNEL, STIMULUS, PULSE, RECORDED)
