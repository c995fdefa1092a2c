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
        2: PathCosts(0.0, 0.0, 3.18e-07, 2.6e-05, 4.34e-06),
        3: PathCosts(1.76e-05, 1.76e-05, 4.13e-07, 4.59e-05, 3.74e-06),
        4: PathCosts(7.64e-05, 7.64e-05, 8.21e-07, 0.000146, 3.91e-06),
        5: PathCosts(1.51e-05, 1.51e-05, 1.07e-06, 0.000279, 4.32e-06),
        6: PathCosts(7.31e-05, 7.31e-05, 1.7e-06, 0.0007, 4.38e-06),
        7: PathCosts(0.000106, 0.000106, 1.92e-06, 0.000792, 4.85e-06),
        8: PathCosts(0.00114, 0.00114, 2.62e-06, 0.00157, 5.35e-06),
        9: PathCosts(0.00077, 0.00077, 3.82e-06, 0.00277, 5.7e-06),
        10: PathCosts(0.00116, 0.00116, 5.86e-06, 0.00479, 6.37e-06),
        12: PathCosts(0.0253, 0.0253, 4.55e-05, 0.02, 7.59e-06),
        14: PathCosts(0.06, 0.06, 3.79e-05, 0.0465, 1.05e-05),
        16: PathCosts(0.118, 0.118, 4.67e-05, 0.0961, 1.34e-05),
    },
    "cuda float32": {
        2: PathCosts(0.0, 0.0, 2.61e-07, 2.6e-05, 4.34e-06),
        3: PathCosts(0.0, 0.0, 2.49e-07, 4.59e-05, 3.74e-06),
        4: PathCosts(2.75e-05, 2.75e-05, 3.65e-07, 0.000146, 3.91e-06),
        5: PathCosts(8.8e-05, 8.8e-05, 4.62e-07, 0.000279, 4.32e-06),
        6: PathCosts(5.22e-05, 5.22e-05, 8.46e-07, 0.0007, 4.38e-06),
        7: PathCosts(0.000201, 0.000201, 9.49e-07, 0.000792, 4.85e-06),
        8: PathCosts(0.000293, 0.000293, 1.11e-06, 0.00157, 5.35e-06),
        9: PathCosts(0.000405, 0.000405, 1.28e-06, 0.00277, 5.7e-06),
        10: PathCosts(0.000712, 0.000712, 1.5e-06, 0.00479, 6.37e-06),
        12: PathCosts(0.0125, 0.0125, 1.12e-05, 0.02, 7.59e-06),
        14: PathCosts(0.0182, 0.0182, 7.96e-06, 0.0465, 1.05e-05),
        16: PathCosts(0.0282, 0.0282, 1.32e-05, 0.0961, 1.34e-05),
    },
}
