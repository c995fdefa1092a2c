"""The equations of a model of another program, as expressions, whatever its language."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from channelfit.model.imports.nodes import Node, replaced
from channelfit.model.nmodl_comment import Row
from channelfit.reading.errors import InputError


@dataclass(frozen=True)
class ImportedParameter:
    """A named number of an imported model.

    Attributes:
        value: in the unit of its file.
        unit: as the file writes it; empty where it has none.
        line: where it stands.
        kind: "" for a parameter of the file, "reversal" or "concentration" for an ion's,
            which the file reads, "held" for a state of the file that does not move here.
        own: its name in the foreign program, where that differs.
        unheard: the file's number where NEURON takes the cell's instead; None where it does not.
        input: NEURON's name of a quantity of the cell, such as cai, where `own` is another.
        factor: from `value` to the file's number.
        row: the parameter of the model that the file was exported from; None where none is known.
        stated: whether a comment of the file gives a value that the cell decides.
    """

    value: float
    unit: str = ""
    line: int = 0
    kind: str = ""
    own: str = ""
    unheard: float | None = None
    input: str = ""
    factor: float = 1.0
    row: Row | None = None
    stated: bool = False


@dataclass(frozen=True)
class Reaction:
    """A transition between two states: rates there and back, 1/ms."""

    source: str
    target: str
    forth: Node
    back: Node
    line: int = 0


@dataclass(frozen=True)
class Fault:
    """A guard that a file has around no singularity, or with another value than the limit.

    Attributes:
        voltage: mV, at which it holds.
        there, beside: what it gives there, and what holds beside it.
        line: where it stands.
    """

    voltage: float
    there: float
    beside: float
    line: int = 0


@dataclass
class Equations:
    """The equations of a channel.

    Attributes:
        title: what the file calls itself.
        parameters: by name.
        definitions: named expressions, each after those that it uses; of v, parameters and states.
        bases: what the file calls that which a definition stands for, by the definition's name.
        states: where each is declared, by name.
        rhs: the derivatives of states, 1/ms.
        reactions: of KINETIC blocks.
        initial: the expression from which a state starts.
        steady: states that start from the steady state because the file says so.
        still: states of the file that never leave their steady state, and are definitions here.
        equations: left and right sides of linear equations that say where states start.
        currents: by name, in the unit of the file.
        per_pA: which current, pA, is one of the file's unit; for a density, that through 1 um2.
        density: whether currents are per area of membrane.
        area_um2: of the membrane that a density was exported for; None where nothing says it.
        temperature_C: at which rates hold that do not follow it; None where nothing says it.
        celsius: the temperature, degC, that the file gives; None where it uses none.
        lines: where things stand, by name.
        zeros: voltages, mV, at which an expression is 0/0 and its guard was left out.
        faults: guards that were left out although they say something else.
        settled: whether states start at the steady state although the file starts them elsewhere.
        stepped: whether the file advances gates by exact steps of its own, of any length.
        notes: what the reader of the model file should know.
        advice: the end of a message about a state that cannot be translated.
    """

    title: str = ""
    parameters: dict[str, ImportedParameter] = field(default_factory=dict)
    definitions: dict[str, Node] = field(default_factory=dict)
    bases: dict[str, str] = field(default_factory=dict)
    states: dict[str, int] = field(default_factory=dict)
    rhs: dict[str, Node] = field(default_factory=dict)
    reactions: list[Reaction] = field(default_factory=list)
    initial: dict[str, Node] = field(default_factory=dict)
    steady: set[str] = field(default_factory=set)
    still: list[str] = field(default_factory=list)
    equations: list[tuple[Node, Node]] = field(default_factory=list)
    currents: dict[str, Node] = field(default_factory=dict)
    per_pA: float = 1.0
    density: bool = False
    area_um2: float | None = None
    temperature_C: float | None = None
    celsius: float | None = None
    lines: dict[str, int] = field(default_factory=dict)
    zeros: list[float] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    settled: bool = False
    stepped: bool = False
    notes: list[str] = field(default_factory=list)
    advice: str = ""

    def refusal(self, message: str, name: str = "") -> InputError:
        """Return an error about an expression that cannot be translated, at the line of a name."""
        line = self.lines.get(name) or self.states.get(name)
        return InputError(message, None, f"line {line}" if line else None)

    def dependent(self, names: frozenset[str]) -> frozenset[str]:
        """Return these names and those of all definitions that depend on them."""
        found = set(names)
        for defined, node in self.definitions.items():
            if node.names & found:
                found.add(defined)
        return frozenset(found)

    def expanded(self, node: Node, names: frozenset[str]) -> Node:
        """Return an expression in which definitions that depend on these names are written out."""
        hidden = self.dependent(names) - names
        while node.names & hidden:
            by = {key: self.definitions[key] for key in node.names & hidden}
            node = replaced(node, by)
        return node

    def used(self, nodes: list[Node]) -> Iterator[str]:
        """Return the names of definitions on which expressions depend, in their order."""
        used: set[str] = set()
        for node in nodes:
            used |= node.names
        for defined, node in reversed(self.definitions.items()):
            if defined in used:
                used |= node.names
        return (defined for defined in self.definitions if defined in used)
