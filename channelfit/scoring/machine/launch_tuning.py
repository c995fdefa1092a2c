"""The fastest number of threads per block of a kernel on this GPU: measured once, remembered.

Occupancy does not decide it: Ben-Shalom et al. 2012 (figure 4) found the fastest blocks at less
than the highest occupancy. So `channelfit tune` measures.
"""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from channelfit.reading.errors import InputError
from channelfit.scoring.machine import gpu
from channelfit.scoring.machine.cache import cache_folder, keep, kept

#: The folder within the cache folder.
_KIND = "launches"


@dataclass(frozen=True)
class Launch:
    """The way in which a kernel is launched.

    Attributes:
        threads: threads per block.
        jobs: the number of jobs that share a candidate's work; None for the scorer's own choice.
    """

    threads: int
    jobs: int | None = None


@dataclass(frozen=True)
class Measured:
    """The measurement of one launch of one kernel.

    Attributes:
        kernel: its name.
        launch: its threads and jobs.
        seconds: duration of a whole score, inf where the GPU refuses the launch.
        occupancy: 0 .. 1, NaN where the GPU refuses the launch.
    """

    kernel: str
    launch: Launch
    seconds: float
    occupancy: float


class Tunable(ABC):
    """A scorer with launches that can be tuned."""

    source_hash: str

    @abstractmethod
    def launch_choices(self) -> Iterable[tuple[Any, ...]]:
        """Return the name and the legal threads per block of every kernel: (name, (32, 64, ..)).

        A third item, where there is one, holds the numbers of jobs into which it can be split.
        """

    @abstractmethod
    def timed_score(
        self,
        parameters: Any,
        threads: Mapping[str, int],
        jobs: Mapping[str, int] | None = None,
    ) -> float:
        """Return the median seconds on the device of a score of (n_parameters, n_candidates).

        threads, and jobs for kernels that have a choice of them (else not given), are by name
        of the kernel; a kernel that is not named runs as it would. `gpu.timed` measures.
        """

    @abstractmethod
    def launch_occupancy(self, kernel: str, threads: int) -> gpu.Occupancy:
        """Return how full a multiprocessor is with so many threads per block."""


def remembered(source_hash: str, device: str, kernel: str) -> Launch | None:
    """Return the fastest launch of a kernel that was found on a GPU; None if it was never tuned.

    Arguments:
        source_hash: of the generated text.
        device: the GPU's name, as in `gpu.device().name`.
        kernel: its name.
    """
    found = kept(_KIND, _key(source_hash, device, kernel))
    return None if found is None else Launch(**json.loads(found))


def remember(source_hash: str, device: str, kernel: str, launch: Launch) -> None:
    """Store the fastest launch of a kernel in the cache folder, where `remembered` finds it.

    Raises: InputError when the folder cannot be written to.
    """
    body = json.dumps(asdict(launch)).encode()
    if not keep(_KIND, _key(source_hash, device, kernel), body):
        raise InputError(
            "cannot be written to; set CHANNELFIT_CACHE to a folder that can", cache_folder()
        )


def tune(
    scorer: Tunable,
    parameters: Any,
    device: str | None = None,
    on_measured: Callable[[Measured], object] | None = None,
) -> list[Measured]:
    """Measure every legal launch of a scorer's kernels and remember the fastest of each.

    First the threads per block, then the number of jobs at the best of them; each kernel is
    measured with the best launches found for those before it.

    Arguments:
        parameters: (n_parameters, n_candidates), of the population that will be searched with.
        device: the name under which to remember; None for the current GPU.
        on_measured: called after each measurement.

    Returns: all that was measured.

    Raises: InputError when a kernel runs with no launch at all.
    """
    device = gpu.device().name if device is None else device
    rows: list[Measured] = []
    best: dict[str, Launch] = {}
    for kernel, threads, *more in scorer.launch_choices():
        own = [_measure(scorer, parameters, kernel, Launch(n), best, on_measured) for n in threads]
        fastest = min(own, key=lambda row: row.seconds)
        if more and math.isfinite(fastest.seconds):
            n = fastest.launch.threads
            own += [
                _measure(scorer, parameters, kernel, Launch(n, jobs), best, on_measured)
                for jobs in more[0]
            ]
            fastest = min(own, key=lambda row: row.seconds)
        if not math.isfinite(fastest.seconds):
            raise InputError(
                f'kernel "{kernel}" cannot run on {device} with any of '
                f"{', '.join(str(n) for n in threads)} threads a block; use --backend cpu"
            )
        best[kernel] = fastest.launch
        remember(scorer.source_hash, device, kernel, fastest.launch)
        rows += own
    return rows


def fastest(rows: Sequence[Measured], kernel: str) -> Measured:
    """Return the measurement of the kernel's launch that `tune` remembered."""
    return min((row for row in rows if row.kernel == kernel), key=lambda row: row.seconds)


def _measure(
    scorer: Tunable,
    parameters: Any,
    kernel: str,
    launch: Launch,
    best: Mapping[str, Launch],
    on_measured: Callable[[Measured], object] | None,
) -> Measured:
    launches = {**best, kernel: launch}
    threads = {name: one.threads for name, one in launches.items()}
    jobs = {name: one.jobs for name, one in launches.items() if one.jobs is not None}
    occupancy = math.nan
    try:
        seconds = scorer.timed_score(
            parameters, threads=threads, **({"jobs": jobs} if jobs else {})
        )
        occupancy = scorer.launch_occupancy(kernel, launch.threads).fraction
    except InputError:  # more registers or shared memory than there are: a result, not a failure
        seconds = math.inf
    row = Measured(kernel, launch, seconds, occupancy)
    if on_measured is not None:
        on_measured(row)
    return row


def _key(source_hash: str, device: str, kernel: str) -> str:
    return hashlib.sha256("\0".join((source_hash, device, kernel)).encode()).hexdigest()
