"""A model described in words: its scheme, rates, generator matrix, current and parameters."""

from __future__ import annotations

from itertools import pairwise

from rich.console import Console
from rich.text import Text

from channelfit.model.channel import Chain, ChannelModel, Term, Transition
from channelfit.results.report.expression_text import text
from channelfit.results.report.scheme import rows_of_states
from channelfit.results.report.terminal import PlainConsole, table


def describe(model: ChannelModel) -> None:
    """Print the description of a model."""
    console = PlainConsole(highlight=False)
    console.print(Text(model.name, style="bold"))
    for paragraph in (model.description, model.source):
        if paragraph:
            console.print(Text(" ".join(paragraph.split())))
    if model.temperature_C is not None:
        console.print(f"{model.temperature_C:g} degC")
    apart = {"celsius", *(tie.name for tie in model.ties)}
    definitions = [(n, e) for n, e in model.definitions if n not in apart]
    if definitions:
        _head(console, "Definitions")
        console.print(table(["name", "expression"], [[n, text(e)] for n, e in definitions], (0, 1)))
    again = {k for term in model.terms if term.displacement is not None for k in term.chains} - {0}
    for k, chain in enumerate(model.chains):
        if k not in again:  # the same scheme, of which a gating current has each state
            _chain(console, model, chain)
    _head(console, "Current, pA")
    for line in _current(model):
        console.print(Text(f"  {line}"))
    _head(console, "Parameters")
    console.print(_parameters(model))


def _head(console: Console, title: str) -> None:
    console.print()
    console.print(Text(title, style="bold"))


def _chain(console: Console, model: ChannelModel, chain: Chain) -> None:
    gate = chain.is_gate
    power = f", to the power {chain.power}" if chain.power > 1 else ""
    scheme = "Scheme" if chain.name == "scheme" else f"Scheme of {chain.name}"
    _head(console, f"Gate {chain.name}{power}" if gate else scheme)
    if not gate:
        for line in scheme_lines(chain):
            console.print(Text(f"  {line}"))
        console.print()
    if chain.limit is not None and chain.tau is not None:
        rows = [["inf", "", text(chain.limit)], ["tau", "ms", text(chain.tau)]]
        console.print(table(["", "unit", "at v mV"], rows, (0, 1, 2)))
        return
    names = rate_names(chain, gate)
    rows = [[names[t], f"{t.source} -> {t.target}", rate_text(t)] for t in chain.transitions]
    console.print(table(["rate", "transition", "1/ms"], rows, (0, 1, 2)))
    if not gate:
        _matrix(console, chain, names)


def scheme_lines(chain: Chain) -> list[str]:
    """Draw a scheme in text: rows such as ``C1 <-> C2 <-> O``, then the links between rows."""
    ways = {(t.source, t.target) for t in chain.transitions}
    lines, drawn = [], set()
    for row in rows_of_states(chain):
        line = row[0]
        for a, b in pairwise(row):
            line += f" {_arrow(ways, a, b)} {b}"
            drawn |= {(a, b), (b, a)}
        lines.append(line)
    rest = []
    for t in chain.transitions:
        if (t.source, t.target) not in drawn:
            rest.append(f"{t.source} {_arrow(ways, t.source, t.target)} {t.target}")
            drawn |= {(t.source, t.target), (t.target, t.source)}
    lone = {line for line in lines if " " not in line}
    lines = [line for line in lines if line not in lone or not rest]
    lines += [f"and {', '.join(rest)}" if lines else ", ".join(rest)] if rest else []
    levels = zip(chain.states, chain.conductances, strict=True)
    conducting = [s if c == 1 else f"{s} (x {c:g})" for s, c in levels if c]
    return [*lines, f"open: {', '.join(conducting)}"] if conducting else lines


def _arrow(ways: set[tuple[str, str]], a: str, b: str) -> str:
    return "<->" if {(a, b), (b, a)} <= ways else "->" if (a, b) in ways else "<-"


def rate_names(chain: Chain, gate: bool = False) -> dict[Transition, str]:
    """Return a name for the rate of every transition.

    In a scheme k12 leads from the first state to the second, as in the generator matrix; a gate has
    alpha and beta.
    """
    if gate:
        last = chain.states[-1]
        return {t: "alpha" if t.target == last else "beta" for t in chain.transitions}
    between = "" if len(chain.states) < 10 else "_"
    place = {s: k for k, s in enumerate(chain.states, 1)}
    return {t: f"k{place[t.source]}{between}{place[t.target]}" for t in chain.transitions}


