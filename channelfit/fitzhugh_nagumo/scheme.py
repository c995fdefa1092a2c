"""The base class of all schemes, with the methods that a run calls; threads that share work."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from channelfit.fitzhugh_nagumo.equation import Array, Cable, Equation, longest_stable_step


class Scheme:
    """A way to advance v and w of one or many cables in time.

    A scheme implements `advance`, and `largest_step` unless its steps are those of forward Euler.
    The other methods do nothing special here and are for schemes with an internal state beside v
    and w, or on a GPU. There v and w are arrays of the device: `put` makes one, and `take` brings
    it back.
    """

    name: str
    equation: Equation
    cable: Cable
    dtype = "float64"
    #: The steps under one stimulus may be divided into calls of so many steps each, and the bits
    #: stay the same; infinite where they would not.
    steps_at_once: float = math.inf
    #: Whether the scheme computes on a GPU.
    on_device = False

    def largest_step(self, v: Array) -> float:
        """Return the longest step that is allowed for a state v, (n_cables, n_nodes).

        By default it is that of forward Euler.
        """
        return longest_stable_step(self.equation, self.cable, v)

    def advance(
        self, v: Array, w: Array, dt: float, n_steps: int, drive: Array | None = None
    ) -> tuple[Array, Array]:
        """Make n_steps steps of length dt under one stimulus.

        Arguments:
            v, w: (n_cables, n_nodes). drive: (n_nodes,) the mean stimulus of these steps.

        Returns: the new v and w.
        """
        raise NotImplementedError

    def restart(self) -> None:
        """Set the internal state to that before the first step."""

    def internal_state(self) -> dict[str, np.ndarray]:
        """Return the arrays that a later run needs, beside v and w, to go on, by name."""
        return {}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Set the internal state to one that the same scheme has returned earlier."""

    def failed(self) -> bool:
        """Return whether a step has failed on the device since the last call."""
        return False

    def facts(self) -> Mapping[str, float]:
        """Return numbers about a finished run, by name."""
        return {}

    def put(self, values: Array) -> Any:
        """Return the state (n_cables, n_nodes) as `advance` takes it."""
        return np.asarray(values)

    def take(self, values: Any) -> Array:
        """Return the state that `advance` returned, as a NumPy array of float64."""
        return np.asarray(values)

    def check_memory(self, n_cables: int, controlled: bool) -> None:
        """Refuse cables that do not fit into the memory of the device.

        Arguments:
            controlled: whether steps are controlled, which takes more memory.

        Raises:
            InputError: with the memory needed, the free memory, and options that need less.
        """


class Workers:
    """Threads that share the jobs of a kernel."""

    def __init__(self, n_threads: int) -> None:
        self.n_threads = n_threads
        self._pool = ThreadPoolExecutor(n_threads)

    def share(self, run: Callable[..., Any], n_jobs: int, *arguments: Any) -> list[Any]:
        """Call run(first, last, *arguments) for parts of the jobs 0 .. n_jobs - 1.

        Returns: the results of the calls, in the order of the jobs.
        """
        parts = min(4 * self.n_threads, n_jobs) if self.n_threads > 1 else 1
        if parts == 1:
            return [run(0, n_jobs, *arguments)]
        edges = np.linspace(0, n_jobs, parts + 1).astype(int).tolist()

        def part(first: int, last: int) -> Any:
            return run(first, last, *arguments)

        return list(self._pool.map(part, edges[:-1], edges[1:]))
