"""The keys of a protocol file."""

from __future__ import annotations

from channelfit.reading.keys.models import DESCRIPTION, SOURCE
from channelfit.reading.keys.shapes import (
    Choice,
    Flag,
    Integer,
    Key,
    Keys,
    List,
    Named,
    Quantity,
    Rules,
    Shape,
    Text,
    UnitText,
    Within,
    either,
)

#: Orientations of a matrix: a row for each sweep, or for each sample.
LAYOUTS = ("sweeps x samples", "samples x sweeps")
#: Options for reading a table or an amplifier's file; recordings have these keys, too.
HEADER = Key(
    Flag(),
    "Whether the first row of a table names its columns, which a row of numbers leaves open.",
    True,
    null=True,
    otherwise="a first row that is not all numbers names the columns",
)
DECIMAL = Key(
    Choice(("comma", "point")),
    "Which sign stands in the numbers of a table, where it could be either.",
    "comma",
    null=True,
    otherwise="found from the table",
)
LAYOUT = Key(
    Choice(LAYOUTS),
    "How a matrix lies, where it could be either.",
    "sweeps x samples",
    null=True,
    otherwise="found from the lengths of the sweeps",
)
SERIES = Key(
    Text("a series of a file"),
    "The series of a HEKA bundle: GROUP/SERIES, each by its number, from 1, or its label.",
    "1/3",
    null=True,
    otherwise="needed where the file has several",
)
COLUMNS = either(Choice(("all",)), List(Text("the name of a column"), 1))
SIGNAL = either(Text("the name of a signal"), Integer(1))
SWEEPS_OF_FILE = Key(
    List(Integer(1), 1),
    "Which sweeps of the file are meant, counted from 1, where it holds signals.",
    [4, 5, 6],
    otherwise="all",
)


def _family(dimension: str) -> Shape:
    """Return one quantity, or a family of them with a sweep for each."""
    return either(Quantity(dimension), Within(f"family of {dimension}s"))


def _family_keys(dimension: str, first: str, last: str, by: str) -> Keys:
    def end(meaning: str, example: str) -> Key:
        return Key(Quantity(dimension), meaning, example, otherwise="needed, unless values are")

    return Keys(
        f"family of {dimension}s",
        f"A {dimension} for each sweep: a list of values, or even steps from one to another. "
        "Several families in one protocol vary together and need equal lengths.",
        Rules(
            one=(("values", "from"),),
            needs={"from": ("to", "by"), "to": ("from", "by"), "by": ("from", "to")},
        ),
        values=Key(List(Quantity(dimension), 1), "The values, one for each sweep.", [first, last]),
        from_=end("The value of the first sweep.", first),
        to=end("The value of the last sweep, if the steps lead there.", last),
        by=end("The step from one sweep to the next.", by),
    )


