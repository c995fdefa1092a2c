"""The keys of the section that says which schemes `channelfit discover` compares."""

from __future__ import annotations

from channelfit.reading.keys.shapes import (
    Choice,
    Expression,
    Flag,
    Integer,
    Key,
    Keys,
    List,
    Named,
    Text,
    Within,
    either,
)

_SPAN = 'such as "3..6"'

#: The rate of every transition, and its parameters: the ranges allow what is measured in channels.
RATE = "a*exp(z*v)"
PARAMETERS = {
    "a": {"range": [1e-7, 1e3], "unit": "1/ms", "scale": "log"},
    "z": {"range": [-0.15, 0.15], "unit": "1/mV"},
}

DISCOVER = Keys(
    "discover",
    "Which schemes `channelfit discover` fits to the data, and how thoroughly. Of the model all is "
    "kept but its states and rates. A fit of one scheme refuses this section.",
    states=Key(
        either(Integer(2, 7), List(Integer(2, 7), 2, 2), Text(_SPAN)),
        "How many states the schemes have: a number, or the least and the most.",
        [3, 5],
        [2, 4],
    ),
    open=Key(
        either(Integer(1, 7), List(Integer(1, 7), 2, 2), Text(_SPAN)),
        "How many of them are open.",
        [1, 2],
        1,
    ),
    degree=Key(Integer(1), "The most states to which one state leads.", 3, otherwise="any number"),
    cycles=Key(
        Integer(), "The most independent cycles; 0 for schemes without.", 1, otherwise="any number"
    ),
    distance=Key(
        Integer(1), "The most transitions from a state to an open one.", 3, otherwise="any number"
    ),
    backbone=Key(
        List(Text("two states, such as C1 - O")),
        "Transitions that every scheme has. Names of open states begin with O, others with C; they "
        "tell these states apart and name none in the result.",
        ["C2 - C1", "C1 - O"],
        [],
    ),
    subunits=Key(
        Flag(),
        "Whether the backbone, one way from a closed state to an open one, is that of equal "
        "subunits: its rates are 4 a, 3 a, 2 a, a one way, and b, 2 b, 3 b, 4 b back.",
        True,
        False,
    ),
    reversible=Key(
        Flag(),
        "Whether rates keep microscopic reversibility: one rate of each cycle follows.",
        False,
        True,
    ),
    rate=Key(
        Expression("a rate, 1/ms"),
        "The rate of every transition. Each transition has its own of the `parameters` below, and "
        "shares all other names, which are those of the model.",
        "a",
        RATE,
    ),
    parameters=Key(
        Named(Within("parameter"), "parameter"),
        "The parameters that each transition has for itself.",
        {"a": {"range": [1e-4, 10], "unit": "1/ms", "scale": "log"}},
        PARAMETERS,
    ),
    voltage=Key(
        Choice(("all", "choose")),
        "Whether every rate `a*exp(z*v)` depends on the voltage, or each z is left out of full "
        "fits without which BIC is lower.",
        "choose",
        "all",
    ),
    scan=Key(Integer(1), "Points at which each scheme is scored at first.", 512, 256),
    starts=Key(Integer(1), "How many of them are refined.", 16, 8),
    keep=Key(
        Integer(1), "How many schemes, the best by BIC, are fitted until starts agree.", 20, 10
    ),
)

SECTIONS = (DISCOVER,)
