"""Uncertainty of a fit, and comparison of several schemes: for Python users and the commands."""

from __future__ import annotations

import html
import importlib.util
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from channelfit.front import kinds
from channelfit.front.progress import PythonScreen, WorkProgress, compilations_shown, screen_for
from channelfit.front.result import Fit, parameter_table, read_fit, standard_errors
from channelfit.front.table import table_of
from channelfit.reading import memory
from channelfit.reading.errors import InputError
from channelfit.reading.files import write_text
from channelfit.results import comparison
from channelfit.results.files import fit_file, make_folder
from channelfit.results.report.terminal import SearchScreen
from channelfit.results.run_state import json_text
from channelfit.results.run_summary import titles
from channelfit.results.uncertainty.assessment import (
    Assessment,
    assess,
    judge,
)
from channelfit.results.uncertainty.estimate import Estimate
from channelfit.results.uncertainty.families import (
    FitFamily,
    families,
    good_fits,
)
from channelfit.results.uncertainty.posterior import INSTALL, Posterior
from channelfit.results.uncertainty.profiles import Profile, profiles
from channelfit.results.uncertainty.summary import profile_table, summary_of, table_text
from channelfit.results.uncertainty.uncertainty_tasks import (
    UncertaintyTasks,
    profiler,
    sample_posterior,
)
from channelfit.scoring.scorer import ChannelScorer, Scorer, make_scorer
from channelfit.search.fit_tasks import FitTasks
from channelfit.search.plan import FitPlan
from channelfit.search.saved_fit import fit_document, saved_text
from channelfit.tasks.executor import Executor
from channelfit.tasks.result_store import ResultStore

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: A cost this much lower than before refining is worth a file of its own.
_REFINED = 1 - 1e-4
#: Steps of the walkers between two reports of progress.
_STEPS = 50


@dataclass(frozen=True)
class StudyRequest:
    """The parts of a study beside the standard errors.

    Attributes:
        profiles: names of parameters, "all" among them for every one; none for no profiles.
        families: starts of the search for other fits, 0 for no search.
        steps: of the posterior, 0 for none; walkers: how many, None for four a parameter.
        seed: of starts and walkers.
        ensembles: of walkers, each with a seed of its own.
    """

    profiles: tuple[str, ...] = ()
    families: int = 0
    steps: int = 0
    walkers: int | None = None
    seed: int = 0
    ensembles: int = 1


@dataclass(frozen=True, eq=False)
class Computation:
    """The executor and the store of the tasks of a study, its profiles and chains.

    Attributes:
        fit: the base of their tasks.
        executor: computes them; None for this process.
        store: where their results are stored; None for nowhere.
    """

    fit: FitTasks
    executor: Executor | None = None
    store: ResultStore | None = None


