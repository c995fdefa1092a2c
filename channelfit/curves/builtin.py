"""Curves that are known by name, as their files would say them."""

from __future__ import annotations

from typing import Any

BUILT_IN: dict[str, dict[str, Any]] = {
    "boltzmann": {
        "description": "Activation or inactivation against voltage; low and high are its ends",
        "inputs": "v",
        "parameters": {
            "half": {"range": ["v_min - v_span/4", "v_max + v_span/4"], "scan": 24},
            "slope": {"range": ["v_span/200", "v_span"], "scale": "log", "scan": 12},
            "low": {},
            "high": {},
        },
        "curve": "low + (high - low)/(1 + exp((half - v)/slope))",
    },
    "exponential": {
        "description": "A relaxation from offset + amplitude at t = 0 to offset",
        "inputs": "t",
        "parameters": {
            "offset": {},
            "amplitude": {},
            "tau": {"range": ["t_step/5", "20*t_span"], "scale": "log"},
        },
        "curve": "offset + amplitude*exp(-t/tau)",
    },
    "double_exponential": {
        "description": "Two relaxations, a fast and a slow one",
        "inputs": "t",
        "parameters": {
            "offset": {},
            "fast": {},
            "tau_fast": {"range": ["t_step/5", "5*t_span"], "scale": "log", "scan": 24},
            "slow": {},
            "tau_slow": {"range": ["t_step/5", "20*t_span"], "scale": "log", "scan": 24},
        },
        "ordered": ["tau_fast", "tau_slow"],
        "starts": 3,
        "curve": "offset + fast*exp(-t/tau_fast) + slow*exp(-t/tau_slow)",
    },
    "hill": {
        "description": "Effect against concentration, from bottom to top",
        "inputs": "x",
        "parameters": {
            "bottom": {},
            "top": {},
            "half": {"range": ["x_positive/10", "10*x_max"], "scale": "log", "scan": 24},
            "hill": {"range": [0.1, 12], "scale": "log", "scan": 8},
        },
        "curve": "bottom + (top - bottom)*"
        "(0 if x <= 0 else 1/(1 + exp(hill*(log(half) - log(x)))))",
    },
    "gaussian": {
        "description": "A peak of one input; width is its standard deviation",
        "inputs": "x",
        "parameters": {
            "offset": {},
            "amplitude": {},
            "width": {"range": ["x_step/4", "x_span"], "scale": "log", "scan": 10},
            "center": {"range": ["x_min", "x_max"], "scan": 24},
        },
        "curve": "offset + amplitude*exp(-((x - center)/width)**2/2)",
    },
    "gaussian_2d": {
        "description": "An elliptic peak in an image, its axes along those of the image",
        "source": "R. T. Kneusel 2012, curve fitting by particle swarms on graphics processors",
        "inputs": ["x", "y"],
        "parameters": {
            "offset": {},
            "amplitude": {},
            "width_x": {"range": ["x_step/3", "x_span"], "scale": "log", "scan": 3},
            "width_y": {"range": ["y_step/3", "y_span"], "scale": "log", "scan": 3},
            "center_x": {"range": ["x_min", "x_max"], "scan": 4},
            "center_y": {"range": ["y_min", "y_max"], "scan": 4},
        },
        "curve": "offset + amplitude*exp(-(((x - center_x)/width_x)**2"
        " + ((y - center_y)/width_y)**2)/2)",
    },
}
