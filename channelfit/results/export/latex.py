"""The equations of a channel and a table of its parameters as LaTeX, for a paper."""

from __future__ import annotations

import re
import textwrap
import unicodedata

import sympy
from sympy.functions.elementary.piecewise import ExprCondPair
from sympy.printing.latex import LatexPrinter

from channelfit.model.channel import CELSIUS, FARADAY, GAS_CONSTANT, ZERO_CELSIUS, Chain, Term
from channelfit.model.terms import V, symbol
from channelfit.results.export.nmodl import ExportSettings
from channelfit.results.export.provenance import one_line
from channelfit.results.export.subject import Subject
from channelfit.scoring.neuron.nmodl import is_gate

_GREEK = frozenset(
    [
        *("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "kappa", "lambda"),
        *("mu", "nu", "xi", "rho", "sigma", "tau", "phi", "chi", "psi", "omega"),
    ]
)
_UNITS = {
    "1/ms": r"ms$^{-1}$",
    "1/mV": r"mV$^{-1}$",
    "1/(ms mV)": r"ms$^{-1}$\,mV$^{-1}$",
    "1/mM/ms": r"mM$^{-1}$\,ms$^{-1}$",
    "um3/ms": r"$\mu$m$^3$\,ms$^{-1}$",
    "um2": r"$\mu$m$^2$",
    "degC": r"$^\circ$C",
    "MOhm": r"M$\Omega$",
}
_ESCAPES = {
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "µ": r"$\mu$",
    "μ": r"$\mu$",
    "°": r"$^\circ$",
    "±": r"$\pm$",
    "·": r"$\cdot$",
    "²": r"$^2$",
    "³": r"$^3$",
    "–": "--",
    "—": "---",
    "−": "$-$",
    "’": "'",
    '"': "''",
    **{c: f"\\{c}" for c in "#$%&_{}"},
}


def latex(subject: Subject, settings: ExportSettings) -> str:
    """Return the channel as the text of a LaTeX document."""
    return _Document(subject, settings.suffix).text()


def escaped(text: str) -> str:
    """Return a text that LaTeX prints as it is; what its fonts lack is shown without marks, or as
    "?".
    """
    found = []
    for c in one_line(text):
        if c in _ESCAPES:
            found.append(_ESCAPES[c])
        elif c.isascii():
            found.append(c)
        else:
            plain = unicodedata.normalize("NFKD", c).encode("ascii", "ignore").decode()
            found.append("".join(_ESCAPES.get(x, x) for x in plain) or "?")
    return "".join(found)


def named(name: str) -> str:
    """Return a name in a formula: a12 has a subscript, alpha is a letter, others are in italics."""
    stem, _, ending = name.partition("_")
    match = re.fullmatch(r"([A-Za-z]+?)(\d+)", stem)
    if match and not ending:
        stem, ending = match[1], match[2]
    shown = f"\\{stem}" if stem in _GREEK else stem if len(stem) == 1 else rf"\mathit{{{stem}}}"
    inside = ending.replace("_", r"\_")
    return rf"{shown}_{{\mathrm{{{inside}}}}}" if ending else shown


def quantity(value: float, digits: int = 5) -> str:
    """Return a number with a power of ten, for a formula."""
    text = f"{value:.{digits}g}"
    if "e" not in text:
        return text
    mantissa, exponent = text.split("e")
    power = rf"10^{{{int(exponent)}}}"
    return power if mantissa == "1" else rf"{mantissa} \times {power}"


class _LatexMath(LatexPrinter):  # type: ignore[misc]
    """Prints SymPy expressions as formulas."""

    def __init__(self) -> None:
        super().__init__(
            {"order": "none", "mul_symbol": r" \, ", "fold_short_frac": False, "ln_notation": True}
        )

    def _print_Symbol(self, node: sympy.Symbol, style: str = "plain") -> str:
        if node == V:
            return "V"
        return r"T" if node.name == CELSIUS else named(node.name)

    def _print_Float(self, node: sympy.Float) -> str:
        return quantity(float(node), 15)

    def _print_Add(self, node: sympy.Add, order: str | None = None) -> str:
        # a number comes last, and a minus never first where that can be: V - 5, not -5 + V
        parts = sorted((part.is_number, str(self._print(part))) for part in node.args)
        parts.sort(key=lambda part: (part[1].startswith("-"), part[0]))
        (_, text), *others = parts
        for _, part in others:
            text += f" - {part[1:].strip()}" if part.startswith("-") else f" + {part}"
        return text

    def _print_ExpBase(self, node: sympy.Function, exp: str | None = None) -> str:
        text = rf"\exp\left({self._print(node.args[0])}\right)"
        return text if exp is None else f"{{{text}}}^{{{exp}}}"

    _print_exp = _print_ExpBase

    def _print_exprel(self, node: sympy.Function, exp: str | None = None) -> str:
        text = rf"\operatorname{{exprel}}\left({self._print(node.args[0])}\right)"
        return text if exp is None else f"{{{text}}}^{{{exp}}}"

    def _print_Piecewise(self, node: sympy.Piecewise) -> str:
        rows = []
        for branch in [b for b in node.args if isinstance(b, ExprCondPair)]:
            when = (
                r"\text{otherwise}"
                if branch.cond == sympy.true
                else rf"\text{{if }} {self._print(branch.cond)}"
            )
            rows.append(f"{self._print(branch.expr)} & {when}")
        return r"\begin{cases} " + r" \\ ".join(rows) + r" \end{cases}"


class _Document:
    """Writes the document."""

    def __init__(self, subject: Subject, name: str | None) -> None:
        self.subject, self.channel = subject, subject.channel
        self.title = name or subject.channel.name
        self.printer = _LatexMath()

    def text(self) -> str:
        rows = [*self._currents(), *self._openings(), *self._definitions()]
        equations = " \\\\\n".join(f"  {left} &= {right}" for left, right in rows)
        if "exprel" in equations:
            equations += (
                " \\\\\n  \\operatorname{exprel}(x) &= \\frac{e^{x} - 1}{x}, \\quad "
                "\\operatorname{exprel}(0) = 1"
            )
        parts = [
            _PREAMBLE,
            rf"\section*{{{escaped(self.title)}}}",
            *(_wrapped(escaped(text)) for text in self.subject.paragraphs()),
            r"\subsection*{Equations}",
            "\\begin{align*}\n" + equations + "\n\\end{align*}",
            _wrapped(self._words()),
            r"\subsection*{Parameters}",
            self._table(),
            r"\end{document}",
        ]
        return "\n\n".join(parts) + "\n"

    def _words(self) -> str:
        words = ["$V$ is the voltage (mV), times are in ms, currents in pA and outward positive."]
        if any(not is_gate(chain) for chain in self.channel.chains):
            words.append("The occupancies $p$ of the states of a scheme add up to 1.")
        if self.subject.warm:
            words.append(
                rf"$T$ is the temperature in $^\circ$C; the values hold at "
                rf"${self.subject.temperature_C:g}\,^\circ$C."
            )
        elif text := self.subject.rates_hold_at(r"\,$^\circ$C"):
            words.append(f"{text[0].upper()}{text[1:]}.")
        if any(term.ion for term in self.channel.terms):
            words.append(
                rf"$F = {FARADAY!r}$\,C/mol, $R = {GAS_CONSTANT!r}$\,J/(mol\,K); permeabilities "
                r"are in $\mu$m$^3$/ms, concentrations in mM."
            )
        return " ".join(words)

    # what stands on both sides of a sign of equality

    def _print(self, expression: sympy.Expr) -> str:
        return str(self.printer.doprint(expression))

    def _currents(self) -> list[tuple[str, str]]:
        rows, names = [], []
        alone = len(self.channel.terms) == 1
        for term in self.channel.terms:
            name = "I" if alone else rf"I_{{\mathrm{{{escaped(term.name)}}}}}"
            names.append(name)
            opened = [self._open(self.channel.chains[k]) for k in term.chains]
            rows.append((name, r" \, ".join([self._factor(term.size), *opened, self._force(term)])))
        return rows if alone else [("I", " + ".join(names)), *rows]

    def _factor(self, expression: sympy.Expr) -> str:
        text = self._print(expression)
        return rf"\left({text}\right)" if isinstance(expression, sympy.Add) else text

    def _force(self, term: Term) -> str:
        """Return the driving force of open channels."""
        bend = "" if term.rectification is None else f"{self._factor(term.rectification)} \\, "
        if term.ion is None:
            assert term.reversal is not None
            reversal = self._print(term.reversal)
            minus = f"+ {reversal[1:]}" if reversal.startswith("-") else f"- {reversal}"
            if isinstance(term.reversal, sympy.Add):
                minus = rf"- \left({reversal}\right)"
            return rf"{bend}\left(V {minus}\right)"
        z, (inside, outside) = (
            term.ion.valence,
            map(self._factor, (term.ion.inside, term.ion.outside)),
        )
        shown = "" if z == 1 else f"{z} "
        kelvin = f"(T + {ZERO_CELSIUS!r})"
        u = rf"\frac{{{shown}F V}}{{R {kelvin}}}"
        if term.ion.thermal is not None:
            u = rf"\frac{{{shown}V}}{{{self._print(term.ion.thermal)}}}"
        return (
            rf"{bend}{shown}F \, u \, \frac{{{inside} - {outside} e^{{-u}}}}{{1 - e^{{-u}}}}, "
            rf"\quad u = {u}"
        )

    def _open(self, chain: Chain) -> str:
        if is_gate(chain):
            text = named(chain.name)
        else:
            pairs = zip(chain.states, chain.conductances, strict=True)
            terms = [_occupancy(s) if c == 1 else f"{c:g} {_occupancy(s)}" for s, c in pairs if c]
            text = " + ".join(terms)
            text = rf"\left({text}\right)" if len(terms) > 1 or chain.power > 1 else text
        return text if chain.power == 1 else f"{text}^{{{chain.power}}}"

    def _openings(self) -> list[tuple[str, str]]:
        rows = []
        for chain in self.channel.chains:
            x = named(chain.name)
            if chain.instant:
                rows.append((x, self._print(chain.limit)))
            elif is_gate(chain) and chain.limit is not None:
                inf, tau = rf"{{{x}}}_{{\infty}}", rf"\tau_{{{x}}}"
                rows.append((_slope(x), rf"\frac{{{inf} - {x}}}{{{tau}}}"))
                rows += [(inf, self._print(chain.limit)), (tau, self._print(chain.tau))]
            elif is_gate(chain):
                a, b = rf"\alpha_{{{x}}}", rf"\beta_{{{x}}}"
                rows.append((_slope(x), f"{a} (1 - {x}) - {b} \\, {x}"))
                for t in chain.transitions:
                    left = a if t.target == chain.states[1] else b
                    rows.append((left, self._print(t.rate)))
            else:
                rows += self._scheme(chain)
        return rows

    def _scheme(self, chain: Chain) -> list[tuple[str, str]]:
        rows = []
        for state in chain.states:
            terms = []
            for t in chain.transitions:
                if state in (t.source, t.target):
                    sign = "-" if t.source == state else "+"
                    terms.append(f"{sign} {_rate(t.source, t.target)} \\, {_occupancy(t.source)}")
            # a state with many neighbors takes several lines
            lines = [" ".join(terms[k : k + 4]) for k in range(0, len(terms), 4)]
            whole = " \\\\\n  &\\quad ".join(lines).removeprefix("+ ") or "0"
            rows.append((_slope(_occupancy(state)), whole))
        for t in chain.transitions:
            rows.append((_rate(t.source, t.target), self._print(t.multiplicity * t.rate)))
        return rows

    def _definitions(self) -> list[tuple[str, str]]:
        used = self.channel.used_names()
        return [
            (self._print(symbol(name)), self._print(expression))
            for name, expression in self.channel.definitions
            if name in used
        ]

    def _table(self) -> str:
        rows = []
        for p in self.subject.own_parameters:
            known = self.subject.known.get(p.name)
            assert p.value is not None
            if known and known.interval:
                low, high = (quantity(x, 4) for x in known.interval)
                interval = f"${low}$ to ${high}$"
            else:
                interval = "held fixed" if p.fixed else "--"
            unit = _UNITS.get(p.unit, escaped(p.unit))
            rows.append(f"${named(p.name)}$ & ${quantity(p.value)}$ & {unit} & {interval} \\\\")
        head = r"\begin{longtable}{llll}"
        titles = r"parameter & value & unit & 95\,\% interval \\ \hline \endhead"
        return "\n".join([head, titles, *rows, r"\end{longtable}"])


def _slope(x: str) -> str:
    return rf"\frac{{d {x}}}{{d t}}"


def _occupancy(state: str) -> str:
    return rf"p_{{\mathrm{{{escaped(state)}}}}}"


def _rate(source: str, target: str) -> str:
    return rf"k_{{\mathrm{{{escaped(source)}}} \to \mathrm{{{escaped(target)}}}}}"


def _wrapped(text: str) -> str:
    return "\n".join(textwrap.wrap(text, 98, break_long_words=False, break_on_hyphens=False))


_PREAMBLE = r"""\documentclass{article}
\usepackage[margin=25mm]{geometry}
\usepackage{amsmath}
\usepackage{longtable}
\allowdisplaybreaks
\setlength{\parindent}{0pt}
\setlength{\parskip}{6pt}
\sloppy
\begin{document}"""
