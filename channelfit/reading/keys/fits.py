"""The keys of a fit file, of the `fit` section in it or in a model file, and of a clamp."""

from __future__ import annotations

from dataclasses import replace

from channelfit.reading.keys.models import DESCRIPTION, SOURCE
from channelfit.reading.keys.protocols import LIGANDS
from channelfit.reading.keys.recordings import CUTOFF, POLES
from channelfit.reading.keys.shapes import (
    Choice,
    ConstantQuantity,
    Integer,
    Key,
    Keys,
    List,
    Name,
    Named,
    PartialSections,
    Quantity,
    Rules,
    Text,
    Within,
    either,
)

OPTIMIZER = Key(
    Within("optimizer"),
    "The method of the search, by its name, and its settings.",
    {"name": "genetic", "population": 500},
)
STOP = Key(
    Within("stop"),
    "Rules that end the search; the first that holds at the end of a generation counts.",
    {"seconds": 60, "cost": 25},
)
SEED = Key(Integer(), "The seed of the search, from which all its random numbers follow.", 1, 0)
SEEDS = Key(
    Integer(1),
    "The number of whole searches, with the seeds from `seed` on. The best is kept, and the "
    "summary says how many others came to it.",
    4,
    1,
)
START = Key(
    Choice(("none", "values")),
    "Where the search begins: anywhere, or at the parameters' values.",
    "values",
    "none",
)

_RECORDING = {
    "file": "cell_3.csv",
    "sampling": "0.1 ms",
    "current": {"columns": "all", "unit": "nA"},
}
_EXPERIMENT = {"protocol": "steps.yaml", "recording": _RECORDING}
_DELAY = "The time by which the recording shows everything later than it was commanded, 0 or more."
_RANGE_OF_RATES = List(Quantity("rate"), 2, 2)

