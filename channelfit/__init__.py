"""channelfit: kinetic models of ion channels, fitted to voltage-clamp recordings.

What stands in `__all__` is public: it keeps its meaning from one minor version to the next, and a
change is announced in the changelog. Everything else may change at any time.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from channelfit.front.batches import Batch as Batch
    from channelfit.front.batches import fit_batch as fit_batch
    from channelfit.front.cable import fhn as fhn
    from channelfit.front.cells import CellSimulation as CellSimulation
    from channelfit.front.cells import cell as cell
    from channelfit.front.curves import CurveFits as CurveFits
    from channelfit.front.curves import fit_curves as fit_curves
    from channelfit.front.designing import Design as Design
    from channelfit.front.designing import design as design
    from channelfit.front.discoveries import Discovery as Discovery
    from channelfit.front.discoveries import discover as discover
    from channelfit.front.experiments import Experiment as Experiment
    from channelfit.front.fitting import fit as fit
    from channelfit.front.importing import import_model as import_model
    from channelfit.front.progress import InputWarning as InputWarning
    from channelfit.front.result import Fit as Fit
    from channelfit.front.result import export as export
    from channelfit.front.result import load as load
    from channelfit.front.simulation import Simulation as Simulation
    from channelfit.front.simulation import simulate as simulate
    from channelfit.front.studies import Comparison as Comparison
    from channelfit.front.studies import Uncertainty as Uncertainty
    from channelfit.front.studies import compare as compare
    from channelfit.front.studies import uncertainty as uncertainty
    from channelfit.model.model import Model as Model
    from channelfit.problem.protocol import Protocol as Protocol
    from channelfit.problem.recording import Recording as Recording
    from channelfit.reading.errors import InputError as InputError
    from channelfit.search.cost import Cost as Cost
    from channelfit.search.optimizer import Optimizer as Optimizer

__version__ = "0.1.0"

#: Public names and where they live. Loaded when first used, so that `channelfit --help` is quick.
_PUBLIC = {
    "Batch": "front.batches",
    "CellSimulation": "front.cells",
    "Comparison": "front.studies",
    "Cost": "search.cost",
    "CurveFits": "front.curves",
    "Design": "front.designing",
    "Discovery": "front.discoveries",
    "Experiment": "front.experiments",
    "Fit": "front.result",
    "InputError": "reading.errors",
    "InputWarning": "front.progress",
    "Model": "model.model",
    "Optimizer": "search.optimizer",
    "Protocol": "problem.protocol",
    "Recording": "problem.recording",
    "Simulation": "front.simulation",
    "Uncertainty": "front.studies",
    "cell": "front.cells",
    "compare": "front.studies",
    "design": "front.designing",
    "discover": "front.discoveries",
    "export": "front.result",
    "fhn": "front.cable",
    "fit": "front.fitting",
    "fit_batch": "front.batches",
    "fit_curves": "front.curves",
    "import_model": "front.importing",
    "load": "front.result",
    "simulate": "front.simulation",
    "uncertainty": "front.studies",
}
__all__ = [
    "Batch",
    "CellSimulation",
    "Comparison",
    "Cost",
    "CurveFits",
    "Design",
    "Discovery",
    "Experiment",
    "Fit",
    "InputError",
    "InputWarning",
    "Model",
    "Optimizer",
    "Protocol",
    "Recording",
    "Simulation",
    "Uncertainty",
    "__version__",
    "cell",
    "compare",
    "design",
    "discover",
    "export",
    "fhn",
    "fit",
    "fit_batch",
    "fit_curves",
    "import_model",
    "load",
    "simulate",
    "uncertainty",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'channelfit' has no attribute {name!r}")
    return getattr(importlib.import_module(f"channelfit.{_PUBLIC[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