class Uncertainty:
    """The uncertainty of a fit, as `channelfit.uncertainty` returns it.

    Attributes:
        summary: all numbers as plain data, as in ``uncertainty.json``.
        profiles: a `Profile` for each requested parameter.
        families: other fits as good as this one, in families that no path of good fits connects.
        posterior: samples of the posterior of all parameters, or None.

    Example:
        >>> import channelfit as cf
        >>> sure = cf.uncertainty("models/model_b.yaml", profiles="gmax", progress=False)
        >>> (profile,) = sure.profiles
        >>> profile.lower < 5.0 < profile.upper
        True
        >>> sure.undetermined
        []
    """

    def __init__(
        self,
        plan: FitPlan,
        judged: Assessment,
        found_profiles: Sequence[Profile],
        found_families: Sequence[FitFamily],
        posterior: Posterior | None,
    ) -> None:
        self._plan, self._judged = plan, judged
        self.profiles, self.families = tuple(found_profiles), tuple(found_families)
        self.posterior = posterior
        found = summary_of(plan, judged, found_profiles, found_families, posterior)
        content = {**titles(plan), **found}
        self.summary: dict[str, Any] = json.loads(json_text(content))

    @property
    def parameters(self) -> Any:
        """A row a parameter: value, unit, standard error, 95 % interval, range.

        A DataFrame where pandas is installed, else a `Table`. The values are those of the refined
        fit.
        """
        return parameter_table(self.summary["parameters"])

    @property
    def errors(self) -> dict[str, float | None]:
        """Standard errors by parameter, in base units; None for a fixed parameter."""
        return standard_errors(self.summary["parameters"])

    @property
    def undetermined(self) -> list[str]:
        """The parameters and combinations that are not identifiable, a sentence each."""
        return [row["text"] for row in self.summary["uncertainty"]["undetermined"]]

    @property
    def remarks(self) -> list[str]:
        """The assumptions behind the standard errors, in words."""
        return list(self.summary["uncertainty"]["remarks"])

    def plot(self) -> Figure:
        """Draw the intervals of all parameters and their correlations; `save` draws the rest."""
        from channelfit.front.pictures import shown_in_notebooks  # loads Matplotlib
        from channelfit.results.report import uncertainty_figures as pictures

        return shown_in_notebooks(pictures.intervals_figure(self._judged.estimate, self._plan.name))

    def save(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write ``uncertainty.json``, and pictures and tables of what was requested.

        ``refined.yaml`` is written too, if refining made the fit better.

        Returns: the files. Raises: InputError if the folder cannot be written.
        """
        from channelfit.results.report import plots  # these load Matplotlib
        from channelfit.results.report import uncertainty_figures as pictures

        folder, found, name = Path(folder), self._judged.estimate, self._plan.name
        make_folder(folder)
        drawn = [("uncertainty.png", pictures.intervals_figure(found, name))]
        tables = []
        if self.profiles:
            figure = pictures.profiles_figure(found, self.profiles, f"{name}: profiles")
            drawn.append(("profiles.png", figure))
            tables.append(("profiles.csv", profile_table(found, self.profiles)))
        if self.families:
            title = f"{name}: equally good fits"
            drawn.append(("families.png", pictures.families_figure(found, self.families, title)))
        if self.posterior is not None:
            figure = pictures.posterior_figure(found, self.posterior, f"{name}: posterior")
            drawn.append(("posterior.png", figure))
            names, samples = self.posterior.names, self.posterior.samples
            tables.append(("posterior.csv", table_text(names, samples.T)))
        tables += self._refined(folder)
        tables.append(("uncertainty.json", json_text(self.summary)))
        for file, figure in drawn:
            plots.save(figure, folder / file)
        for file, text in tables:
            write_text(folder / file, text)
        return [folder / file for file, _ in (tables[-1], *drawn, *tables[:-1])]

    def _refined(self, folder: Path) -> list[tuple[str, str]]:
        """Return the refined fit as a file, if it is better and its data are in files."""
        found, before = self._judged.estimate, self._judged.refined_from
        in_files = not (self._plan.surrogate or self._plan.in_memory)
        if not in_files or not before or found.cost >= before * _REFINED:
            return []
        values = found.objective.physical(found.unit[:, None])[:, 0]
        return [("refined.yaml", saved_text(fit_document(self._plan, values, folder)))]

    def __repr__(self) -> str:
        return f"<Uncertainty of {self._plan.name}: {len(self.undetermined)} not identifiable>"

    def _repr_html_(self) -> str:
        lines = "\n".join([*self.undetermined, *self.remarks])
        return f"{self.parameters._repr_html_()}<pre>{html.escape(lines)}</pre>"


def uncertainty(
    fit: Fit | str | os.PathLike[str],
    *,
    profiles: str | Sequence[str] = (),
    families: int = 0,
    posterior: int = 0,
    walkers: int | None = None,
    ensembles: int = 1,
    seed: int = 0,
    progress: bool | None = None,
) -> Uncertainty:
    """Estimate the uncertainty of fitted values, and find parameters that are not identifiable.

    The values are refined by least squares first. Standard errors and intervals come from the
    Gauss-Newton Hessian of the cost and the noise in the residuals.

    Arguments:
        fit: a `Fit`, a run folder, or a file with a fit section and values.
        profiles: names of parameters for which to compute profile likelihoods, or "all".
        families: from how many starts to look for other fits as good as this one.
        posterior: how many steps each walker takes to sample the posterior.
        walkers: how many walkers; four a parameter and at least 32 by default.
        ensembles: how many independent ensembles of so many walkers; they show whether they agree.
        seed: of starts and walkers.
        progress: whether to show the work; None shows it in notebooks and on terminals.

    Returns: an `Uncertainty`.

    Raises:
        InputError: an unknown parameter, a backend without derivatives, a package that is missing.

    Example:
        >>> import channelfit as cf
        >>> found = cf.uncertainty("models/model_b.yaml", progress=False)
        >>> found.errors["gmax"] > 0
        True
    """
    own = fit if isinstance(fit, Fit) else read_fit(fit)
    names = (profiles,) if isinstance(profiles, str) else tuple(profiles)
    request = StudyRequest(names, families, posterior, walkers, seed, ensembles)
    with screen_for(own.name, progress) as screen, compilations_shown(screen):
        return study(own._plan, own._scorer, own._result.values, request, screen)


def study(
    fit: FitPlan,
    scorer: Scorer,
    values: np.ndarray,
    request: StudyRequest,
    screen: SearchScreen | None = None,
    computation: Computation | None = None,
) -> Uncertainty:
    """Assess a fit, and compute what is requested.

    Arguments:
        values: (n_parameters,), base units.
        screen: shows what is being done now, and how much of it is done; None for nothing.
        computation: of profiles and chains; None for this process.

    Raises: InputError if the backend has no derivatives, a name is unknown, something is missing.
    """
    screen = screen or PythonScreen(fit.name)
    kinds.with_currents(fit)
    if scorer.dtype != "float64":
        scorer = make_scorer(fit.problem, scorer.backend)
    if not isinstance(scorer, ChannelScorer):
        raise InputError(
            f"backend {scorer.backend} has no derivatives for this; --backend cpu has them"
        )
    check_request(fit, request)
    screen.begin("refining the fit")
    judged = assess(fit, scorer, values, finish=True)
    if computation is None:
        path, objective = scorer.path or "auto", judged.estimate.objective
        computation = Computation(FitTasks(fit, scorer.backend, scorer.dtype, path, {}, objective))
    found_profiles: list[Profile] = []
    if places := _places(judged.estimate, request.profiles):
        found, found_profiles = _profiles(judged.estimate, places, screen, computation)
        if found is not judged.estimate:
            judged = judge(found, judged.refined_from)
    found_families: list[FitFamily] = []
    if request.families:
        screen.begin(f"refining {request.families} other starts")
        starts = good_fits(judged.estimate, request.families, request.seed)
        found_families = families(judged.estimate, *starts)
    posterior = _posterior(judged.estimate, request, screen, computation) if request.steps else None
    return Uncertainty(fit, judged, found_profiles, found_families, posterior)


def _profiles(
    found: Estimate, places: Sequence[int], screen: SearchScreen, computation: Computation
) -> tuple[Estimate, list[Profile]]:
    """Compute profiles of the free parameters at these places; see `profiles` for the result."""

    def begin(n: int) -> Callable[[str], object]:
        return WorkProgress(screen, n, "profiles").done

    def on_profile(name: str) -> None:
        screen.begin(f"profile of {name}")

    screen.begin(f"profiles of {len(places)} parameters")
    each = profiler(computation.fit, computation.executor, computation.store, begin)
    return profiles(found, places, None if computation.executor else on_profile, each)


def _posterior(
    found: Estimate, request: StudyRequest, screen: SearchScreen, computation: Computation
) -> Posterior:
    """Sample the posterior by the requested ensembles and steps."""
    steps, ensembles = request.steps, request.ensembles
    alone = computation.executor is None and ensembles == 1
    many = f"{ensembles} ensembles of the posterior, {steps} steps each"
    screen.begin("sampling the posterior" if alone else many)
    walked = WorkProgress(screen, steps, "steps of each walker") if alone else None

    def on_step(k: int) -> None:
        if walked is not None and k % _STEPS == 0:
            walked.done(count=_STEPS)

    tasks = UncertaintyTasks.of(
        computation.fit,
        found=found,
        steps=steps,
        walkers=request.walkers,
        seed=request.seed,
        on_step=on_step,
    )
    return sample_posterior(tasks, ensembles, computation.executor, computation.store)


def check_request(fit: FitPlan, request: StudyRequest) -> None:
    """Raise InputError where a study lacks a package, memory or a parameter of that name."""
    _check_installed(request)
    _check_memory(fit, request)
    known = [p.name for p in fit.problem.parameters if not p.fixed]
    for name in request.profiles if known and "all" not in request.profiles else ():
        if name not in known:
            raise InputError(_no_profile(name, known))


def _no_profile(name: str, known: Sequence[str]) -> str:
    return f'no free parameter "{name}" to profile. There is: {", ".join(known)}, or all'


def _check_installed(request: StudyRequest) -> None:
    """Raise InputError if a package is missing, before anything takes long."""
    for package in ("emcee", "corner") if request.steps else ():
        if importlib.util.find_spec(package) is None:
            raise InputError(f"this needs {package}; {INSTALL} installs it")


def _check_memory(fit: FitPlan, request: StudyRequest) -> None:
    """Raise InputError if memory is short for traces, distances of families or steps of walkers."""
    n = fit.space.n_free
    fit.problem.check_memory(1, fit.file)
    each = 24 * n * n + 8 * request.families  # a Hessian, and how far each is from every other
    memory.check(request.families, each, "starts", key="families")
    walkers = request.ensembles * (request.walkers or max(32, 4 * n))
    memory.check(request.steps, 24 * n * walkers, "steps of all walkers", key="posterior")


def _places(found: Estimate, names: Sequence[str]) -> list[int]:
    if "all" in names:
        return list(range(len(found.names)))
    for name in names:
        if name not in found.names:
            raise InputError(_no_profile(name, found.names))
    return [found.names.index(name) for name in names]


# --- compare -----------------------------------------------------------------------------------


class Comparison:
    """Several schemes on the same data: what `channelfit.compare` returns.

    Attributes:
        summary: all numbers as plain data, as in ``comparison.json``.

    Example:
        >>> import channelfit as cf
        >>> found = cf.compare(*["models/model_b.yaml"] * 2, as_is=True, progress=False)
        >>> found.table["free_parameters"].tolist()
        [9, 9]
    """

    def __init__(self, compared: Sequence[comparison.ComparedFit]) -> None:
        self._compared = tuple(compared)
        content = {
            "fits": comparison.as_plain(compared),
            "remarks": comparison.remarks(compared),
            "warnings": list(dict.fromkeys(str(w) for c in compared for w in c.fit.cautions)),
        }
        self.summary: dict[str, Any] = json.loads(json_text(content))

    @property
    def table(self) -> Any:
        """A row a fit: cost, free parameters, differences of AIC and BIC, and weights.

        The weights tell how likely each scheme is the best of them. A DataFrame where pandas is
        installed, else a `Table`.
        """
        columns = (
            "cost",
            "free_parameters",
            "samples",
            "aic_difference",
            "aic_weight",
            "bic_difference",
            "bic_weight",
        )
        return table_of({row["label"]: row for row in self.summary["fits"]}, columns)

    @property
    def remarks(self) -> list[str]:
        """The assumptions behind the criteria, in words."""
        return list(self.summary["remarks"])

    def plot(self) -> Figure:
        """Return data and all fits of every experiment; a figure of Matplotlib.

        Where there are recordings it shows these, else what was observed; `save` draws both.
        """
        from channelfit.front.pictures import shown_in_notebooks  # loads Matplotlib

        return shown_in_notebooks(self._figures()[0])

    def _figures(self) -> list[Figure]:
        title = ", ".join(c.label for c in self._compared)
        title = title if len(title) < 70 else f"{len(self._compared)} fits"
        return comparison.comparison_figures(self._compared, title)

    def save(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write ``comparison.json`` and ``comparison.png``, and return them.

        Observations beside recordings are drawn in ``comparison_curves.png``.

        Raises: InputError when the folder cannot be written.
        """
        from channelfit.results.report import plots  # loads Matplotlib

        folder = Path(folder)
        make_folder(folder)
        names = ("comparison.png", "comparison_curves.png")
        written = [folder / "comparison.json"]
        write_text(written[0], json_text(self.summary))
        for name, figure in zip(names, self._figures(), strict=False):
            written.append(folder / name)
            plots.save(figure, written[-1])
        return written

    def __repr__(self) -> str:
        best = min(self._compared, key=lambda c: c.aic)
        return f"<Comparison of {len(self._compared)} fits; the best by AIC is {best.label}>"

    def _repr_html_(self) -> str:
        return f"{self.table._repr_html_()}<pre>{html.escape(chr(10).join(self.remarks))}</pre>"


def compare(
    *fits: Fit | str | os.PathLike[str],
    as_is: bool = False,
    backend: str = "auto",
    progress: bool | None = None,
) -> Comparison:
    """Compare fits of different schemes to the same data.

    Cost, parameters, and the information criteria of Akaike and Schwarz: differences to the best,
    and how likely each scheme is the best. Experiments with weight 0 were held out of the fits, and
    are predicted here.

    Arguments:
        fits: two or more, each a `Fit`, a run folder or a fit file with values.
        as_is: take the values as they are; else least squares refines them first.
        backend: what computes: auto, reference, cpu or cuda.
        progress: whether to show the work; None shows it in notebooks and on terminals.

    Returns: a `Comparison`.

    Raises:
        InputError: fewer than two fits, or fits of different data.

    Example:
        >>> import channelfit as cf
        >>> model = cf.Model.load("models/model_b.yaml")
        >>> steps = cf.Protocol.load("protocols/activation.yaml")
        >>> cell = cf.Experiment(steps, cf.simulate(model, steps).current)
        >>> one, other = (cf.fit(model, cell, seed=s, progress=False) for s in (1, 2))
        >>> len(cf.compare(one, other, progress=False).table)
        2
    """
    plans, names = [], []
    for given in fits:
        if isinstance(given, Fit):
            plans.append(given._plan.with_values(given._result.values))
            names.append(given.name)
        else:
            file = fit_file(Path(given))
            plans.append(kinds.load_plan(file, backend=backend))
            names += comparison.file_names([file])
    labels = comparison.distinct_labels(names)
    with screen_for("comparison", progress) as screen, compilations_shown(screen):
        return compare_plans(plans, labels, backend, as_is, screen.begin)


def compare_plans(
    fits: Iterable[FitPlan],
    labels: Sequence[str],
    backend: str,
    as_is: bool,
    begin: Callable[[str], object] = lambda stage: None,
) -> Comparison:
    """Return a comparison of plans with values; see `compare`."""
    checked = (kinds.with_currents(fit, "nothing to compare") for fit in fits)
    found = comparison.score_fits(
        checked, labels, backend, as_is, lambda label: begin(f"fit {label}")
    )
    return Comparison(found)
