"""The Fisher information of a protocol, and its derivatives by voltages and durations.

With white noise of variance s^2 at one sample each dt, the information of the parameters is

    F = 1/(s^2 dt) * integral of S(t) S(t)^T dt,   S = dI/dtheta,

and every criterion is a function of F alone, or, where samples of the noise are correlated, of F
and of what `correlation` adds. A protocol is a sequence of pieces at constant
voltages. A long piece is cut into panels, each twice as long as the one before, because currents
change most after a step; the integral in a panel is Gauss's. The states and their derivatives by
parameters follow a linear equation, so that a panel takes them to its end by a matrix exponential
and its derivatives. The gradient by all voltages and durations at once comes from one walk
backward (the adjoint of Griewank and Walther 2008, chapter 3), with derivatives by the voltage of
a panel from imaginary parts, as in `derivatives`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from scipy.interpolate import CubicSpline

from channelfit.designs.correlation import products
from channelfit.designs.criteria import Criterion
from channelfit.designs.derivatives import STEP, Derived, derived, generators, scope_of
from channelfit.model.channel import Chain, ChannelModel
from channelfit.reading.errors import InputError

Array = np.ndarray
#: Derivatives by `volts`, `lengths` and `counted` of pieces.
Slopes: TypeAlias = tuple[Array, Array, Array]

#: Panels of a long piece: the first is a part 2^-12 of it, 0.1 ms of half a second.
_HALVINGS = 12
#: Nodes and weights of Gauss and Legendre in 0 .. 1.
_NODES, _WEIGHTS = (0.5 * part for part in np.polynomial.legendre.leggauss(3))
_NODES = _NODES + 0.5
#: Terms of the exponential's series, and the norm that it is good for.
_TERMS, _NORM = 14, 0.5


@dataclass(frozen=True, eq=False)
class Pieces:
    """A command voltage as pieces at constant voltages, sweep after sweep.

    Attributes:
        volts: (n_pieces + 1,) mV; the last is the holding potential, at whose steady state each
            sweep begins.
        lengths: (n_pieces,) ms.
        counted: (n_pieces,) ms of each piece whose samples count.
        long: (n_pieces,) whether a piece is cut into panels.
        first: (n_pieces,) whether a sweep begins.
        segment: (n_pieces,) the segment to which a piece belongs, of all sweeps.
    """

    volts: Array
    lengths: Array
    counted: Array
    long: Array
    first: Array
    segment: Array


@dataclass(frozen=True, eq=False)
class Source:
    """A channel whose current is recorded.

    Attributes:
        members: (n_parameters, n_members), an ensemble of parameter vectors, base units.
        free: names of the parameters in question; others are known.
        sign: the factor of its current.
    """

    model: ChannelModel
    members: Array
    free: Sequence[str] = ()
    sign: float = 1.0


class Informed:
    """Computes the information of protocols about channels that are recorded together.

    Arguments:
        sources: the channels.
        scales: (n_free, n_members): derivatives are multiplied by these; with the values themselves
            the information is that of logarithms.
        noise: pA, the standard deviation of a sample.
        sampling: ms between samples.
        factor: whether a factor of the whole current, which is 1, is in question, too, as the
            first parameter.
        correlation: of the noise, `summed_twice`; None where samples are independent.

    Raises:
        InputError: a gate without a time constant.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        scales: Array,
        noise: float,
        sampling: float,
        factor: bool = False,
        correlation: CubicSpline | None = None,
    ) -> None:
        for name in (c.name for s in sources for c in s.model.chains if c.instant):
            raise InputError(f"the gate {name} has no time constant (tau: 0); design needs one")
        self.sources, self.scales, self.factor = sources, scales, factor
        self.per_ms, self.correlation = 1.0 / (noise**2 * sampling), correlation

    def matrices(self, pieces: Pieces) -> tuple[Array, Array | None]:
        """Return the information of independent samples, and the covariance of the gradient.

        Both are (n_members, n_free, n_free); None for the second where the two are equal.
        """
        walk = _Walk(self, pieces, complex_step=False)
        return walk.information, walk.spread

    def shares(self, pieces: Pieces) -> Array:
        """Return the information of each piece on each parameter, (n_pieces, n_free, n_members).

        They add up to the diagonal of the information of independent samples.
        """
        walk = _Walk(self, pieces, complex_step=False)
        each = self.per_ms * walk.widths[:, None, None] * walk.y.swapaxes(0, 1) ** 2  # of cells
        found = np.zeros((len(pieces.lengths), *each.shape[1:]))
        np.add.at(found, np.repeat(walk.piece_of, len(_WEIGHTS)), each)
        return found

    def with_gradient(self, pieces: Pieces, criterion: Criterion) -> tuple[float, Slopes]:
        """Return a criterion of the information, and its derivatives by pieces."""
        walk = _Walk(self, pieces, complex_step=True)
        value, *slopes = criterion(walk.information, walk.spread)
        return value, walk.backward(*slopes)


