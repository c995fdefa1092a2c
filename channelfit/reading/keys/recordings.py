"""The keys of a recording in a fit file, and of its conditioning."""

from __future__ import annotations

from channelfit.reading.keys.protocols import (
    COLUMNS,
    DECIMAL,
    HEADER,
    LAYOUT,
    SERIES,
    SIGNAL,
    SWEEPS_OF_FILE,
)
from channelfit.reading.keys.shapes import (
    Choice,
    Integer,
    Key,
    Keys,
    List,
    Quantity,
    Rules,
    Text,
    UnitText,
    Within,
    either,
)

_COLUMN = Text("the name of a column")
_FROM = Key(
    Quantity("time"),
    "Where the stretch begins, from the start of the sweep.",
    "0 ms",
    required=True,
)
_TO = Key(
    Quantity("time"), "Where it ends; the sample at this time is not in it.", "4 ms", required=True
)
_TIME = Key(
    Within("recording time"),
    "The column of times of a table.",
    {"column": "t", "unit": "s"},
)
_SAMPLING = Key(
    Quantity("time"),
    "The time from one sample to the next, where no column of times says it. It must agree with "
    "the protocol.",
    "0.1 ms",
    null=True,
)
SWEEPS = Key(
    List(Integer(1), 1),
    "The numbers of sweeps of the protocol, counted from 1.",
    [1, 3],
    otherwise="all",
)
_CURRENT = Key(
    Within("recording current"),
    "Which columns or which signal of the file are currents, and their unit.",
    {"columns": "all", "unit": "pA"},
    required=True,
)
_MISSING = Key(
    Choice(("refuse", "mask")),
    "What becomes of a sample without a current: it is refused, or left out.",
    "mask",
    "refuse",
)
_BASELINE = Key(
    Within("baseline"),
    "A stretch of each sweep whose mean is subtracted from that sweep.",
    {"from": "0 ms", "to": "4 ms"},
)
_ELSEWHERE = "It stands beside the recording, in `clamp`."

