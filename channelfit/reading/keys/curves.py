"""The keys of a file that describes a curve: a formula that is fitted to many data sets."""

from __future__ import annotations

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
    Quantity,
    Text,
    Within,
    either,
)

#: The most inputs and the most parameters of a curve.
MAX_INPUTS, MAX_PARAMETERS = 4, 16
LIKELIHOODS, LOSSES = ("gaussian", "poisson"), ("linear", "soft_l1")

CURVE = Keys(
    "curve",
    "A curve z(x, y, ..; p), which `channelfit curves` fits to many data sets.",
    name=Key(Text(), "What the curve is called.", "boltzmann", otherwise="the file's name"),
    description=DESCRIPTION,
    source=SOURCE,
    inputs=Key(
        List(Name(), 1, MAX_INPUTS),
        "What the curve depends on, such as a voltage or two coordinates.",
        ["x", "y"],
        required=True,
    ),
    parameters=Key(
        Named(either(Within("curve parameter"), Text("nothing")), "parameter", least=1),
        "What is fitted to each data set. A parameter that enters linearly needs no range.",
        {"half": {"range": ["v_min", "v_max"]}},
        required=True,
    ),
    curve=Key(
        Expression("the value of the curve"),
        "The formula, of inputs and parameters.",
        "low + (high - low)/(1 + exp((half - v)/slope))",
        required=True,
    ),
    definitions=Key(
        Named(Expression("a number"), "definition"),
        "Expressions of inputs and parameters that the curve and other definitions use by name.",
        {"open": "1/(1 + exp((half - v)/slope))"},
    ),
    likelihood=Key(
        Choice(LIKELIHOODS),
        "How data scatter about the curve: all alike, or as counts do.",
        "poisson",
        "gaussian",
    ),
    loss=Key(
        Choice(LOSSES),
        "What a residual costs: its square, or under `soft_l1` less than that far off the curve, "
        "so that outliers pull little.",
        "soft_l1",
        "linear",
    ),
    f_scale=Key(
        Quantity("none"),
        "The residual beyond which `soft_l1` grows like the residual and no longer like its "
        "square: in the unit of the data, or in standard errors where points have them.",
        0.05,
        otherwise="1 with standard errors; needed without them",
    ),
    starts=Key(
        Integer(1),
        "How many minima of the scan are refined; the best one is kept. Two more are tried where a "
        "fit ends at a bound.",
        3,
        1,
    ),
    ordered=Key(
        List(Name()),
        "Parameters of which each is to stay below the next one, such as two time constants.",
        ["tau_fast", "tau_slow"],
    ),
)
CURVE_PARAMETER = Keys(
    "curve parameter",
    "One number of a curve, which each data set has for itself.",
    range=Key(
        List(either(Quantity("none"), Expression("a number", voltage=False)), 2, 2),
        "The lower and the upper end. An end may use, of every input x, its smallest and largest "
        "value x_min and x_max, their distance x_span, the smallest gap between two values x_step "
        "and the smallest value above zero x_positive.",
        ["x_min", "x_max"],
        otherwise="needed where the curve is no straight line in it",
    ),
    unit=Key(Text("a unit"), "The unit, which is printed and not computed with.", "mV", ""),
    scale=PARAMETER["scale"],
    value=Key(Quantity("none"), "The value of a parameter that is fixed.", 0.5),
    fixed=Key(Flag(), "Whether it keeps its value.", True, False),
    scan=Key(
        Integer(1),
        "How many of its values are tried when a start is looked for.",
        24,
        otherwise="as many as all parameters together afford",
    ),
)

SECTIONS = (CURVE, CURVE_PARAMETER)
