"""The keys of a file that describes a function: a cost, or outputs that are to meet data."""

from __future__ import annotations

from channelfit.reading.keys.fits import OPTIMIZER, SEED, SEEDS, START, STOP
from channelfit.reading.keys.models import DESCRIPTION, PARAMETER, SOURCE
from channelfit.reading.keys.shapes import (
    Choice,
    Expression,
    Flag,
    Integer,
    Key,
    Keys,
    List,
    Name,
    Named,
    NestedNumbers,
    Quantity,
    Rules,
    Text,
    Within,
    either,
)

#: The largest size of an array, and the most parameters of a function.
MAX_SIZE = 65_536
_SIZE = either(Integer(1, MAX_SIZE), Name())
_HEAD = r"\s*\w+\s*(\[[^\[\]]*\])?\s*"
_COLUMNS = Named(List(Text("the name of a column"), 1), "name")

FUNCTION = Keys(
    "function",
    "A file with a cost, or with outputs and data, describes a closed formula in place of a "
    "channel.",
    Rules(one=(("cost", "outputs"),), apart=(("cost", "data"),), needs={"outputs": ("data",)}),
    name=Key(Text(), "What the function is called.", "rastrigin", otherwise="the file's name"),
    description=DESCRIPTION,
    source=SOURCE,
    sizes=Key(Named(_SIZE, "size"), "Whole numbers by name, for the sizes of arrays.", {"n": 30}),
    parameters=Key(
        Named(Within("function parameter"), "parameter", least=1),
        "The numbers and arrays that a fit searches for.",
        {"x": {"size": "n", "range": [-5, 5]}},
        required=True,
    ),
    definitions=Key(
        Named(Expression("a number"), "definition", _HEAD),
        "Expressions that those below them use by name; `h[m, 1, n]` is an array whose index m "
        "runs from 1 to n.",
        {"h[m, 1, n]": "tanh(x[m])"},
    ),
    cost=Key(
        Expression("the cost"),
        "What is to become as small as it can.",
        "sum(x[i]**2, i, 1, n)",
    ),
    outputs=Key(
        Named(Expression("a number"), "output", _HEAD, 1),
        "What is compared with the targets, in every row of the data.",
        {"y": "a + b*x"},
    ),
    data=Key(
        Within("function data"),
        "The table of inputs and targets.",
        {"file": "data.csv", "inputs": {"x": "x"}, "targets": {"y": "y"}},
    ),
    fit=Key(Within("function fit"), "How to search.", {"seed": 1}, null=True),
)
FUNCTION_PARAMETER = Keys(
    "function parameter",
    "One number of a function, or an array of numbers.",
    size=Key(
        List(_SIZE),
        "The sizes of an array, each a whole number or the name of one.",
        ["n", 3],
        null=True,
        otherwise="a single number",
    ),
    range=Key(
        List(Quantity("none"), 2, 2),
        "The lower and the upper end within which the search looks.",
        [-5, 5],
        otherwise="needed, unless it is fixed",
    ),
    scale=PARAMETER["scale"],
    value=Key(
        NestedNumbers(),
        "A number for all, or nested lists of numbers in the shape of the array.",
        0.5,
        null=True,
    ),
    fixed=Key(Flag(), "Whether it keeps its value.", True, False),
    unit=Key(Text("a unit"), "The unit, which is printed and not computed with.", "mV", ""),
)
FUNCTION_DATA = Keys(
    "function data",
    "The data that the outputs of a function are to meet.",
    file=Key(
        Text("the path of a file"), "A table, relative to this file.", "data.csv", required=True
    ),
    inputs=Key(_COLUMNS, "The columns that expressions use, by name.", {"x": ["a", "b"]}),
    targets=Key(_COLUMNS, "The columns that each output is to meet.", {"y": "y"}, required=True),
    scale=Key(
        Choice(("none", "range")),
        "Whether residuals are taken as shares of the range of their target.",
        "range",
        "none",
    ),
)
FUNCTION_FIT = Keys(
    "function fit",
    "How to search.",
    name=Key(Text(), "The name of the run.", "first try", otherwise="the function's name"),
    description=DESCRIPTION,
    source=SOURCE,
    optimizer=OPTIMIZER,
    stop=STOP,
    seed=SEED,
    seeds=SEEDS,
    start=START,
)

SECTIONS = (FUNCTION, FUNCTION_PARAMETER, FUNCTION_DATA, FUNCTION_FIT)