RECORDING = Keys(
    "recording",
    "What was recorded: a file, and where in it the currents are. They must have as many samples "
    "and sweeps as the protocol.",
    Rules(apart=(("time", "sampling"),)),
    file=Key(
        Text("the path of a file"),
        "The file, relative to the fit file. `${NAME}` stands for an environment variable.",
        "cell_3.csv",
        required=True,
    ),
    header=HEADER,
    decimal=DECIMAL,
    layout=LAYOUT,
    series=SERIES,
    time=_TIME,
    sampling=_SAMPLING,
    current=_CURRENT,
    sweeps=SWEEPS,
    starts=Key(
        List(Quantity("time"), 1),
        "When in the sweep the first sample is, where the file holds a part of each sweep; one "
        "time for all, or one for each sweep.",
        "5 s",
        0.0,
    ),
    baseline=_BASELINE,
    condition=Key(
        List(Within("condition")),
        "What is done to the recording before it is fitted, one step after another.",
        [{"leak": {"from": "300 ms", "to": "700 ms"}}],
        null=True,
        otherwise="nothing",
    ),
    missing=_MISSING,
    capacitance=Key(Quantity("capacitance"), _ELSEWHERE, elsewhere=True),
    series_resistance=Key(Quantity("resistance"), _ELSEWHERE, elsewhere=True),
    source=Key(
        Text(),
        "Where the recording comes from, in words.",
        "cell 3, 4 May",
        otherwise="the file's name",
    ),
)
TIME = Keys(
    "recording time",
    "The times of a recorded table.",
    column=Key(_COLUMN, "The column of times.", "t", required=True),
    unit=Key(UnitText(("time",)), "The unit of the times.", "s", required=True),
    start=Key(
        Quantity("time"), "The time in this column at which the sweep begins.", "100 ms", 0.0
    ),
)
CURRENT = Keys(
    "recording current",
    "The currents of a file: one column, several columns, or a signal.",
    Rules(one=(("column", "columns", "signal"),)),
    column=Key(_COLUMN, "The one column of currents of a table.", "I"),
    columns=Key(COLUMNS, "The columns of currents, one for each sweep, or all.", ["I1", "I2"]),
    signal=Key(SIGNAL, "The signal of an amplifier's file, by its name or number.", "IN 0"),
    sweeps=SWEEPS_OF_FILE,
    unit=Key(
        UnitText(("current",), sized=True),
        "The unit of the currents.",
        "pA",
        null=True,
        otherwise="needed of a table; of a signal that of its file",
    ),
    area=Key(
        Quantity("area"),
        "The area of the membrane, where the unit is per area.",
        "1500 um2",
        null=True,
    ),
    capacitance=Key(
        Quantity("capacitance"),
        "The capacitance of the membrane, where the unit is per capacitance.",
        "20 pF",
        null=True,
    ),
)
BASELINE = Keys(
    "baseline",
    "A stretch of a sweep.",
    from_=_FROM,
    to=_TO,
)
CONDITION = Keys(
    "condition",
    "One step of conditioning.",
    Rules(one=(("baseline", "leak", "subtract", "run_down", "lowpass"),)),
    baseline=Key(
        Within("baseline"),
        "Subtracts from every sweep its mean in this stretch.",
        {"from": "0 ms", "to": "4 ms"},
    ),
    leak=Key(
        Within("condition leak"),
        "Subtracts a straight line in the command voltage.",
        {"from": "300 ms", "to": "700 ms"},
    ),
    subtract=Key(
        Within("condition subtract"),
        "Subtracts another recording under the same protocol, as after a blocker. The steps before "
        "it are done to both.",
        {"file": "after.csv"},
    ),
    run_down=Key(
        Within("condition run_down"),
        "Scales every sweep to the first by the mean current in a stretch in which all sweeps have "
        "the same command.",
        {"from": "20 ms", "to": "40 ms"},
    ),
    lowpass=Key(
        Within("condition lowpass"),
        "A Bessel filter, through which the model's current goes as well.",
        {"cutoff": "2 kHz"},
    ),
)
LEAK = Keys(
    "condition leak",
    "The leak to subtract: fitted in a stretch in which the channel is closed, or known.",
    Rules(
        one=(("from", "conductance"),),
        needs={"from": ("to",), "to": ("from",), "conductance": ("reversal",)},
    ),
    from_=Key(Quantity("time"), "Where the stretch begins.", "300 ms"),
    to=Key(Quantity("time"), "Where the stretch ends.", "700 ms"),
    reversal=Key(
        Quantity("voltage"),
        "The voltage at which no leak flows. With it a stretch at one voltage is enough.",
        "-10 mV",
        null=True,
        otherwise="fitted",
    ),
    conductance=Key(Quantity("conductance"), "The conductance of a leak that is known.", "0.5 nS"),
)
SUBTRACT = Keys(
    "condition subtract",
    "Another recording. What it does not say of its file is as the recording has it.",
    Rules(apart=(("time", "sampling"),)),
    file=Key(
        Text("the path of a file"),
        "Its file, relative to the fit file.",
        "after.csv",
        required=True,
    ),
    header=HEADER,
    time=_TIME,
    sampling=_SAMPLING,
    current=Key(
        _CURRENT.shape, _CURRENT.meaning, _CURRENT.example, otherwise="as the recording has it"
    ),
    sweeps=SWEEPS,
    missing=_MISSING,
    scale=Key(
        either(Choice(("fit",)), Quantity("none")),
        "What it is multiplied by, such as 4 for subpulses of a quarter (P/4), or `fit` for the "
        "factor that fits best in the stretches `over`.",
        4,
        1.0,
    ),
    drift=Key(
        Choice(("none", "offset", "line")),
        "What has moved between the two recordings, fitted in the stretches `over`.",
        "offset",
        "none",
    ),
    over=Key(
        List(Within("baseline"), 1),
        "Stretches in which the channel is closed, for the scale and the drift.",
        {"from": "0 ms", "to": "10 ms"},
    ),
)
RUN_DOWN = Keys(
    "condition run_down",
    "Run-down, divided out.",
    from_=_FROM,
    to=_TO,
    trend=Key(
        Choice(("each", "line", "exponential")),
        "How the current changes from sweep to sweep: each sweep by itself, or along a line or an "
        "exponential.",
        "each",
        "exponential",
    ),
)
POLES = Key(Integer(1, 10), "How many poles the Bessel filter has.", 8, 4)
CUTOFF = Key(
    Quantity("rate"),
    "The frequency at which it passes 3 dB less than at rest, above 0.",
    "2 kHz",
    required=True,
)
LOWPASS = Keys(
    "condition lowpass",
    "A Bessel filter of the recording.",
    poles=POLES,
    cutoff=CUTOFF,
    every=Key(Integer(1), "After the filter, each so many-th sample is scored.", 5, 1),
)
MASK = Keys(
    "mask",
    "Samples whose weight is changed: those after or before steps for some time, or those from one "
    "time to another.",
    Rules(apart=(("after_steps", "before_steps", "from"), ("after_steps", "before_steps", "to"))),
    after_steps=Key(Quantity("time"), "The time after each step of the command.", "2 ms"),
    before_steps=Key(Quantity("time"), "The time before each step of the command.", "0.5 ms"),
    from_=Key(
        Quantity("time"),
        "Where in the sweep the samples begin.",
        "40 ms",
        otherwise="the sweep's start",
    ),
    to=Key(Quantity("time"), "Where in the sweep they end.", "45 ms", otherwise="the sweep's end"),
    weight=Key(Quantity("none"), "What their weight is multiplied by, 0 or more.", 0.5, 0.0),
    sweeps=SWEEPS,
)

SECTIONS = (
    RECORDING,
    TIME,
    CURRENT,
    BASELINE,
    CONDITION,
    LEAK,
    SUBTRACT,
    RUN_DOWN,
    LOWPASS,
    MASK,
)