#: Of a protocol, and of an experiment in place of the protocol's.
LIGANDS = Key(
    Named(
        either(Quantity("concentration"), Within("family of concentrations"), Within("ligand")),
        "ligand",
    ),
    "Concentrations that are commanded beside the voltage, by the names that the model has for "
    "them: one that stays, a family of them with one for each sweep, or one that changes.",
    {"drug": "30 nM"},
    {},
    otherwise="none",
)
PROTOCOL = Keys(
    "protocol",
    "A protocol file says what was commanded in an experiment, and how the current was sampled. "
    "Sample k of a sweep is at k times the sampling interval, counted from 0.",
    name=Key(Text(), "What the protocol is called.", "my_steps", otherwise="the file's name"),
    description=DESCRIPTION,
    source=SOURCE,
    holding=Key(
        Quantity("voltage"),
        "The holding potential. Every sweep begins at its steady state, unless `between_sweeps` "
        "says otherwise.",
        "-100 mV",
        required=True,
    ),
    sampling=Key(
        Quantity("time"), "The time from one sample to the next, above 0.", "0.1 ms", required=True
    ),
    junction_potential=Key(
        Quantity("voltage"),
        "The liquid junction potential between pipette and bath, within 100 mV. It is subtracted "
        "from all voltages of the file: V_membrane = V_command - junction_potential.",
        "4.5 mV",
        0.0,
    ),
    between_sweeps=Key(
        either(Choice(("steady state", "carry over")), Within("between_sweeps")),
        "Whether a sweep begins at the steady state of the holding potential, or where the sweep "
        "before it ended.",
        "carry over",
        "steady state",
    ),
    ligands=LIGANDS,
    segments=Key(
        List(Within("segment"), 1),
        "The segments of a sweep, one after another.",
        [{"hold": "5 ms"}, {"step": "40 mV", "for": "20 ms"}],
        required=True,
    ),
)
LIGAND = Keys(
    "ligand",
    "The command of a concentration: before the sweeps, and in them.",
    Rules(one=(("step", "segments"),)),
    holding=Key(
        _family("concentration"),
        "The concentration before the first sweep, and before each that begins at the steady "
        "state. It may be a family beside `step`.",
        "1 uM",
        0.0,
    ),
    exchange=Key(
        Quantity("time"),
        "The time constant with which the solution at the membrane follows, 0 or more.",
        "0.2 ms",
        0.0,
    ),
    step=Key(
        _family("concentration"),
        "The concentration from the start of a sweep on, or a family of them.",
        "30 nM",
    ),
    segments=Key(
        List(Within("ligand segment"), 1),
        "The segments of a sweep; the last concentration stays until its end.",
        [{"hold": "5 ms"}, {"step": "1 mM", "for": "1 ms"}, {"step": "0 mM", "for": "1 ms"}],
    ),
)
LIGAND_SEGMENT = Keys(
    "ligand segment",
    "One segment of a concentration: one of hold, step and ramp.",
    Rules(
        one=(("hold", "step", "ramp"),),
        apart=(("hold", "for"),),
        needs={"step": ("for",), "ramp": ("for",)},
    ),
    hold=Key(_family("time"), "The concentration `holding`, for this time.", "5 ms"),
    step=Key(
        _family("concentration"),
        "One concentration, or a family of them, which needs `for`.",
        "1 mM",
    ),
    ramp=Key(
        List(_family("concentration"), 2, 2),
        "A straight line from one concentration to another, which needs `for`. Either end may be a "
        "family.",
        ["0 mM", "1 mM"],
    ),
    for_=Key(
        _family("time"),
        "How long the segment lasts, or a family of durations.",
        "1 ms",
        otherwise="needed, but for hold",
    ),
)
BETWEEN_SWEEPS = Keys(
    "between_sweeps",
    "What lies between one sweep and the next.",
    carry_over=Key(Flag(), "Whether a sweep begins where the one before it ended.", True, True),
    rest=Key(Quantity("time"), "The time between two sweeps, 0 or more.", "200 ms", 0.0),
    at=Key(
        Quantity("voltage"),
        "The voltage in that time.",
        "-90 mV",
        null=True,
        otherwise="the holding potential",
    ),
)
SEGMENT = Keys(
    "segment",
    "One segment of a sweep: one of hold, step, ramp, sines and recorded.",
    Rules(
        one=(("hold", "step", "ramp", "sines", "recorded"),),
        apart=(("hold", "for"),),
        needs={"step": ("for",), "ramp": ("for",), "sines": ("for",)},
    ),
    hold=Key(_family("time"), "The holding potential, for this time.", "5 ms"),
    step=Key(
        _family("voltage"),
        "One voltage, or a family of them, which needs `for`.",
        {"from": "-80 mV", "to": "40 mV", "by": "10 mV"},
    ),
    ramp=Key(
        List(_family("voltage"), 2, 2),
        "A straight line from one voltage to another, which needs `for`. Either end may be a "
        "family.",
        ["-120 mV", "60 mV"],
    ),
    sines=Key(
        Within("sines"),
        "A sum of sine waves, which needs `for`.",
        {"offset": "-30 mV", "terms": [{"amplitude": "54 mV", "frequency": "40 Hz"}]},
    ),
    recorded=Key(
        Within("recorded"),
        "A command voltage from a table or from the file of an amplifier; `for` may cut it.",
        {"file": "command.csv", "column": "V", "sampling": "0.1 ms"},
    ),
    for_=Key(
        _family("time"),
        "How long the segment lasts, or a family of durations.",
        "20 ms",
        otherwise="needed, but for hold and recorded",
    ),
)
FAMILY_OF_TIMES = _family_keys("time", "1 ms", "5 ms", "1 ms")
FAMILY_OF_VOLTAGES = _family_keys("voltage", "-80 mV", "40 mV", "10 mV")
FAMILY_OF_CONCENTRATIONS = _family_keys("concentration", "0 uM", "10 uM", "1 uM")
SINES = Keys(
    "sines",
    "A sum of sine waves about an offset.",
    offset=Key(Quantity("voltage"), "The voltage about which they swing.", "-30 mV", 0.0),
    origin=Key(
        Quantity("time"),
        "The time of the sweep from which phases count.",
        "500 ms",
        otherwise="the start of the segment",
    ),
    terms=Key(
        List(Within("sine"), 1),
        "The sine waves.",
        [{"amplitude": "54 mV", "frequency": "40 Hz"}],
        required=True,
    ),
)
SINE = Keys(
    "sine",
    "One sine wave, amplitude * sin(omega t + phase).",
    Rules(one=(("frequency", "omega"),)),
    amplitude=Key(Quantity("voltage"), "The amplitude.", "54 mV", required=True),
    frequency=Key(
        Quantity("rate"), "The frequency, in periods.", "40 Hz", otherwise="needed, unless omega is"
    ),
    omega=Key(
        Quantity("rate"),
        "The angular frequency, in radians.",
        "0.25 /ms",
        otherwise="needed, unless frequency is",
    ),
    phase=Key(Quantity("none"), "The phase at the origin, in radians.", 0.5, 0.0),
)
RECORDED = Keys(
    "recorded",
    "A command voltage that was recorded: columns of a table, or a signal of an amplifier's file.",
    Rules(one=(("column", "columns", "signal"),), apart=(("time", "sampling"), ("time", "signal"))),
    file=Key(
        Text("the path of a file"),
        "The file, relative to the protocol file.",
        "command.csv",
        required=True,
    ),
    header=HEADER,
    decimal=DECIMAL,
    layout=LAYOUT,
    series=SERIES,
    column=Key(Text("the name of a column"), "The column of a table that holds the voltage.", "V"),
    columns=Key(COLUMNS, "The columns that hold the voltage of each sweep, or all.", ["V1", "V2"]),
    signal=Key(SIGNAL, "The signal of an amplifier's file, by its name or number.", "AO #0"),
    sweeps=SWEEPS_OF_FILE,
    unit=Key(
        UnitText(("voltage",)),
        "The unit of the voltage.",
        "mV",
        "mV",
        null=True,
        otherwise="mV of a table; of a signal that of its file",
    ),
    time=Key(
        Within("recorded time"), "The column of times of a table.", {"column": "t", "unit": "s"}
    ),
    sampling=Key(
        Quantity("time"),
        "The time from one sample of the command to the next, where there is no column of times.",
        "0.1 ms",
        null=True,
    ),
)
RECORDED_TIME = Keys(
    "recorded time",
    "The times of a recorded command.",
    column=Key(Text("the name of a column"), "The column of times.", "t", required=True),
    unit=Key(UnitText(("time",)), "The unit of the times.", "s", "ms"),
)

SECTIONS = (
    PROTOCOL,
    BETWEEN_SWEEPS,
    LIGAND,
    LIGAND_SEGMENT,
    SEGMENT,
    FAMILY_OF_TIMES,
    FAMILY_OF_VOLTAGES,
    FAMILY_OF_CONCENTRATIONS,
    SINES,
    SINE,
    RECORDED,
    RECORDED_TIME,
)