def rate_text(t: Transition) -> str:
    """Return a rate as text, with its multiplicity in front."""
    return text(t.multiplicity * t.rate)


def _matrix(console: Console, chain: Chain, names: dict[Transition, str]) -> None:
    """Print the generator matrix in the fullest form that fits the width of the console.

    Elements are the rates themselves, or their names, or names with short diagonals.
    """
    rates = {t: rate_text(t) for t in chain.transitions}
    for label, short in ((rates, False), (names, False), (names, True)):
        rows = [_matrix_row(chain, label, target, short) for target in chain.states]
        widths = [max(map(len, column)) + 2 for column in zip(*rows, strict=True)]
        if sum(widths) <= console.width:
            break
    diagonal = "; -S: minus the sum of its column's other elements" if short else ""
    _head(console, f"Generator matrix A of dp/dt = A p{diagonal}")
    console.print(table(["from", *chain.states], rows))


def _matrix_row(chain: Chain, label: dict[Transition, str], target: str, short: bool) -> list[str]:
    row = [f"to {target}"]
    for source in chain.states:
        parts = [
            label[t]
            for t in chain.transitions
            if t.source == source and target in (t.target, source)
        ]
        if source != target:
            row.append(parts[0] if parts else ".")
        elif short:
            row.append("-S")
        else:
            row.append(f"-({' + '.join(parts)})" if len(parts) > 1 else f"-{''.join(parts) or 0}")
    return row


def _current(model: ChannelModel) -> list[str]:
    """Return the current as formulas: one, or one for each of its terms below their sum."""
    if len(model.terms) == 1:
        return [f"I = {_term(model, model.terms[0])}"]
    total = " + ".join(f"I_{term.name}" for term in model.terms)
    return [f"I = {total}", *(f"I_{t.name} = {_term(model, t)}" for t in model.terms)]


def _term(model: ChannelModel, term: Term) -> str:
    chains = [model.chains[k] for k in term.chains]
    factors = [text(term.size), *(_opened(chain, len(chains) > 1) for chain in chains)]
    if term.displacement is not None:
        return " ".join([*factors, f"({text(term.displacement)})"])
    if term.rectification is not None:
        written = text(term.rectification)
        factors.append(written if written.isidentifier() else f"({written})")
    if term.ion is None:
        assert term.reversal is not None
        reversal = text(term.reversal)
        factors.append(f"(v + {reversal[1:]})" if reversal.startswith("-") else f"(v - {reversal})")
    else:
        inside, outside = (text(c) for c in (term.ion.inside, term.ion.outside))
        arguments = f"z = {term.ion.valence}, {inside} mM inside, {outside} mM outside"
        if term.ion.thermal is not None:
            arguments += f", RT/F = {text(term.ion.thermal)} mV"
        factors.append(f"GHK(v, {arguments})")
    return " ".join(factors)


def _opened(chain: Chain, beside_others: bool) -> str:
    """Return the open probability of a chain as a factor: ``O``, ``(O1 + 0.5 O2)`` or ``m^3``."""
    if chain.is_gate and (beside_others or chain.power > 1):
        return chain.name if chain.power == 1 else f"{chain.name}^{chain.power}"
    shares = [
        s if c == 1 else f"{c:g} {s}"
        for s, c in zip(chain.states, chain.conductances, strict=True)
        if c
    ]
    return shares[0] if len(shares) == 1 else f"({' + '.join(shares)})"


def _parameters(model: ChannelModel) -> object:
    rows = []
    for p in model.parameters:
        named = [(p.name, p), *((f"{p.name}[{cell}]", own) for cell, own in p.cells)]
        for name, own in named:
            value = "" if own.value is None else f"{own.value:.6g}"
            span = "" if own.fixed else f"{own.lower:.4g} .. {own.upper:.4g}"
            kind = "fixed" if own.fixed else own.scale
            rows.append(
                [name, value, own.unit, span, kind + (", per cell" if own.per_cell else "")]
            )
    values = [p.value for p in model.parameters]
    tied = {} if None in values else model.tied_values(model.values())
    for tie in model.ties:
        value = f"{tied[tie.name]:.6g}" if tied else ""
        span = "" if tie.lower is None else f"{tie.lower:.4g} .. {tie.upper:.4g}"
        rows.append([tie.name, value, tie.unit, span, text(dict(model.definitions)[tie.name])])
    return table(["name", "value", "unit", "range", "scale"], rows, (0, 2, 3, 4))
