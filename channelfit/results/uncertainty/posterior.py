"""The posterior: a random sample of all sets of parameters that the data allow, by Markov chains.

The prior is uniform over the unit cube, that is over each parameter's range or its logarithm. The
likelihood is that of Gaussian noise with the standard deviation and correlation time of the
estimate. An ensemble of walkers (Goodman and Weare 2010; emcee, Foreman-Mackey et al. 2013) is
moved together, so that half of them are scored in one call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from channelfit.reading.errors import InputError
from channelfit.results.uncertainty.estimate import LEVEL, Estimate
from channelfit.scoring.machine.arrays import to_host

INSTALL = 'python -m pip install "channelfit[sure]"'
#: The least length of a chain in autocorrelation times (as emcee advises).
LONG_ENOUGH = 50
#: The R-hat above which the walkers do not agree (Gelman et al. 2013).
AGREED = 1.05
#: Walkers start about the fit with a standard deviation of at most this share of every range.
_WIDEST = 0.1


@dataclass(frozen=True, eq=False)
class Posterior:
    """Samples of the posterior, burn-in removed and thinned.

    Attributes:
        names: of the free parameters.
        samples: (n_free, n_samples), base units.
        n_walkers, n_steps: the number of chains and their length.
        burn_in: steps at the beginning of every chain that were left out.
        autocorrelation: (n_free,) steps; NaN where a parameter never moved.
        r_hat: (n_free,) the halves of the walkers' chains compared with each other (Gelman and
            Rubin). Walkers of one ensemble are not quite independent, so it is a lower bound.
        acceptance: the share of proposed moves that were accepted.
        warnings: sentences on why the samples may not be trusted.
    """

    names: tuple[str, ...]
    samples: np.ndarray
    n_walkers: int
    n_steps: int
    burn_in: int
    autocorrelation: np.ndarray
    r_hat: np.ndarray
    acceptance: float
    warnings: tuple[str, ...]

    def interval(self, level: float = LEVEL) -> tuple[np.ndarray, np.ndarray]:
        """Return lower and upper ends (n_free,) of the central interval of each parameter."""
        tail = 50 * (1 - level)
        lower, upper = np.percentile(self.samples, [tail, 100 - tail], axis=1)
        return lower, upper

    @property
    def median(self) -> np.ndarray:
        """The median (n_free,) of each parameter, base units."""
        median: np.ndarray = np.median(self.samples, axis=1)
        return median


@dataclass(frozen=True, eq=False)
class Chains:
    """The chains of the walkers of one ensemble.

    Attributes:
        chain: (n_steps, n_walkers, n_free) in the unit cube.
        acceptance: the share of proposed moves that were accepted.
    """

    chain: np.ndarray
    acceptance: float


def sample_chains(
    found: Estimate,
    n_steps: int = 2000,
    n_walkers: int | None = None,
    seed: int = 0,
    on_step: Callable[[int], object] | None = None,
) -> Chains:
    """Move one ensemble of walkers about a fit.

    Arguments:
        n_steps: of every walker.
        n_walkers: an even number, at least twice the free parameters; None for four times as many,
            at least 32.
        seed: of all random numbers.
        on_step: called with the number of each step that is done.

    Raises: InputError if emcee is missing, or there are too few walkers.
    """
    try:
        import emcee  # an optional package
    except ImportError:
        raise InputError(f"a posterior needs emcee; {INSTALL} installs it") from None
    n = len(found.unit)
    n_walkers = n_walkers or max(32, 4 * n)
    if n_walkers < 2 * n or n_walkers % 2:
        raise InputError(
            f"{n_walkers} walkers cannot sample {n} parameters; an even number of {2 * n} or more "
            "can"
        )
    random = np.random.Generator(np.random.Philox(seed))
    moves = [
        (emcee.moves.DEMove(), 0.8),
        (emcee.moves.DESnookerMove(), 0.1),
        (emcee.moves.StretchMove(), 0.1),
    ]
    sampler = emcee.EnsembleSampler(
        n_walkers, n, lambda walkers: log_posterior(found, walkers.T), moves=moves, vectorize=True
    )
    sampler.random_state = np.random.RandomState(random.integers(2**32)).get_state()
    start = _starts(found, n_walkers, random)
    for k, _ in enumerate(sampler.sample(start, iterations=n_steps), 1):
        if on_step is not None:
            on_step(k)
    return Chains(sampler.get_chain(), float(np.mean(sampler.acceptance_fraction)))


def log_posterior(found: Estimate, unit: np.ndarray) -> np.ndarray:
    """Return the logarithm (n,) of the posterior density at points (n_free, n), 0 at the fit.

    It is -inf outside the unit cube and where a candidate fails.
    """
    inside = ((unit >= 0) & (unit <= 1)).all(axis=0)
    out = np.full(unit.shape[1], -np.inf)
    if inside.any():
        cost = to_host(found.objective.score(np.ascontiguousarray(unit[:, inside])).cost)
        out[inside] = -0.5 * found.chi_square(cost)
    return out


def _starts(found: Estimate, n_walkers: int, random: np.random.Generator) -> np.ndarray:
    """Place walkers (n_walkers, n_free) about the fit by its covariance, inside the cube.

    A walker that cannot be scored is drawn again, nearer to the fit.
    """
    values, vectors = np.linalg.eigh(found.covariance)
    spread = np.clip(np.sqrt(np.maximum(values, 0.0)), 1e-6, _WIDEST)
    n = len(found.unit)
    walkers = np.empty((n_walkers, n))
    left = np.arange(n_walkers)
    for k in range(12):
        draws = vectors @ (spread[:, None] * random.standard_normal((n, left.size))) / 2**k
        unit = np.clip(found.unit[:, None] + draws, 0.0, 1.0)
        # never exactly on a face: else all walkers could lie in one plane
        unit = np.clip(np.abs(unit - 1e-9 * random.random(unit.shape)), 0.0, 1.0)
        walkers[left] = unit.T
        left = left[~np.isfinite(log_posterior(found, unit))]
        if not left.size:
            return walkers
    raise InputError("around the fitted values nothing can be scored, so no chain can start")


def posterior_of(found: Estimate, ensembles: Sequence[Chains]) -> Posterior:
    """Join the chains of all ensembles, and check whether they have converged."""
    from emcee.autocorr import (
        integrated_time,
    )  # an optional package, which is there: it made the chains

    chain = np.concatenate([one.chain for one in ensembles], axis=1)
    n_steps = len(chain)
    burn_in = n_steps // 3
    kept = chain[burn_in:]
    times = integrated_time(kept, quiet=True, tol=0)
    r_hat = split_r_hat(kept)
    slowest = float(np.nanmax(times)) if np.isfinite(times).any() else float(len(kept))
    thin = max(int(slowest / 2), 1)
    flat = kept[::thin].reshape(-1, chain.shape[2]).T
    acceptance = float(np.mean([one.acceptance for one in ensembles]))
    rows = list(found.objective.space.free)
    return Posterior(
        found.names,
        found.objective.physical(flat)[rows],
        chain.shape[1],
        n_steps,
        burn_in,
        times,
        r_hat,
        acceptance,
        tuple(_doubts(len(kept), slowest, r_hat, acceptance)),
    )


def split_r_hat(chain: np.ndarray) -> np.ndarray:
    """Compare the spread of all halves of chains together with that of each half: (n_free,), 1 at
    best.

    Arguments:
        chain: (n_steps, n_walkers, n_free).

    Source: Gelman et al. 2013, Bayesian Data Analysis, section 11.4.
    """
    half = len(chain) // 2
    parts = np.concatenate([chain[:half], chain[half : 2 * half]], axis=1)
    within = parts.var(axis=0, ddof=1).mean(axis=0)
    between = parts.mean(axis=0).var(axis=0, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        r_hat: np.ndarray = np.sqrt((half - 1) / half + between / within)
    return r_hat


def _doubts(n_kept: int, slowest: float, r_hat: np.ndarray, acceptance: float) -> list[str]:
    """Return sentences on why a chain may not be trusted; none if it has converged."""
    doubts = []
    if n_kept < LONG_ENOUGH * slowest:
        enough = int(1.5 * LONG_ENOUGH * slowest)
        doubts.append(
            f"the chain is too short: it has {n_kept} steps after burn-in, and the slowest "
            f"parameter takes {slowest:.0f} to forget where it was; ask for about {enough} steps"
        )
    worst = float(np.nanmax(r_hat)) if np.isfinite(r_hat).any() else np.inf
    if not worst < AGREED:
        doubts.append(
            f"the walkers do not agree yet: R-hat is {worst:.3g} and should be below {AGREED}"
        )
    if acceptance < 0.1:
        doubts.append(f"only {100 * acceptance:.2g} % of the proposed moves were accepted")
    return doubts
