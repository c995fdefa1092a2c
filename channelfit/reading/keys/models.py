"""The keys of a model file, and of the form that the paper of 2012 printed."""

from __future__ import annotations

from channelfit.reading.keys.shapes import (
    Choice,
    ConstantQuantity,
    Expression,
    Flag,
    Integer,
    Key,
    Keys,
    List,
    Name,
    Named,
    Quantity,
    Rules,
    Text,
    UnitText,
    Within,
    either,
)

#: States of a scheme, or of the scheme that gates amount to; and elementary charges of an ion.
MAX_STATES, MOST_CHARGES = 64, 8
_RATE = Expression("a rate, 1/ms")
_WAY = r"\s*\w+\s*-+\s*>\s*\w+\s*|k\d\d|k\d+_\d+"
_PAIR = List(Quantity("none"), 2, 2)

DESCRIPTION = Key(Text(), "What this is, in words.", "potassium channel of a cultured neuron", "")
SOURCE = Key(Text(), "Where this comes from, such as a publication.", "Hodgkin and Huxley 1952", "")

_RECTIFICATION = Key(
    Expression("a factor without a unit"),
    "A factor of the current that follows the voltage at once.",
    "0.2 + 1/(1 + exp(-v/15))",
    otherwise="no rectification, which is a factor of 1",
)
_CONDUCTANCE = Key(
    ConstantQuantity("conductance", sized=True),
    "The conductance when all channels are open. The current is this times the open probability "
    "times (v - reversal), positive outward. Either this and a reversal, or a permeability and an "
    "ion, says what flows.",
    "gmax",
)
_REVERSAL = Key(
    ConstantQuantity("voltage"),
    "The voltage at which no current flows, which belongs to a conductance.",
    "-85 mV",
)
_PERMEABILITY = Key(
    ConstantQuantity("permeability", sized=True),
    "The permeability of the whole membrane, for the current after Goldman, Hodgkin and Katz. It "
    "needs an ion and the temperature of the model.",
    "pca",
)
_ION = Key(
    Within("ion"),
    "What a permeability lets through.",
    {"valence": 2, "inside": "100 nM", "outside": "2 mM"},
)
_OPEN = Key(
    either(List(Name(), 1), Named(Quantity("none"), "state", least=1)),
    "The states that conduct, or a mapping of these states to their conductances relative to the "
    "open channel, above 0. A model of gates alone has no such key.",
    ["O"],
)
_STATES = Key(
    List(Name(), 1, MAX_STATES),
    "The names of the states of a scheme, of which each must be reachable from every other.",
    ["C1", "C2", "O"],
)
_RATES = Key(
    Named(_RATE, "transition", _WAY),
    "The rate of every transition from a state to another one. A rate may have a name by which "
    "other expressions use it, as in `C -> O: up = a*exp(z*v)`; `k12` stands for the transition "
    "from the first state to the second. The word `balance` in place of a rate lets it follow from "
    "microscopic reversibility.",
    {"C1 -> C2": "a12*exp(z12*v)", "C2 -> C1": "a21*exp(-z21*v)"},
)
_GATES = Key(
    Named(Within("gate"), "gate", least=1),
    "Hodgkin-Huxley gates. The open probability is the product of all gates, each raised to its "
    "power. Beside states and rates they multiply the open probability of the scheme.",
    {"n": {"power": 4, "inf": "1/(1 + exp(-(v + 53)/15))", "tau": "tn"}},
)
#: Keys that together describe the current.
_FLOW = Rules(
    apart=(("conductance", "permeability"),),
    needs={
        "conductance": ("reversal",),
        "reversal": ("conductance",),
        "permeability": ("ion",),
        "ion": ("permeability",),
    },
)
_SIZES = {
    "area": Key(
        Quantity("area"),
        "The area of the membrane. It is needed where a unit is per area; exports divide by it.",
        "1500 um2",
        null=True,
    ),
    "capacitance": Key(
        Quantity("capacitance"),
        "The capacitance of the membrane. It is needed where a unit is per capacitance; exports "
        "take the area from it, at 1 uF/cm2.",
        "20 pF",
        null=True,
    ),
}

