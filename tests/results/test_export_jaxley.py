"""The class for Jaxley: against this program's own currents, in Jaxley where it is installed."""

from __future__ import annotations

import json
import sys
import types
from typing import Any

import numpy as np
import pytest

from channelfit.model.model_file import build_model
from channelfit.reading.errors import InputError
from channelfit.results.export.kinds import exported
from channelfit.results.export.nmodl import ExportSettings
from support.exports import MODELS, WHOLE_CELL, exports, of, simulated, steps, subject
from support.term_models import DOCUMENTS, document
from support.truths import slow_but


def channel_of(text: str) -> Any:
    names: dict[str, Any] = {}
    exec(text, names)
    return next(
        c
        for c in names.values()
        if isinstance(c, type) and c is not names["Channel"] and issubclass(c, names["Channel"])
    )()


def by_class(channel: Any, area: str = "area") -> np.ndarray:
    """The current of the whole cell, pA, as Jaxley calls the class: (n_sweeps, n_times)."""
    protocol, rows = steps(), []
    params = {key: np.array([value]) for key, value in channel.channel_params.items()}
    for sweep in protocol.sweeps:
        x = channel.init_state({}, np.array([protocol.holding_mV]), params, 0.025)
        now, row = 0.0, []
        for s in sweep:
            v = np.array([s.wave.v_mV])  # type: ignore[union-attr]
            while len(row) * protocol.sampling_ms < s.end_ms - 1e-9:
                t = len(row) * protocol.sampling_ms
                x, now = {**x, **channel.update_states(x, t - now, v, params)}, t
                row.append(float(channel.compute_current(x, v, params)[0]))
            x, now = {**x, **channel.update_states(x, s.end_ms - now, v, params)}, s.end_ms
        rows.append(row)
    return np.array(rows) * channel.channel_params[f"{channel._name}_{area}"] / 0.1


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy in place of jax.numpy, and a base class as Jaxley's: enough for gates."""

    class Channel:
        def __init__(self, name: str | None) -> None:
            self._name = name or type(self).__name__

    for name, attributes in {
        "jax": {},
        "jax.numpy": vars(np),
        "jax.scipy": {},
        "jax.scipy.linalg": {"expm": None},
        "jaxley": {},
        "jaxley.channels": {"Channel": Channel},
    }.items():
        module = types.ModuleType(name)
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.usefixtures("stand_ins")
@pytest.mark.parametrize(
    "name", slow_but(["calcium"], ["rectified gates", "calcium", "gates and leak"])
)
def test_gates_carry_the_models_current(name: str) -> None:
    data = json.loads(json.dumps(document(name)).replace('"g"', '"area"'))
    found, model = of(data), build_model(data, None)
    own = simulated(model, model.values(), steps())
    channel = channel_of(exported(found, "jaxley", WHOLE_CELL))
    area = "area_" if "area" in found.values else "area"
    assert exports.apart(by_class(channel, area), own) < 1e-12


def test_the_size_of_the_cell_must_be_known() -> None:
    with pytest.raises(InputError, match="nothing says how large the cell was"):
        exported(subject("na_hh"), "jaxley", ExportSettings())


@pytest.fixture(scope="module")
def jax() -> Any:
    pytest.importorskip("jaxley", reason="Jaxley")
    jax = pytest.importorskip("jax")
    jax.config.update("jax_enable_x64", True)
    return jax


@pytest.mark.integration
@pytest.mark.parametrize("name", [*MODELS, *DOCUMENTS])
def test_the_class_carries_the_models_current(name: str, jax: Any) -> None:
    found = subject(name) if name in MODELS else of(document(name))
    model = build_model(found.document, MODELS.get(name))
    channel = channel_of(exported(found, "jaxley", WHOLE_CELL))
    for method in ("update_states", "compute_current", "init_state"):
        setattr(channel, method, jax.jit(getattr(channel, method)))
    own = simulated(model, model.values(), steps())
    assert exports.apart(by_class(channel), own) < 1e-9


@pytest.mark.integration
def test_jaxley_clamps_it_and_differentiates_it(jax: Any) -> None:
    """The whole way through a compartment, whose clamp moves the states before the voltage."""
    import jaxley as jx

    found = subject("model_b")
    channel = channel_of(exported(found, "jaxley", WHOLE_CELL))
    cell = jx.Compartment()
    cell.insert(channel)
    cell.set("v", -100.0)
    cell.init_states()
    cell.record("i_model_b", verbose=False)
    command = np.where(np.arange(400) < 200, -100.0, 20.0)
    cell.clamp("v", jax.numpy.asarray(command), verbose=False)
    cell.make_trainable("model_b_gmax", verbose=False)
    parameters = cell.get_parameters()

    def current(values: Any) -> Any:
        return jx.integrate(cell, params=values, delta_t=0.025)[0] * 2000.0 / 0.1

    module: dict[str, Any] = {}
    exec(exported(found, "python", ExportSettings()), module)
    own = np.array(module["simulate"]([(-100.0, 5.0), (20.0, 5.0)], 0.025, -100.0)[1])
    trace = np.asarray(current(parameters))
    apart = min(np.abs(trace[k : k + 395] - own[:395]).max() for k in range(3))
    assert apart < 1e-7 * np.abs(own).max()
    slope = jax.grad(lambda values: current(values).sum())(parameters)
    size = found.values["gmax"]
    assert float(slope[0]["model_b_gmax"][0]) == pytest.approx(trace.sum() / size, rel=1e-9)