class _ChainWalk:
    """A chain through all panels: states, rows at the nodes and exponentials.

    Arguments:
        value, by: its generators at the voltages of all pieces, and at the holding potential, the
            last, with their derivatives; real where no derivatives by voltages are taken.
        here: the places of the parameters by which these are.
    """

    def __init__(
        self, chain: Chain, value: Array, by: Array, here: Sequence[int], walk: _Walk
    ) -> None:
        self.value, self.by, self.here, self.walk = value, by, here, walk
        self.begins = _steady(value[:, -1], by[:, :, -1])
        self.ends, self.rows = _exponentials(
            value[:, :-1], by[:, :, :-1], np.array(chain.conductances), walk.pieces
        )
        # states and derivatives as panels begin, (panels, 1 + here, members, n)
        self.states = np.empty((len(self.ends), *self.begins.shape))
        z = self.begins.real
        for q, end in enumerate(self.ends.real):
            self.states[q] = z = self.begins.real if walk.begins[q] else z
            z = _through(end, z)
        z, r = self.states, self.rows
        # (panels, nodes, members), and in front of the members for derivatives
        self.open = np.einsum("qgmn,qmn->qgm", r[:, :, 0], z[:, 0])
        self.open_by = np.einsum("qgmn,qpmn->qgpm", r[:, :, 0], z[:, 1:])
        self.open_by += np.einsum("qgpmn,qmn->qgpm", r[:, :, 1:], z[:, 0])

    def backward(self, bar: Array, bar_by: Array) -> tuple[Array, Array, float]:
        """Return derivatives by the voltage and the length of each panel, and by holding.

        That by the voltage is through the states at later panels alone.

        Arguments:
            bar, bar_by: of the criterion by `open` and `open_by`, of their shapes.
        """
        z, real, panels = self.states, self.rows.real, self.walk.piece_of
        a = self.value.real.transpose(1, 0, 2, 3)[panels]
        d = self.by.real.transpose(2, 0, 1, 3, 4)[panels]
        rate = np.einsum("qmij,qpmj->qpmi", a, z)  # derivatives by time
        rate[:, 1:] += np.einsum("qpmij,qmj->qpmi", d, z[:, 0])
        # what the nodes of a panel give to the states at its start, and at its nodes
        given, at_nodes = (_given(real, bar * f, bar_by * f[..., None]) for f in (_ONES, _TIMES))
        by_v, by_length = np.zeros(len(z)), (at_nodes * rate).sum(axis=(1, 2, 3))
        end, end_v = self.ends.real, self.ends.imag / STEP
        later, begun = np.zeros(z.shape[1:]), np.zeros(z.shape[1:])
        for q in range(len(z) - 1, -1, -1):
            by_v[q] = (later * _through(end_v[q], z[q])).sum()
            by_length[q] += (later * _through(end[q], rate[q])).sum()
            before = (np.swapaxes(end[q, 0], -1, -2) @ later[..., None])[..., 0]
            others = np.swapaxes(end[q, 1:], -1, -2) @ later[1:][..., None]
            before[0] += others[..., 0].sum(axis=0)
            later = before + given[q]
            if self.walk.begins[q]:
                begun, later = begun + later, np.zeros(z.shape[1:])
        return by_v, by_length, float((begun * self.begins.imag).sum() / STEP)


