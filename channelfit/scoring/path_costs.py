"""What the ways to a score cost, measured; `choose_path` takes the least."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class PathCosts:
    """Microseconds a candidate of a linear chain takes.

    Attributes:
        visit, stiff_visit, sample: of stepping, for each visit of a voltage, at ordinary rates and
            at ones 10,000 times as fast, and each scored sample.
        modes: of the closed form, for each visit.
        moment: of a Chebyshev moment.
        resolvents: of all moments of resolvents of a run; inf where there are none.
    """

    visit: float
    stiff_visit: float
    sample: float
    modes: float
    moment: float
    resolvents: float = math.inf


#: By backend and precision, and by states. `benchmarks/path_costs.py` prints this table from the
#: results of `benchmarks/states.py`; a CPU's are those of one core.
COSTS: dict[str, dict[int, PathCosts]] = {
    "cpu": {
        2: PathCosts(0.0209, 0.0219, 7.39e-05, 0.0177, 0.00154, 0.196),
        3: PathCosts(0.0478, 0.0707, 9.62e-05, 0.0294, 0.00141, 0.257),
        4: PathCosts(0.0835, 0.108, 0.000126, 0.112, 0.0016, 0.269),
        5: PathCosts(0.112, 0.217, 0.000178, 0.251, 0.00206, 0.295),
        6: PathCosts(0.188, 0.339, 0.000236, 0.458, 0.00161, 0.38),
        7: PathCosts(0.278, 0.46, 0.000283, 0.622, 0.00214, 0.331),
        8: PathCosts(0.375, 0.642, 0.000329, 0.833, 0.00192, 0.356),
        9: PathCosts(0.567, 0.961, 0.000391, 1.17, 0.00215, 0.394),
        10: PathCosts(0.748, 1.28, 0.000482, 1.62, 0.00233, 0.424),
        12: PathCosts(1.29, 2.44, 0.000691, 2.86, 0.00294, 0.507),
        14: PathCosts(3.04, 4.45, 0.00144, 4.76, 0.0044, 0.605),
        16: PathCosts(4.16, 7.51, 0.0025, 8.67, 0.00547, 0.758),
    },
    "cuda float64": {
        2: PathCosts(0.0, 0.0, 3.15e-07, 2.69e-05, 4.89e-06, 0.000555),
        3: PathCosts(0.0, 0.0, 4.74e-07, 4.66e-05, 3.34e-06, 0.000628),
        4: PathCosts(0.0, 2e-05, 9.44e-07, 0.000147, 3.68e-06, 0.000708),
        5: PathCosts(0.0, 8.7e-05, 1.12e-06, 0.000281, 3.88e-06, 0.000816),
        6: PathCosts(1.27e-05, 0.000192, 1.84e-06, 0.000709, 4.25e-06, 0.000897),
        7: PathCosts(0.000122, 0.00042, 1.97e-06, 0.000802, 4.93e-06, 0.000954),
        8: PathCosts(0.00136, 0.00349, 2.62e-06, 0.00159, 5.24e-06, 0.00106),
        9: PathCosts(0.000854, 0.00152, 3.78e-06, 0.00279, 5.23e-06, 0.00116),
        10: PathCosts(0.00158, 0.00259, 5.68e-06, 0.00478, 6.23e-06, 0.00128),
        12: PathCosts(0.0338, 0.046, 5.48e-05, 0.0196, 6.96e-06, 0.00153),
        14: PathCosts(0.0816, 0.113, 5.48e-05, 0.045, 8.63e-06, 0.00207),
        16: PathCosts(0.161, 0.317, 6.52e-05, 0.116, 1.12e-05, 0.00251),
    },
    "cuda float32": {
        2: PathCosts(0.0, 0.0, 2.58e-07, 2.69e-05, 4.89e-06, 0.000555),
        3: PathCosts(0.0, 7.38e-07, 2.61e-07, 4.66e-05, 3.34e-06, 0.000628),
        4: PathCosts(1.93e-05, 4.33e-05, 3.85e-07, 0.000147, 3.68e-06, 0.000708),
        5: PathCosts(8.24e-05, 0.000143, 4.73e-07, 0.000281, 3.88e-06, 0.000816),
        6: PathCosts(6.15e-05, 0.000192, 8.56e-07, 0.000709, 4.25e-06, 0.000897),
        7: PathCosts(0.000174, 0.000261, 1e-06, 0.000802, 4.93e-06, 0.000954),
        8: PathCosts(0.000344, 0.000538, 1.14e-06, 0.00159, 5.24e-06, 0.00106),
        9: PathCosts(0.000521, 0.000802, 1.29e-06, 0.00279, 5.23e-06, 0.00116),
        10: PathCosts(0.000839, 0.00115, 1.5e-06, 0.00478, 6.23e-06, 0.00128),
        12: PathCosts(0.018, 0.0215, 1.09e-05, 0.0196, 6.96e-06, 0.00153),
        14: PathCosts(0.021, 0.0335, 8.37e-06, 0.045, 8.63e-06, 0.00207),
        16: PathCosts(0.0321, 0.0518, 1.72e-05, 0.116, 1.12e-05, 0.00251),
    },
}