MODEL = Keys(
    "model",
    "A model file describes one channel: states and rates, or gates, or both; what flows; and "
    "parameters with ranges. A `fit` section in it says what to fit it to.",
    Rules(apart=(("states", "currents"), ("rates", "currents"), ("gates", "currents"))),
    name=Key(Text(), "What the model is called.", "three_states", otherwise="the file's name"),
    description=DESCRIPTION,
    source=SOURCE,
    temperature=Key(
        Quantity("temperature"),
        "The temperature, which expressions know as `celsius`.",
        "34 degC",
        null=True,
    ),
    parameters=Key(
        Named(Within("parameter"), "parameter"),
        "The numbers that expressions use by name, which a fit searches for.",
        {"gmax": {"range": [0, 100], "unit": "nS"}},
    ),
    definitions=Key(
        Named(Expression("any quantity"), "definition"),
        "Expressions that others use by name.",
        {"phi": "3**((celsius - 23)/10)"},
    ),
    ligands=Key(
        List(Name(), 1),
        "The names of concentrations that a protocol commands beside the voltage: of a transmitter "
        "or a drug. Rates use them, in mM.",
        ["glutamate"],
        otherwise="none: the voltage alone is commanded",
    ),
    states=_STATES,
    rates=_RATES,
    gates=_GATES,
    current=Key(
        Within("current"),
        "What flows through the open channel. Beside `currents` it holds the size of the membrane "
        "alone.",
        {"open": ["O"], "conductance": "gmax", "reversal": "-85 mV"},
    ),
    currents=Key(
        Named(Within("one current"), "current", least=1),
        "Several currents that are added up, each with states and rates, or gates, of its own.",
        {
            "ikur": {
                "gates": {"a": {"inf": "1/(1 + exp(-v/9))", "tau": "ta"}},
                "conductance": "gkur",
                "reversal": "-88 mV",
            }
        },
    ),
    leak=Key(
        Within("leak"),
        "A conductance that is always open, added to what else flows.",
        {"conductance": "gl", "reversal": "-60 mV"},
    ),
    fit=Key(
        Within("fit"),
        "What to fit the model to, and how to search.",
        {"protocols": ["activation.yaml"], "surrogate": {"noise": "10 pA"}},
        null=True,
    ),
)
PARAMETER = Keys(
    "parameter",
    "One parameter of a model, or of the clamp of a fit.",
    range=Key(
        either(_PAIR, Named(_PAIR, "cell", "")),
        "The lower and the upper end within which the search looks, in the parameter's unit; every "
        "fitted value lies in it. Where the parameter is per cell, it may be a mapping of cells.",
        [0.001, 10],
        otherwise="needed, unless the parameter is fixed or tied",
    ),
    unit=Key(
        UnitText(sized=True),
        "The unit of the range, the value and the prior. Units are followed through the "
        "expressions.",
        "1/ms",
        "",
        otherwise="the unit that the expressions need",
    ),
    value=Key(
        either(Quantity("none"), Named(Quantity("none"), "cell", "")),
        "The value from which data are simulated, and that of a fixed parameter. Where the "
        "parameter is per cell, it may be a mapping of cells.",
        0.05,
        null=True,
    ),
    scale=Key(
        Choice(("linear", "log")),
        "How the search covers the range: evenly, or evenly in the logarithm, which needs a range "
        "above 0.",
        "log",
        "linear",
    ),
    fixed=Key(
        either(Flag(), Named(Flag(), "cell", "")),
        "Whether the parameter keeps its value. Where it is per cell, this may be a mapping of "
        "cells.",
        True,
        False,
    ),
    prior=Key(
        Within("prior"),
        "What was known of the parameter beforehand. It needs `noise` in the fit section.",
        {"normal": [0.05, 0.01]},
        null=True,
    ),
    tie=Key(
        Expression("the parameter", voltage=False),
        "An expression of other parameters that this one follows, so that it is not searched. "
        "Candidates that leave its range, which is optional here, are not scored.",
        "z12 + z21 - z34",
        null=True,
    ),
    per=Key(
        Choice(("cell",)),
        "Gives each cell that the experiments name a value of its own.",
        "cell",
        null=True,
        otherwise="one value for all experiments",
    ),
    input=Key(
        Text("a name"),
        "The name in NEURON of what the cell around the channel decides, such as the concentration "
        "cai or the reversal potential ek. An export for NEURON reads it from the cell.",
        "cai",
        otherwise="a number of the channel itself",
    ),
)
PRIOR = Keys(
    "prior",
    "What was known of a parameter beforehand: one of these two.",
    Rules(one=(("normal", "lognormal"),)),
    normal=Key(_PAIR, "Mean and standard deviation of the parameter, in its unit.", [0.05, 0.01]),
    lognormal=Key(
        _PAIR,
        "Median of the parameter, in its unit, and the factor that is one standard deviation of "
        "its logarithm, above 1.",
        [0.05, 2],
    ),
)
GATE = Keys(
    "gate",
    "One gate: two rates, or a steady state and a time constant.",
    Rules(
        one=(("alpha", "inf"),),
        needs={"alpha": ("beta",), "beta": ("alpha",), "inf": ("tau",), "tau": ("inf",)},
    ),
    power=Key(Integer(1, 8), "How many equal copies of the gate must be open together.", 3, 1),
    alpha=Key(
        _RATE,
        "The rate of opening, which needs beta beside it.",
        "0.1*(v + 40)/(1 - exp(-(v + 40)/10))",
    ),
    beta=Key(_RATE, "The rate of closing, which needs alpha beside it.", "4*exp(-(v + 65)/18)"),
    inf=Key(
        Expression("a share from 0 to 1"),
        "The open share at steady state, which needs tau beside it.",
        "1/(1 + exp((v + vh)/7))",
    ),
    tau=Key(
        Expression("a time, ms"),
        "The time constant, which needs inf beside it; 0 for a gate that is at its steady state at "
        "every moment.",
        "1 + 10/(1 + exp((v + 50)/15))",
    ),
)
CURRENT = Keys(
    "current",
    "What flows through the open channel: a conductance and a reversal potential, or a "
    "permeability and an ion; and what flows as its charges move.",
    _FLOW,
    open=_OPEN,
    conductance=_CONDUCTANCE,
    reversal=_REVERSAL,
    rectification=_RECTIFICATION,
    permeability=_PERMEABILITY,
    ion=_ION,
    gating=Key(
        Within("gating"),
        "The current of the charges of the channels themselves, which move as they change their "
        "states; it is added to what flows through them, or stands alone.",
        {"charges": {"C -> O": 3.5}, "channels": 10000},
        otherwise="no gating current",
    ),
    **_SIZES,
)
GATING = Keys(
    "gating",
    "The gating current of a scheme.",
    charges=Key(
        Named(ConstantQuantity("none"), "transition", _WAY, least=1),
        "The elementary charges that move outward in a transition, below 0 for inward; as many "
        "move inward on the way back. Numbers, or expressions of parameters.",
        {"C -> O": 3.5},
        required=True,
    ),
    channels=Key(
        ConstantQuantity("none"),
        "How many channels there are; a number, or an expression of parameters.",
        10000,
        required=True,
    ),
)
ION = Keys(
    "ion",
    "The ion that a permeability lets through.",
    valence=Key(
        either(Integer(-MOST_CHARGES, -1), Integer(1, MOST_CHARGES)),
        "The charge of the ion in elementary charges, from -8 to 8 and not 0.",
        2,
        required=True,
    ),
    inside=Key(
        ConstantQuantity("concentration"), "The concentration in the cell.", "100 nM", required=True
    ),
    outside=Key(
        ConstantQuantity("concentration"), "The concentration in the bath.", "2 mM", required=True
    ),
    thermal=Key(
        ConstantQuantity("voltage"),
        "What stands for RT/F in the exponent, about 25 mV. Published files round the constants of "
        "nature, and an import keeps what they have.",
        "0.0853*(celsius + 273.15)",
        otherwise="RT/F of the model's temperature",
    ),
)
LEAK = Keys(
    "leak",
    "A current that is a straight line in the voltage, whatever the channel does.",
    conductance=Key(
        ConstantQuantity("conductance", sized=True),
        "The conductance of the leak.",
        "0.2 nS",
        required=True,
    ),
    reversal=Key(
        ConstantQuantity("voltage"), "The voltage at which no leak flows.", "-60 mV", required=True
    ),
)
ONE_CURRENT = Keys(
    "one current",
    "One of several currents: states and rates, or gates, or both, and what flows.",
    _FLOW,
    states=_STATES,
    rates=_RATES,
    gates=_GATES,
    open=_OPEN,
    conductance=_CONDUCTANCE,
    reversal=_REVERSAL,
    rectification=_RECTIFICATION,
    permeability=_PERMEABILITY,
    ion=_ION,
)