_ONES, _TIMES = np.ones((3, 1)), _NODES[:, None]


def _given(rows: Array, bar: Array, bar_by: Array) -> Array:
    """Return derivatives by states and their derivatives, (panels, 1 + here, members, n)."""
    first = np.einsum("qgm,qgmn->qmn", bar, rows[:, :, 0])
    first += np.einsum("qgpm,qgpmn->qmn", bar_by, rows[:, :, 1:], optimize=True)
    others = np.einsum("qgpm,qgmn->qpmn", bar_by, rows[:, :, 0], optimize=True)
    return np.concatenate([first[:, None], others], axis=1)


def _through(end: Array, z: Array) -> Array:
    """Return states and derivatives (1 + here, members, n) taken through a panel."""
    moved: Array = (end[0] @ z[..., None])[..., 0]
    moved[1:] += (end[1:] @ z[0][..., None])[..., 0]
    return moved


def _exponentials(
    value: Array, by: Array, conductances: Array, pieces: Pieces
) -> tuple[Array, Array]:
    """Return exponentials of panels with derivatives, and rows of open probabilities at nodes.

    Arguments:
        value: generators (members, pieces, n, n).
        by: their derivatives (here, members, pieces, n, n).

    Returns:
        (panels, 1 + here, members, n, n) and (panels, nodes, 1 + here, members, n).
    """
    ends: list[Array] = [np.empty(0)] * len(pieces.lengths)
    rows: list[Array] = [np.empty(0)] * len(pieces.lengths)
    for long in (False, True):
        some = np.flatnonzero(pieces.long == long)
        if not len(some):
            continue
        times = pieces.lengths[some] * (2.0**-_HALVINGS if long else 1.0)
        parts = np.append(_NODES, 1.0)
        e, d = _dual_exponential(value[:, some], by[:, :, some], np.multiply.outer(parts, times))
        kept_ends, kept_rows = [], []
        for panel in range(_HALVINGS + 1 if long else 1):
            if panel >= 2:
                e, d = _squared(e, d)
            both = np.concatenate([e[None], d])  # 1 + here, parts, members, some, n, n
            kept_ends.append(both[:, -1])
            kept_rows.append(conductances @ both[:, :-1])
        for place, k in enumerate(some):
            ends[k] = np.array([end[:, :, place] for end in kept_ends])
            rows[k] = np.array([row[:, :, :, place].swapaxes(0, 1) for row in kept_rows])
    return np.concatenate(ends), np.concatenate(rows)


def _dual_exponential(a: Array, by: Array, times: Array) -> tuple[Array, Array]:
    """Return exp(a t) and its derivatives, by a series and squarings.

    Arguments:
        a: (members, pieces, n, n); by: (here, members, pieces, n, n); times: (parts, pieces).
    """
    t = times[:, None, :, None, None]
    size = float((np.abs(a.real).sum(axis=-2).max(axis=-1) * times.max(axis=0)).max(initial=0.0))
    halvings = max(0, int(np.ceil(np.log2(max(size, 1e-300) / _NORM))))
    x, dx = a * t * 2.0**-halvings, by[:, None] * (t * 2.0**-halvings)
    identity = np.eye(a.shape[-1])
    e, d = np.broadcast_to(identity, x.shape).astype(x.dtype), np.zeros_like(dx)
    for k in range(_TERMS, 0, -1):
        d = (dx @ e + x @ d) / k
        e = identity + x @ e / k
    for _ in range(halvings):
        e, d = _squared(e, d)
    return e, d