FIT_FILE = Keys(
    "fit file",
    "A fit file names a model and says what to fit it to. What it says goes before what the "
    "model's file says, key by key; null takes a key away. Paths are relative to the file in which "
    "they stand, and `${NAME}` stands for an environment variable.",
    model=Key(
        Text("the path of a model file", strict=True),
        "The model file, or the file of a function.",
        "my_channel.yaml",
        required=True,
    ),
    name=Key(
        Text(),
        "The name of the run, in its folder and its pictures.",
        "cell 3",
        otherwise="the model's name",
        null=True,
    ),
    description=replace(DESCRIPTION, null=True),
    source=replace(SOURCE, null=True),
    temperature=Key(
        Quantity("temperature"),
        "The temperature of the recordings, in place of that of the model; expressions know it as "
        "`celsius`. Where none uses it, it is kept and exported with the values.",
        "22 degC",
        null=True,
    ),
    current=Key(
        PartialSections(("current",)),
        "Changes `current` of the model, key by key; its own parameters may stand below.",
        {"reversal": "-90 mV"},
    ),
    leak=Key(
        Within("leak"),
        "Replaces the leak of the model, or adds one; its own parameters may stand below.",
        {"conductance": "gl", "reversal": "-60 mV"},
        null=True,
    ),
    parameters=Key(
        Named(PartialSections(("parameter", "function parameter")), "parameter"),
        "Changes parameters of the model, key by key, and declares those of a clamp and those that "
        "only `current` or `leak` of this file uses.",
        {"gmax": {"range": [0, 30]}},
    ),
    fit=Key(
        Within("fit"),
        "What to fit to, and how to search.",
        {"experiments": [_EXPERIMENT]},
        null=True,
    ),
)
FIT = Keys(
    "fit",
    "What a model is fitted to, recordings or data that are simulated, and how to search.",
    Rules(apart=(("protocols", "experiments"), ("surrogate", "experiments"))),
    True,
    name=Key(Text(), "The name of the run.", "cell 3", otherwise="the model's name"),
    description=DESCRIPTION,
    source=SOURCE,
    protocols=Key(
        List(Text("the path of a protocol file", strict=True), 1),
        "Protocols for which data are simulated from the parameters' values.",
        ["activation.yaml", "deactivation.yaml"],
    ),
    experiments=Key(
        List(Within("experiment"), 1),
        "What was recorded under which protocol.",
        [_EXPERIMENT],
    ),
    surrogate=Key(Within("surrogate"), "How the data are simulated.", {"noise": "10 pA"}),
    clamp=Key(
        Within("clamp"),
        "What the amplifier did, of all experiments that have no clamp of their own.",
        {"series_resistance": "5 MOhm", "membrane_capacitance": "20 pF"},
        otherwise="an ideal clamp",
    ),
    optimizer=OPTIMIZER,
    stop=STOP,
    seed=SEED,
    seeds=SEEDS,
    rates_within=Key(
        either(_RANGE_OF_RATES, Within("rates_within"), List(Within("rates_within"), 1)),
        "Bounds on rates over the voltages of the protocols. Candidates that leave them are not "
        "scored. A list of entries gives different rates different bounds.",
        ["1.67e-5 /ms", "1000 /ms"],
        otherwise="no bounds",
    ),
    solve=Key(
        List(either(Choice(("none", "auto")), Name()), 1, 1),
        "A conductance or reversal potential that is computed from the others and not searched; "
        "`auto` finds one.",
        "gmax",
        "none",
    ),
    noise=Key(
        either(Quantity("current"), Within("channel noise")),
        "The standard deviation of a sample, above 0, by which recordings are weighed against "
        "priors and observations; it is needed where there are recordings beside one of these. Or "
        "a mapping that makes the cost the likelihood of the current of single channels.",
        "5 pA",
        null=True,
    ),
    start=START,
    discover=Key(
        Within("discover"),
        "Which schemes `channelfit discover` compares. A fit of one scheme refuses it.",
        {"states": [3, 5], "cycles": 1},
    ),
    require=Key(
        Named(Text('a comparison, such as "> 500 MOhm"', strict=True), "column", ""),
        "What every well of `channelfit batch` has to fulfill to be `ok`: columns of its table, or "
        "arithmetic of them, each with a comparison. An entry replaces the limit that a batch has "
        "for the same. A fit of one recording refuses it.",
        {"seal": "> 500 MOhm", "rms/noise": "< 1.5", "gmax_error/gmax": "< 0.05"},
    ),
)
SURROGATE = Keys(
    "surrogate",
    "How data are simulated.",
    noise=Key(
        Quantity("current"),
        "The standard deviation of the noise that is added to every sample, 0 or more.",
        "10 pA",
        0.0,
    ),
    seed=Key(Integer(), "The seed of the noise.", 1, 0),
)
EXPERIMENT = Keys(
    "experiment",
    "A recording, or what was observed in one, and the protocol under which it was made.",
    Rules(
        one=(("recording", "observe"),),
        apart=tuple(("observe", key) for key in ("mask", "every", "delay", "clamp")),
    ),
    protocol=Key(
        Text("the path of a protocol file", strict=True),
        "The protocol: a YAML file, or an `.eph` file.",
        "my_steps.yaml",
        required=True,
    ),
    recording=Key(
        Within("recording"),
        "What was recorded.",
        _RECORDING,
        otherwise="needed, unless observe is",
    ),
    observe=Key(
        either(Within("observation"), List(Within("observation"), 1)),
        "Numbers that were taken from the currents and published in place of them, such as peaks "
        "against the voltage.",
        {"file": "activation.csv", "x": "V", "value": "g", "error": "sem"},
    ),
    weight=Key(
        Quantity("none"),
        "How much the experiment counts, 0 or more. With 0 it is held out: predicted at the end, "
        "without any influence on the fit.",
        2,
        1.0,
    ),
    mask=Key(
        List(Within("mask")),
        "Samples that do not count, or count less.",
        [{"after_steps": "2 ms"}],
        null=True,
        otherwise="all samples count",
    ),
    every=Key(
        Integer(1),
        "Scores each so many-th sample, the first one included.",
        5,
        1,
        otherwise="1, or what the low-pass filter of the recording says",
    ),
    delay=Key(ConstantQuantity("time"), _DELAY, "0.2 ms", 0.0),
    cell=Key(
        Text("the name of a cell"),
        "The cell that was recorded. Parameters that are per cell have a value for each.",
        "A1",
        "",
        otherwise="one cell without a name",
    ),
    temperature=Key(
        Quantity("temperature"),
        "The temperature of this experiment, which is `celsius` in expressions. Where none uses "
        "it, it is kept and exported with the values.",
        "34 degC",
        null=True,
        otherwise="that of the model",
    ),
    ligands=replace(
        LIGANDS, meaning="Concentrations in this experiment, in place of the protocol's."
    ),
    clamp=Key(
        Within("clamp"),
        "What the amplifier did in this experiment.",
        {"series_resistance": "rs"},
        otherwise="the clamp of the whole fit",
    ),
)
CLAMP = Keys(
    "clamp",
    "What the amplifier did. Each quantity is a number with its unit, or an expression of "
    "parameters, which then are fitted.",
    series_resistance=Key(
        ConstantQuantity("resistance"),
        "The resistance of the pipette and of the access to the cell, 0 or more.",
        "5 MOhm",
        0.0,
        otherwise="0: the membrane is at the command, plus the offset",
    ),
    membrane_capacitance=Key(
        ConstantQuantity("capacitance"),
        "What the amplifier has to charge through that resistance, 0 or more.",
        "20 pF",
        0.0,
        otherwise="0: it is charged at once",
    ),
    pipette_capacitance=Key(
        ConstantQuantity("capacitance"),
        "What is charged before the resistance, 0 or more; it needs the lag of a compensation.",
        "4 pF",
        0.0,
    ),
    compensation=Key(
        either(ConstantQuantity("none"), Within("clamp compensation")),
        "The share of the series resistance that is compensated, or a mapping with more of it.",
        0.8,
        {},
        otherwise="none",
    ),
    cancellation=Key(
        ConstantQuantity("none"),
        "The share of the charging currents that is subtracted before they are recorded, 0 to 1.",
        0.95,
        0.0,
        otherwise="0: they are in the recording",
    ),
    leak=Key(
        Within("clamp leak"),
        "A current beside the channel.",
        {"conductance": "0.5 nS", "reversal": "0 mV"},
        {},
        otherwise="none",
    ),
    offset=Key(
        ConstantQuantity("voltage"), "What the membrane sees beyond the command.", "1 mV", 0.0
    ),
    delay=Key(ConstantQuantity("time"), _DELAY, "0.05 ms", 0.0),
    lowpass=Key(
        Within("clamp lowpass"),
        "A Bessel filter of the recorded current.",
        {"poles": 4, "cutoff": "10 kHz"},
        null=True,
        otherwise="no filter",
    ),
)
COMPENSATION = Keys(
    "clamp compensation",
    "How the amplifier compensates the series resistance.",
    fraction=Key(
        ConstantQuantity("none"),
        "The share of the resistance that is compensated, 0 to 1.",
        0.8,
        0.0,
    ),
    prediction=Key(
        ConstantQuantity("none"),
        "The share of the charging that is forestalled, 0 to 0.99.",
        0.7,
        0.0,
    ),
    lag=Key(
        ConstantQuantity("time"),
        "The time constant with which the potential of the pipette follows, 0 or more.",
        "10 us",
        0.0,
    ),
)
LEAK = Keys(
    "clamp leak",
    "A leak beside the channel.",
    conductance=Key(
        ConstantQuantity("conductance"), "Its conductance, 0 or more.", "0.5 nS", 0.0, required=True
    ),
    reversal=Key(
        ConstantQuantity("voltage"), "The voltage at which it does not flow.", "0 mV", 0.0
    ),
)
LOWPASS = Keys("clamp lowpass", "A Bessel filter.", poles=POLES, cutoff=CUTOFF)
CHANNEL_NOISE = Keys(
    "channel noise",
    "What makes the current fluctuate: numbers with units, or expressions of parameters, which are "
    "fitted then. The cost is the likelihood of the fluctuating current, which tells the number of "
    "channels and the current of one.",
    channels=Key(
        ConstantQuantity("none"),
        "The number of channels that carry the current.",
        "N",
        required=True,
    ),
    instrument=Key(
        ConstantQuantity("current"),
        "The standard deviation that the amplifier adds to each sample.",
        "sigma",
        required=True,
    ),
    open=Key(
        ConstantQuantity("current"),
        "The standard deviation that each open channel adds to each sample.",
        "0.1 pA",
        0.0,
    ),
)
RATES_WITHIN = Keys(
    "rates_within",
    "Bounds on some rates.",
    range=Key(
        _RANGE_OF_RATES,
        "The lowest and the largest value, 0 or more.",
        ["1.67e-5 /ms", "1000 /ms"],
        required=True,
    ),
    of=Key(
        Choice(("all", "largest")),
        "Whether all values of a rate must lie in the range, or only its largest.",
        "largest",
        "all",
    ),
    voltages=Key(
        List(Quantity("voltage"), 1),
        "The voltages at which rates are looked at.",
        ["-120 mV", "60 mV"],
        otherwise="from the lowest command to the highest",
    ),
    rates=Key(
        List(Text("the name of a rate"), 1),
        "The rates, by transitions such as `C1 -> C2`; those of a gate n are `n.alpha` and "
        "`n.beta`.",
        ["C1 -> C2"],
        otherwise="all rates",
    ),
)

SECTIONS = (
    FIT_FILE,
    FIT,
    SURROGATE,
    EXPERIMENT,
    CLAMP,
    COMPENSATION,
    LEAK,
    LOWPASS,
    CHANNEL_NOISE,
    RATES_WITHIN,
)
