"""Checks, before the work begins, whether a run fits into memory."""

from __future__ import annotations

from channelfit.reading.errors import InputError
from channelfit.reading.memory import SHARE, available, size

#: Arrays of one number a node that a scheme on the processor needs beside the frames, at most:
#: v and w, their copies while steps are tried, earlier states of the step control.
_ARRAYS = 20


def check_host(n_frames: int, n_cables: int, n_nodes: int) -> None:
    """Refuse frames of v and w that the memory of this machine cannot hold.

    Raises:
        InputError: with the memory needed, the free memory, and options that need less.
    """
    needed = 8 * n_cables * n_nodes * (2 * n_frames + _ARRAYS)
    _check(needed, available(), f"{n_frames} frames of ", n_cables, n_nodes, "this machine")


def check_device(bytes_a_node: int, free: int, n_cables: int, n_nodes: int) -> None:
    """Refuse cables that the memory of a GPU cannot hold.

    Arguments:
        bytes_a_node: the memory that a run takes. free: bytes that are not in use.

    Raises:
        InputError: with the memory needed, the free memory, and options that need less.
    """
    _check(n_cables * n_nodes * bytes_a_node, free, "", n_cables, n_nodes, "the GPU")


def _check(
    needed: int, free: int | None, frames: str, n_cables: int, n_nodes: int, where: str
) -> None:
    if free is None or needed <= SHARE * free:
        return
    cables = "a cable" if n_cables == 1 else f"{n_cables:,} cables"
    less = "fewer --frames or --nodes" if frames else "fewer --nodes"
    less += "" if n_cables == 1 else " or fewer cables at once"
    raise InputError(
        f"{frames}{cables} of {n_nodes:,} nodes need {size(needed)}, and {where} has "
        f"{size(free)} free; give {less}",
        key="memory",
    )
