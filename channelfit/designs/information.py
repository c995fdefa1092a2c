"""The Fisher information of a protocol, and its derivatives by voltages and durations.

With white noise of variance s^2 at one sample each dt, the information of the parameters is

    F = 1/(s^2 dt) * integral of S(t) S(t)^T dt,   S = dI/dtheta,

and every criterion is a function of F alone. A protocol is a sequence of pieces at constant
voltages. A long piece is cut into panels, each twice as long as the one before, because currents
change most after a step; the integral in a panel is Gauss's. The states and their derivatives by
parameters follow a linear equation, so that a panel takes them to its end by a matrix exponential
and its derivatives. The gradient by all voltages and durations at once comes from one walk
backward (the adjoint of Griewank and Walther 2008, chapter 3); the derivative of an exponential by
its voltage is the imaginary part at a voltage moved by an imaginary step, exact to rounding
(Martins et al. 2003, doi:10.1145/838250.838251).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from channelfit.designs.criteria import Criterion
from channelfit.designs.derivatives import Derivatives, Generators
from channelfit.model.channel import ChannelModel
from channelfit.reading.errors import InputError

Array = np.ndarray

#: Panels of a long piece: the first is a part 2^-12 of it, 0.1 ms of half a second.
_HALVINGS = 12
#: Nodes and weights of Gauss and Legendre in 0 .. 1.
_NODES, _WEIGHTS = (0.5 * part for part in np.polynomial.legendre.leggauss(3))
_NODES = _NODES + 0.5
_STEP = 1e-40  # of voltages, imaginary
#: Terms of the exponential's series, and the norm that it is good for.
_TERMS, _NORM = 14, 0.5


@dataclass(frozen=True, eq=False)
class Pieces:
    """A command voltage as pieces at constant voltages, in their order.

    Attributes:
        volts: (n_pieces,) mV.
        lengths: (n_pieces,) ms.
        long: (n_pieces,) whether a piece is cut into panels.
        counted: (n_pieces,) whether its samples count.
        holding: mV, whose steady state is the start.
    """

    volts: Array
    lengths: Array
    long: Array
    counted: Array
    holding: float


class Informed:
    """Computes the information of protocols about a model.

    Arguments:
        free: names of the parameters in question; others are known.
        members: (n_parameters, n_members), an ensemble of parameter vectors, base units.
        scales: (n_free, n_members): derivatives are multiplied by these; with the values themselves
            the information is that of logarithms.
        noise: pA, the standard deviation of a sample.
        sampling: ms between samples.

    Raises:
        InputError: a gate without a time constant.
    """

    def __init__(
        self,
        model: ChannelModel,
        free: Sequence[str],
        members: Array,
        scales: Array,
        noise: float,
        sampling: float,
    ) -> None:
        for chain in model.chains:
            if chain.instant:
                raise InputError(
                    f"the gate {chain.name} has no time constant (tau: 0); design needs one"
                )
        self.model, self.scales = model, scales
        self.derivatives = Derivatives(model, free, members)
        self.per_ms = 1.0 / (noise**2 * sampling)
        self.n_free, self.n_members = len(free), members.shape[1]

    def matrices(self, pieces: Pieces) -> Array:
        """Return the information (n_members, n_free, n_free)."""
        walk = _Walk(self, pieces, complex_step=False)
        found: Array = walk.information
        return found

    def shares(self, pieces: Pieces) -> Array:
        """Return how much each piece tells of each parameter, (n_pieces, n_free, n_members).

        They add up to the diagonal of the information.
        """
        walk = _Walk(self, pieces, complex_step=False)
        each = np.einsum("qg,iqgm->qim", walk.weights, walk.scaled**2)
        found = np.zeros((len(pieces.volts), *each.shape[1:]))
        np.add.at(found, walk.piece_of, each)
        return found

    def with_gradient(self, pieces: Pieces, criterion: Criterion) -> tuple[float, Array, Array]:
        """Return a criterion, and its derivatives by voltages and lengths, (n_pieces,) each.

        Arguments:
            criterion: of the information.
        """
        walk = _Walk(self, pieces, complex_step=True)
        value, slope = criterion(walk.information)
        return (value, *walk.backward(slope))


class _ChainWalk:
    """A chain through all panels: states, rows at the nodes and exponentials.

    Arguments:
        a: its generators at the voltages of all pieces, and at the holding potential.
        conductances: of its states.
        walk: of the protocol.
    """

    def __init__(self, a: Generators, conductances: Array, walk: _Walk) -> None:
        self.a, self.walk = a, walk
        step = 1j * _STEP if walk.complex_step else 0.0
        value, by = a.value + step * a.by_v, a.by + step * a.by_both
        n = len(walk.pieces.volts)  # the last voltage is the holding potential
        self.ends, self.rows = _exponentials(value[:, :n], by[:, :, :n], conductances, walk.pieces)
        self.states = self._walked()
        z, r = self.states, self.rows.real
        # (panels, nodes, members), and in front of the members for derivatives
        self.open = np.einsum("qgmn,qmn->qgm", r[:, :, 0], z[:, 0])
        self.open_by = np.einsum("qgmn,qpmn->qgpm", r[:, :, 0], z[:, 1:])
        self.open_by += np.einsum("qgpmn,qmn->qgpm", r[:, :, 1:], z[:, 0])

    def _walked(self) -> Array:
        """Return states and derivatives as panels begin, (panels, 1 + here, members, n)."""
        start = _steady(self.walk.held(self.a))
        found = np.empty((len(self.ends), *start.shape))
        z = start
        ends = self.ends.real
        for q in range(len(ends)):
            found[q] = z
            z = _through(ends[q], z)
        return found

    def backward(self, bar: Array, bar_by: Array) -> tuple[Array, Array]:
        """Return derivatives by the voltage and the length of each panel, (panels,) each.

        Arguments:
            bar, bar_by: of the criterion by `open` and `open_by`, of their shapes.
        """
        z, ends, rows = self.states, self.ends, self.rows
        a = self.a.value.transpose(1, 0, 2, 3)[self.walk.piece_of]
        d = self.a.by.transpose(2, 0, 1, 3, 4)[self.walk.piece_of]
        rate = np.einsum("qmij,qpmj->qpmi", a, z)  # derivatives by time
        rate[:, 1:] += np.einsum("qpmij,qmj->qpmi", d, z[:, 0])
        by_v, by_length = np.zeros(len(ends)), np.zeros(len(ends))
        slopes = rows.imag / _STEP
        for out, row, states, factor in (
            (by_v, slopes, z, np.ones(len(_NODES))),
            (by_length, rows.real, rate, _NODES),
        ):
            value = bar * factor[:, None]
            value_by = bar_by * factor[:, None, None]
            out += np.einsum("qgm,qgmn,qmn->q", value, row[:, :, 0], states[:, 0], optimize=True)
            out += np.einsum(
                "qgpm,qgmn,qpmn->q", value_by, row[:, :, 0], states[:, 1:], optimize=True
            )
            out += np.einsum(
                "qgpm,qgpmn,qmn->q", value_by, row[:, :, 1:], states[:, 0], optimize=True
            )
        # what the nodes of a panel give to the states at its start
        real = rows.real
        given = np.empty(z.shape)
        given[:, 0] = np.einsum("qgm,qgmn->qmn", bar, real[:, :, 0])
        given[:, 0] += np.einsum("qgpm,qgpmn->qmn", bar_by, real[:, :, 1:], optimize=True)
        given[:, 1:] = np.einsum("qgpm,qgmn->qpmn", bar_by, real[:, :, 0], optimize=True)
        end, end_v = ends.real, ends.imag / _STEP
        later = np.zeros(z.shape[1:])
        for q in range(len(ends) - 1, -1, -1):
            by_v[q] += (later * _through(end_v[q], z[q])).sum()
            by_length[q] += (later * _through(end[q], rate[q])).sum()
            before = (np.swapaxes(end[q, 0], -1, -2) @ later[..., None])[..., 0]
            before[0] += (np.swapaxes(end[q, 1:], -1, -2) @ later[1:][..., None])[..., 0].sum(
                axis=0
            )
            later = before + given[q]
        return by_v, by_length


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
    ends: list[Array] = [np.empty(0)] * len(pieces.volts)
    rows: list[Array] = [np.empty(0)] * len(pieces.volts)
    for long in (False, True):
        some = np.flatnonzero(pieces.long == long)
        if not len(some):
            continue
        times = pieces.lengths[some] * (2.0**-_HALVINGS if long else 1.0)
        parts = np.append(_NODES, 1.0)
        e, d = _dual_exponential(value[:, some], by[:, :, some], np.multiply.outer(parts, times))
        count = _HALVINGS + 1 if long else 1
        kept_ends, kept_rows = [], []
        for panel in range(count):
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


def _steady(held: tuple[Array, Array]) -> Array:
    """Return the steady state and its derivatives, (1 + here, members, n).

    Arguments:
        held: the generators at the holding potential, (members, n, n), and their derivatives
            (here, members, n, n).
    """
    a, by = held
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
        self.informed, self.pieces, self.complex_step = informed, pieces, complex_step
        counts = np.where(pieces.long, _HALVINGS + 1, 1)
        self.piece_of = np.repeat(np.arange(len(counts)), counts)
        long = 2.0 ** -np.minimum(_HALVINGS, np.arange(_HALVINGS + 1, 0, -1))
        parts = [long if is_long else np.ones(1) for is_long in pieces.long]
        self.parts = np.concatenate(parts)
        model, derivatives = informed.model, informed.derivatives
        volts = np.append(pieces.volts, pieces.holding)
        scope = derivatives.scope(volts)
        self.drives = derivatives.drives(scope)
        self.generators = [derivatives.generators(chain, scope) for chain in model.chains]
        self.chains = [
            _ChainWalk(a, np.array(chain.conductances), self)
            for a, chain in zip(self.generators, model.chains, strict=True)
        ]
        counted = np.where(pieces.counted, pieces.lengths, 0.0)[self.piece_of] * self.parts
        self.weights = informed.per_ms * np.multiply.outer(counted, _WEIGHTS)
        slopes = self._slopes([chain.open for chain in self.chains])
        self.scaled = slopes * informed.scales[:, None, None]
        weighted = self.weights[None, :, :, None] * self.scaled
        self.information = np.einsum("iqgm,jqgm->mij", weighted, self.scaled, optimize=True)

    def held(self, a: Generators) -> tuple[Array, Array]:
        """Return generators at the holding potential, the last of the voltages."""
        return a.value[:, -1], a.by[:, :, -1]

    def _at_nodes(self, values: Array) -> Array:
        """Return values (members, pieces + 1) as (panels, 1, members)."""
        return values.T[self.piece_of][:, None]

    def _slopes(self, opens: list[Array], volts: bool = False) -> Array:
        """Return the derivatives of the current, (n_free, panels, nodes, members).

        Arguments:
            opens: of each chain, open probabilities (panels, nodes, members), complex where a
                derivative by one of them is taken.
            volts: return the derivative by the voltage of the drives alone.
        """
        informed = self.informed
        shape = len(self.piece_of), len(_NODES), informed.n_members
        kind = np.result_type(float, *opens)
        found = np.zeros((informed.n_free, *shape), dtype=kind)
        for term, drive in zip(informed.model.terms, self.drives, strict=True):
            value, by = (drive.by_v, drive.by_both) if volts else (drive.value, drive.by)
            powers = [informed.model.chains[c].power for c in term.chains]
            factors = [opens[c] ** p for c, p in zip(term.chains, powers, strict=True)]
            whole = np.ones(shape, dtype=kind)
            for factor in factors:
                whole = whole * factor
            for k, d in by.items():
                found[k] += self._at_nodes(d) * whole
            for place, (c, p) in enumerate(zip(term.chains, powers, strict=True)):
                rest = self._at_nodes(value) * p * opens[c] ** (p - 1)
                for other, factor in enumerate(factors):
                    if other != place:
                        rest = rest * factor
                for row, k in enumerate(self.generators[c].parameters):
                    found[k] += rest * self.chains[c].open_by[:, :, row]
        return found

    def backward(self, slope: Array) -> tuple[Array, Array]:
        """Return derivatives of a criterion by the voltage and length of each piece.

        Arguments:
            slope: of the criterion by the information, (members, n_free, n_free), symmetric.
        """
        informed = self.informed
        turned = np.einsum("mij,jqgm->iqgm", slope, self.scaled, optimize=True)
        squares = (turned * self.scaled).sum(axis=(0, 3))  # panels, nodes
        q = 2.0 * self.weights[None, :, :, None] * turned * informed.scales[:, None, None]
        by_v = (q * self._slopes([c.open for c in self.chains], volts=True)).sum(axis=(0, 2, 3))
        per_length = informed.per_ms * self.pieces.counted[self.piece_of]
        by_length = per_length * (squares @ _WEIGHTS)
        opens = [chain.open for chain in self.chains]
        for c, chain in enumerate(self.chains):
            moved = [o + 1j * _STEP if k == c else o for k, o in enumerate(opens)]
            bar = (q * self._slopes(moved).imag / _STEP).sum(axis=0)
            coefficient = self._coefficient(c, opens)
            places = list(self.generators[c].parameters)
            bar_by = (q[places] * coefficient).transpose(1, 2, 0, 3)
            own_v, own_length = chain.backward(bar, bar_by)
            by_v, by_length = by_v + own_v, by_length + own_length
        n = len(self.pieces.volts)
        volts = np.bincount(self.piece_of, by_v, n)
        return volts, np.bincount(self.piece_of, by_length * self.parts, n)

    def _coefficient(self, c: int, opens: list[Array]) -> Array:
        """Return the derivative of the current by the open probability of chain c."""
        total = np.zeros(opens[c].shape)
        for term, drive in zip(self.informed.model.terms, self.drives, strict=True):
            if c not in term.chains:
                continue
            rest = self._at_nodes(drive.value) * np.ones(opens[c].shape)
            for other in term.chains:
                p = self.informed.model.chains[other].power
                rest = rest * (p * opens[c] ** (p - 1) if other == c else opens[other] ** p)
            total += rest
        return total
