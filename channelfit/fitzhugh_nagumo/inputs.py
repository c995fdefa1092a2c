"""The equation, the cable, the state and the scheme from the options of `channelfit fhn`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from channelfit.fitzhugh_nagumo import equation as eq
from channelfit.fitzhugh_nagumo.adaptive import Adaptive
from channelfit.fitzhugh_nagumo.chebyshev import Chebyshev
from channelfit.fitzhugh_nagumo.crank_nicolson import CrankNicolson
from channelfit.fitzhugh_nagumo.cuda.adaptive import AdaptiveCuda
from channelfit.fitzhugh_nagumo.cuda.crank_nicolson import CrankNicolsonCuda
from channelfit.fitzhugh_nagumo.cuda.explicit import ExplicitCuda, RungeKuttaCuda
from channelfit.fitzhugh_nagumo.equation import Cable, Equation, Pulse
from channelfit.fitzhugh_nagumo.explicit import Explicit
from channelfit.fitzhugh_nagumo.runge_kutta import RungeKutta
from channelfit.fitzhugh_nagumo.scheme import Scheme
from channelfit.reading.errors import InputError
from channelfit.scoring.machine import gpu
from channelfit.scoring.machine.threads import usable_cores

#: With so many nodes or more, a GPU saves more time than it takes to start.
_ENOUGH_NODES = 100_000
#: The schemes by name.
NAMES = ("crank-nicolson", "chebyshev", "runge-kutta", "explicit", "adaptive")
#: The schemes among which `auto` chooses, and the error in time that it allows by default.
AUTO, AUTO_ERROR = ("runge-kutta", "chebyshev", "crank-nicolson"), 1e-4
#: The most values that one option may list as FROM:TO:COUNT.
_MOST_VALUES = 10_000


def _numbers(text: str, key: str) -> np.ndarray:
    """Return the numbers of a text such as 0.01,0.02 or 0.01:0.2:20, (n,); key names the option."""
    values: list[float] = []
    for part in text.split(","):
        pieces = part.split(":")
        try:
            if len(pieces) == 3 and 1 <= int(pieces[2]) <= _MOST_VALUES:
                values += np.linspace(float(pieces[0]), float(pieces[1]), int(pieces[2])).tolist()
            elif len(pieces) == 1:
                values.append(float(part))
            else:
                raise ValueError
        except ValueError:
            raise InputError(
                f'"{part}" is neither a number nor FROM:TO:COUNT (at most {_MOST_VALUES})', key=key
            ) from None
    return np.array(values)


def sweep(texts: dict[str, str], at_most: int = 1_000_000) -> Equation:
    """Return the equation with one cable for each combination of the values that the texts name.

    Arguments:
        texts: by the parameter's name, each as `_numbers` reads it.

    Raises:
        InputError: a text that holds no numbers, or more than `at_most` combinations.
    """
    rows = [_numbers(text, f"--{name}") for name, text in texts.items()]
    n_cables = int(np.prod([len(row) for row in rows]))
    if n_cables > at_most:
        raise InputError(f"{n_cables} combinations; at most {at_most} cables are solved together")
    grid = [axis.ravel() for axis in np.meshgrid(*rows, indexing="ij")]
    if n_cables == 1:
        return Equation(*(float(values[0]) for values in grid))
    return Equation(*grid)


def cable_of(nodes: int, dx: float, left: str, right: str, pulses: tuple[Pulse, ...]) -> Cable:
    """Return the cable; its ends are no_flux, periodic or a number.

    Raises:
        InputError: another text, or one that `Cable` refuses.
    """
    ends: list[Any] = []
    for name, text in (("--left", left), ("--right", right)):
        if text in ("no_flux", "periodic"):
            ends.append(text)
            continue
        try:
            ends.append(float(text))
        except ValueError:
            raise InputError(
                f'"{text}" is neither no_flux, periodic nor a number', key=name
            ) from None
    return Cable(nodes, dx, ends[0], ends[1], pulses)


def pulse(text: str) -> Pulse:
    """Return the stimulus that a text such as 0.5,x=0:5,t=10:12,every=100 describes.

    Raises:
        InputError: another text, or one that `Pulse` refuses.
    """
    amplitude, *rest = text.split(",")
    values: dict[str, float] = {}
    names = {"x": ("x_from", "x_to"), "t": ("start", "end"), "every": ("period",)}
    try:
        for part in rest:
            name, _, text_of = part.partition("=")
            keys, numbers = names[name.strip()], [float(n) for n in text_of.split(":")]
            values |= dict(zip(keys, numbers, strict=True))
        return Pulse(float(amplitude), **values)
    except (KeyError, ValueError) as error:
        if isinstance(error, InputError):
            raise error.at(key="--stimulus") from None
        raise InputError(
            f'"{text}" is not AMPLITUDE[,x=FROM:TO][,t=FROM:TO][,every=T]', key="--stimulus"
        ) from None


def state(text: str, equation: Equation, x: np.ndarray) -> tuple[Any, Any]:
    """Return v and w at t = 0 and the places x, (n_nodes,), from a named state or a file.

    Raises:
        InputError: another text, or a file that holds no state.
    """
    name, *texts = text.split(":")
    if name not in eq.NAMED_STATES:
        return eq.from_file(Path(text), x)
    try:
        numbers = [float(n) for n in texts]
        least, most = eq.NAMED_STATES[name]
        if not least <= len(numbers) <= most:
            raise ValueError
    except ValueError:
        raise InputError(
            f'"{text}" is not rest, gaussian:CENTER[:WIDTH[:HEIGHT]], step:AT[:HEIGHT] or '
            "front:CENTER",
            key="--initial",
        ) from None
    if name == "front":
        numbers.append(float(np.max(equation.diffusion)))
    return getattr(eq, name)(x, *numbers), 0.0


def schemes(
    names: Sequence[str],
    backend: str,
    dtype: str,
    equation: Equation,
    cable: Cable,
    noise: float,
    seed: int,
) -> list[Scheme]:
    """Return the schemes of these names, on the processor or on a GPU.

    Raises:
        InputError: options that a scheme does not offer, such as noise on a GPU.
    """
    if noise and tuple(names) != ("explicit",):
        raise InputError("noise is offered by the explicit scheme only", key="--noise")
    if backend == "cuda" and noise:
        raise InputError("noise runs on the processor only", key="--backend")
    if backend == "auto" and (noise or names == ("chebyshev",)):
        backend = "cpu"
    if backend == "auto":
        backend = "cuda" if _worth_a_gpu(equation, cable) else "cpu"
    if "chebyshev" in names and (backend == "cuda" or dtype != "float64"):
        if len(names) == 1:
            raise InputError(
                "the Chebyshev scheme runs on the processor only, in float64", key="--scheme"
            )
        names = [name for name in names if name != "chebyshev"]
    if dtype != "float64" and backend == "cpu":
        raise InputError("float32 is for a GPU: add --backend cuda", key="--dtype")
    if backend == "cuda":
        return [_on_a_gpu(name, dtype, equation, cable) for name in names]
    return [_on_the_processor(name, equation, cable, noise, seed) for name in names]


def _on_a_gpu(name: str, dtype: str, equation: Equation, cable: Cable) -> Scheme:
    if name == "adaptive":
        return AdaptiveCuda(equation, cable, dtype=dtype)
    if name == "crank-nicolson":
        return CrankNicolsonCuda(equation, cable, dtype)
    make = ExplicitCuda if name == "explicit" else RungeKuttaCuda
    return make(equation, cable, dtype)


def _on_the_processor(
    name: str, equation: Equation, cable: Cable, noise: float, seed: int
) -> Scheme:
    if name == "adaptive":
        return Adaptive(equation, cable)
    if name == "explicit":
        return Explicit(equation, cable, noise, seed, usable_cores())
    makes: dict[str, Callable[..., Scheme]] = {
        "runge-kutta": RungeKutta,
        "chebyshev": Chebyshev,
        "crank-nicolson": CrankNicolson,
    }
    return makes[name](equation, cable, n_threads=usable_cores())


def _worth_a_gpu(equation: Equation, cable: Cable) -> bool:
    return equation.n_cables * cable.n_nodes >= _ENOUGH_NODES and gpu.is_available()
