"""`fit_curves`: one formula fitted to many data sets in memory, for Python users."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from channelfit.curves.batch import CurveSettings
from channelfit.curves.curve import Curve, build_curve, load_curve
from channelfit.curves.curve_tasks import fit_curve
from channelfit.curves.data_files import with_sigma
from channelfit.curves.doubts import reasons_of
from channelfit.curves.fitting import CurveProblem, DataSets, cautions
from channelfit.curves.profiles import INTERVALS, chosen_intervals
from channelfit.front.fitting import workers
from channelfit.front.progress import WorkProgress, compilations_shown, screen_for
from channelfit.reading.errors import InputError, shown


@dataclass(frozen=True, eq=False)
class CurveFits:
    """Fits of one formula to many data sets: what `fit_curves` returns.

    Attributes:
        names, units: of the free parameters.
        intervals: (n_sets, n_free, 2) both ends of 95 % intervals.
        values, errors: (n_sets, n_free) parameters and their standard errors, NaN where none are.
        cost: (n_sets,) sum of squares of residuals, by `sigma` where that is given; twice the loss
            of SciPy's least_squares; or Poisson's deviance.
        quality, reason: of each data set "ok", "check" or "failed", and why.
        covariances: (n_sets, n_free, n_free), or None unless requested.

    Example:
        >>> import channelfit as cf
        >>> import numpy as np
        >>> t = np.linspace(0, 50, 40)
        >>> fits = cf.fit_curves("exponential", np.exp(-t / [[8.0], [12.0]]), t)
        >>> fits["tau"].round(6)
        array([ 8., 12.])
    """

    names: tuple[str, ...]
    units: tuple[str, ...]
    values: np.ndarray = field(repr=False)
    errors: np.ndarray = field(repr=False)
    cost: np.ndarray = field(repr=False)
    quality: tuple[str, ...] = field(repr=False)
    reason: tuple[str, ...] = field(repr=False)
    covariances: np.ndarray | None = field(default=None, repr=False)
    intervals: np.ndarray | None = field(default=None, repr=False)

    def __getitem__(self, name: str) -> np.ndarray:
        """Return the values of a parameter, (n_sets,). Raises KeyError for an unknown name."""
        if name not in self.names:
            raise KeyError(f"{name}; there is {', '.join(self.names)}")
        return np.asarray(self.values[:, self.names.index(name)])

    def __len__(self) -> int:
        return len(self.values)


def fit_curves(
    curve: str | os.PathLike[str] | Mapping[str, Any],
    data: Any,
    *inputs: Any,
    fix: Mapping[str, float] | None = None,
    likelihood: str | None = None,
    sigma: Any = None,
    loss: str | None = None,
    f_scale: float | None = None,
    method: str = "least-squares",
    covariances: bool = False,
    intervals: str = "t",
    seed: int = 0,
    backend: str = "auto",
    dtype: str = "float64",
    cluster: str | None = None,
    progress: bool | None = None,
) -> CurveFits:
    """Fit a formula to every data set of an array, each on its own, without guesses.

    Arguments:
        curve: a curve file, the name of a built-in curve, or a curve as plain data.
        data: (n_sets, n), or on a grid of inputs x and y (n_sets, n_y, n_x); NaN and what a masked
            array masks are left out.
        inputs: values of each input along its axis, that of the last axis first; by default
            0, 1, 2 ..
        fix: values at which parameters are held.
        likelihood: "gaussian" or "poisson"; by default the curve's.
        sigma: standard errors of the values, of the shape of `data` or of one data set. Only their
            ratios count for errors and intervals, as in SciPy's curve_fit.
        loss: "linear" or "soft_l1", under which outliers pull little; by default the curve's.
        f_scale: residual beyond which a point is far off for that loss, in the unit of the data,
            or in standard errors where `sigma` is given; by default the curve's, or 1 of these.
        method: "least-squares", or "swarm" for a particle swarm for each data set.
        covariances: whether these are computed beside the standard errors.
        intervals: "t" by Student's t, or "profile" for data sets to be checked by the profile
            likelihood; infinite where the data set no end.
        seed: of swarms.
        backend: "auto", "cpu" or "cuda".
        dtype: "float64", or "float32" on a GPU.
        cluster: where the data sets are fitted, as after ``--cluster``; this process without it.
        progress: whether to show the work; None shows it in notebooks and on terminals.

    Returns: `CurveFits`.

    Raises:
        InputError: what cannot be used, with what would be right.

    Example:
        >>> import channelfit as cf
        >>> import numpy as np
        >>> v = np.arange(-80.0, 45, 5)
        >>> data = 1 / (1 + np.exp((np.array([[-30.0], [-20.0]]) - v) / 7))
        >>> fits = cf.fit_curves("boltzmann", data, v, fix={"low": 0})
        >>> fits["half"].round(6)
        array([-30., -20.])
        >>> fits.quality
        ('ok', 'ok')
    """
    formula = (
        build_curve(curve, None) if isinstance(curve, Mapping) else load_curve(os.fspath(curve))
    )
    formula = formula.fitted_by(likelihood, loss, f_scale)
    formula = formula.with_fixed(dict(fix or {}))
    whole = _data_sets(formula, _array(data), inputs)
    if sigma is not None:
        whole = with_sigma(whole, _array(sigma))
    if not isinstance(seed, (int, np.integer)) or not 0 <= seed < 2**63:
        raise InputError(f"a seed is a whole number from 0 to 2**63 - 1, not {shown(seed)}")
    if intervals not in INTERVALS:
        raise InputError(f"intervals: {shown(intervals)} is not one of {', '.join(INTERVALS)}")
    settings = CurveSettings(backend, dtype, method, covariances, int(seed))
    with screen_for(formula.name, progress) as screen, compilations_shown(screen):
        screen.warn(cautions(formula, [whole], "data"))
        with workers(cluster, screen) as executor:
            screen.begin("fitting")
            counted = WorkProgress(screen, len(whole.values), "data sets")
            fits = fit_curve(formula, whole, settings, executor, lambda n: counted.done(count=n))
        problem = CurveProblem.of(formula, whole)
        judged = reasons_of(problem, fits)
        ends, _ = chosen_intervals(problem, fits, judged, intervals == "profile")
    return CurveFits(
        tuple(p.name for p in formula.free),
        tuple(p.unit for p in formula.free),
        fits.values,
        fits.errors,
        fits.cost,
        tuple(quality for quality, _ in judged),
        tuple(reason for _, reason in judged),
        fits.covariances,
        ends,
    )


def _data_sets(formula: Curve, values: np.ndarray, inputs: Sequence[Any]) -> DataSets:
    """Return data sets (n_sets, ..) with the values of their inputs. Raises InputError."""
    n_inputs = len(formula.inputs)
    if values.dtype.kind not in "fiub" or values.ndim != 1 + n_inputs or 0 in values.shape:
        grid = ", ".join(f"n_{name}" for name in reversed(formula.inputs))
        raise InputError(
            f"the curve {formula.name} wants numbers of shape (n_sets, {grid}), not "
            f"{values.dtype} of shape {values.shape}"
        )
    if len(inputs) > n_inputs:
        raise InputError(f"the curve {formula.name} has only {n_inputs} inputs, not {len(inputs)}")
    coordinates = {}
    for k, name in enumerate(formula.inputs):
        length = values.shape[-1 - k]
        at = np.arange(length) if k >= len(inputs) else _array(inputs[k])
        if at.shape != (length,) or at.dtype.kind not in "fiu" or not np.isfinite(at).all():
            raise InputError(f"input {name}: {length} finite numbers were expected")
        coordinates[name] = at.astype(np.float64)
    axes = tuple((name,) for name in formula.inputs)
    whole = DataSets(
        axes,
        coordinates,
        np.ascontiguousarray(values).reshape(len(values), -1),
        values.shape[1:],
    )
    if n_inputs > 2:
        whole = DataSets((formula.inputs,), whole.at_points, whole.values, whole.shape)
    return whole


def _array(given: Any) -> np.ndarray:
    """Return values as an array, NaN where they are masked. Raises InputError for uneven rows."""
    if isinstance(given, np.ma.MaskedArray) and given.dtype.kind in "fiub":
        return np.ma.filled(given.astype(np.float64), np.nan)
    try:
        return np.asarray(given)
    except ValueError:
        raise InputError("rows of different lengths; fill the shorter ones with NaN") from None