PRINTED_FILE = Keys(
    "printed file",
    "A model in the form that Ben-Shalom et al. printed in 2012.",
    model=Key(
        Within("printed model"),
        "The model.",
        {
            "nStates": 2,
            "params": [{"name": "g", "min": 1, "max": 10, "val": 5}],
            "rates": ["k12 = 0.1*exp(v/30)", "k21 = 0.1"],
            "openStates": [2],
            "eRev": -90,
        },
        required=True,
    ),
    fit=MODEL["fit"],
)
PRINTED_MODEL = Keys(
    "printed model",
    "The model itself in the form that was printed in 2012: states are numbers, and the last "
    "parameter is the conductance, nS.",
    nStates=Key(Integer(1, MAX_STATES), "How many states there are.", 2, required=True),
    nParams=Key(Integer(), "How many parameters follow.", 3, otherwise="as many as follow"),
    params=Key(
        List(Within("printed parameter"), 1),
        "The parameters, the conductance last.",
        [{"name": "g", "min": 1, "max": 10, "val": 5}],
        required=True,
    ),
    rates=Key(
        List(Text("a rate, 1/ms, with its name", strict=True)),
        "The rates from one state to another, which count from 1.",
        ["k12 = a*exp(v/30)", "k21 = b"],
        required=True,
    ),
    nOpenStates=Key(Integer(), "How many states conduct.", 1, otherwise="as many as follow"),
    openStates=Key(
        List(Integer(1, MAX_STATES), 1),
        "The numbers of the states that conduct.",
        [2],
        required=True,
    ),
    eRev=Key(Quantity("voltage"), "The reversal potential.", -90, required=True),
)
PRINTED_PARAMETER = Keys(
    "printed parameter",
    "One parameter in the form that was printed in 2012.",
    name=Key(Text("a name"), "The name by which the rates use it.", "a", required=True),
    min=Key(Quantity("none"), "The lower end of the range.", 0, required=True),
    max=Key(Quantity("none"), "The upper end of the range.", 1, required=True),
    val=Key(Quantity("none"), "The value from which data are simulated.", 0.05, required=True),
)

SECTIONS = (
    MODEL,
    PARAMETER,
    PRIOR,
    GATE,
    CURRENT,
    GATING,
    ION,
    LEAK,
    ONE_CURRENT,
    PRINTED_FILE,
    PRINTED_MODEL,
    PRINTED_PARAMETER,
)