def _squared(e: Array, d: Array) -> tuple[Array, Array]:
    """Return the square of an exponential, and its derivatives.

    Its columns sum to 1, and those of derivatives to 0: what rounding adds to that would double
    with each of the many squarings that a stiff generator takes.
    """
    d, e = e @ d + d @ e, e @ e
    e = e / e.sum(axis=-2, keepdims=True)
    return e, d - e * d.sum(axis=-2, keepdims=True)


def _steady(a: Array, by: Array) -> Array:
    """Return the steady state and its derivatives, (1 + here, members, n).

    Arguments:
        a, by: generators (members, n, n), and their derivatives (here, members, n, n).
    """
    n = a.shape[-1]
    system = a.copy()
    system[:, -1] = 1.0  # in place of an equation that follows from the others
    right = np.zeros((len(a), n))
    right[:, -1] = 1.0
    state = np.linalg.solve(system, right[..., None])[..., 0]
    moved = -(by @ state[..., None])[..., 0]
    moved[..., -1] = 0.0
    slopes = np.linalg.solve(system[None], moved[..., None])[..., 0]
    return np.concatenate([state[None], slopes])


class _Walk:
    """One protocol: currents' derivatives at the nodes of all panels, and the way back."""

    def __init__(self, informed: Informed, pieces: Pieces, complex_step: bool) -> None:
        self.informed, self.pieces = informed, pieces
        counts = np.where(pieces.long, _HALVINGS + 1, 1)
        self.piece_of = np.repeat(np.arange(len(counts)), counts)
        self.begins = np.zeros(len(self.piece_of), bool)
        self.begins[(np.cumsum(counts) - counts)[pieces.first]] = True
        long = 2.0 ** -np.minimum(_HALVINGS, np.arange(_HALVINGS + 1, 0, -1))
        self.parts = np.concatenate([long if one else np.ones(1) for one in pieces.long])
        self.chains, row = list[_ChainWalk](), int(informed.factor)
        # of each term of the current its drive, and its chains with their powers
        self.terms = list[tuple[Derived, list[tuple[int, int]]]]()
        for source in informed.sources:
            places = {name: row + k for k, name in enumerate(source.free)}
            row += len(places)
            scope = scope_of(source.model, source.members, places, pieces.volts)
            first = len(self.chains)
            for chain in source.model.chains:
                value, by, here = generators(chain, scope)
                if not complex_step:
                    value, by = value.real, by.real
                self.chains.append(_ChainWalk(chain, value, by, here, self))
            for term in source.model.terms:
                one = derived(term.drive, scope, scope["v"].value.shape)
                signed = {k: source.sign * d for k, d in one.by.items()}
                powers = [(first + c, source.model.chains[c].power) for c in term.chains]
                self.terms.append((Derived(source.sign * one.value, signed), powers))
        self.slopes = self._slopes([chain.open for chain in self.chains], whole=True)
        # in cells, one a node: which part of it counts, its width in ms, and scaled derivatives
        self.whole = np.where(pieces.lengths > 0, pieces.lengths, np.inf)
        self.counts = (pieces.counted / self.whole)[self.piece_of][:, None, None]
        self.widths = np.outer(pieces.lengths[self.piece_of] * self.parts, _WEIGHTS).ravel()
        scaled = self.slopes.real * informed.scales[:, None, None]
        self.y = (scaled * self.counts).reshape(len(scaled), len(self.widths), -1)
        weighted = informed.per_ms * self.widths[:, None] * self.y
        self.information = np.einsum("icm,jcm->mij", weighted, self.y, optimize=True)
        self.spread: Array | None = None
        if informed.correlation is not None:
            begins = np.flatnonzero(self.begins) * len(_WEIGHTS)
            total, self.back = products(informed.correlation, self.y, self.widths, begins)
            self.spread = informed.per_ms * total

    def _at_nodes(self, values: Array) -> Array:
        """Return values (members, pieces + 1) as (panels, 1, members)."""
        return values.T[self.piece_of][:, None]

    def _slopes(self, opens: Sequence[Array], whole: bool = False) -> Array:
        """Return the derivatives of the current, (n_free, panels, nodes, members).

        Arguments:
            opens: of each chain, open probabilities (panels, nodes, members), complex where a
                derivative by one of them is taken.
            whole: whether all else has its derivatives by the voltage of the panel, too.
        """
        part = np.asarray if whole else np.real
        found = np.zeros((len(self.informed.scales), *opens[0].shape), dtype=complex)
        for drive, powers in self.terms:
            product = np.prod([opens[c] ** p for c, p in powers], axis=0)
            for k, d in drive.by.items():
                found[k] += self._at_nodes(part(d)) * product
            value = self._at_nodes(part(drive.value))
            if self.informed.factor:
                found[0] += value * product
            for place, (c, _) in enumerate(powers):
                rest = value * _rest(powers, place, opens)
                for row, k in enumerate(self.chains[c].here):
                    found[k] += rest * part(self.chains[c].open_by[:, :, row])
        return found

    def backward(self, slope: Array, of_spread: Array) -> Slopes:
        """Return derivatives of a criterion by the pieces.

        Arguments:
            slope, of_spread: of the criterion by the information and by the covariance of the
                gradient, (members, n_free, n_free), symmetric.
        """
        if self.spread is None:
            slope = slope + of_spread
        per_ms, panels = self.informed.per_ms, self.piece_of
        turned = per_ms * np.einsum("mij,jcm->icm", slope, self.y, optimize=True)
        by_y, by_widths = 2 * self.widths[:, None] * turned, (turned * self.y).sum(axis=(0, 2))
        if self.spread is not None:
            more = self.back(per_ms * of_spread)
            by_y, by_widths = by_y + more[0], by_widths + more[1]
        q = by_y.reshape(self.slopes.shape) * self.informed.scales[:, None, None]
        by_counts = (q * self.slopes.real).sum(axis=(0, 2, 3))
        q = q * self.counts
        by_v = (q * self.slopes.imag).sum(axis=(0, 2, 3)) / STEP
        by_length = by_widths.reshape(-1, len(_WEIGHTS)) @ _WEIGHTS
        by_holding = 0.0
        opens = [chain.open.real for chain in self.chains]
        for c, chain in enumerate(self.chains):
            moved = [o + 1j * STEP if k == c else o for k, o in enumerate(opens)]
            bar = (q * self._slopes(moved).imag / STEP).sum(axis=0)
            by_open = np.zeros(opens[c].shape)
            for drive, powers in self.terms:
                for place in [k for k, (other, _) in enumerate(powers) if other == c]:
                    by_open += self._at_nodes(drive.value.real) * _rest(powers, place, opens)
            bar_by = (q[list(chain.here)] * by_open).transpose(1, 2, 0, 3)
            own_v, own_length, own_holding = chain.backward(bar, bar_by)
            by_v, by_length = by_v + own_v, by_length + own_length
            by_holding += own_holding
        by_counted = np.bincount(panels, by_counts) / self.whole
        return (
            np.append(np.bincount(panels, by_v), by_holding),
            np.bincount(panels, by_length * self.parts)
            - by_counted * self.pieces.counted / self.whole,
            by_counted,
        )


def _rest(powers: Sequence[tuple[int, int]], place: int, opens: Sequence[Array]) -> Array:
    """Return the derivative of a product of powers by the open probability at one place."""
    c, p = powers[place]
    others = [opens[k] ** power for at, (k, power) in enumerate(powers) if at != place]
    rest: Array = np.prod([p * opens[c] ** (p - 1), *others], axis=0)
    return rest
