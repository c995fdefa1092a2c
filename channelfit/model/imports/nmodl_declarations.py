"""The declarations of a .mod file: parameters, states, ions, currents, constants and blocks."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace

from channelfit.model.imports.equations import ImportedParameter
from channelfit.model.imports.nmodl_tree import Tree
from channelfit.model.imports.nodes import number_text
from channelfit.model.ions import VALENCES
from channelfit.reading.errors import InputError

#: NEURON's defaults of an ion that the file reads, mV and mM.
_IONS = {
    "ena": 50.0,
    "ek": -77.0,
    "eca": 132.4579341637009,
    "nai": 10.0,
    "nao": 140.0,
    "ki": 54.4,
    "ko": 2.5,
    "cai": 5e-5,
    "cao": 2.0,
}
#: NEURON's temperature where nobody says otherwise, degC.
CELSIUS = 6.3
#: The constants of nature as NEURON 9 has them, in C, J/K and 1; and the units that they may be in.
_CONSTANTS = {
    "faraday": 96485.3321233100141,
    "k-mole": 8.3144626181532395,
    "pi": 3.14159265358979323846,
    "e": 1.602176634e-19,
    "mole": 6.02214076e23,
    "avogadro": 6.02214076e23,
}
_PREFIXES = {"": 1.0, "kilo": 1e3, "milli": 1e-3, "micro": 1e-6, "nano": 1e-9, "mega": 1e6}
_NAMES = ("coulombs", "coulomb", "coul", "joules", "joule", "1", "")
_IN_UNIT = re.compile(r"\s*([\d.]+(?:[eE][+-]?\d+)?(?=\s))?\s*([a-z]*|1)(/deg[CK]|/K|/degree)?\s*")
#: Blocks that are read, and those that say nothing about a channel.
_SOLVABLE = ("DerivativeBlock", "KineticBlock", "LinearBlock", "ProcedureBlock")
#: Elements of an array, and rows of a TABLE.
_LONGEST_ARRAY, _LONGEST_TABLE = 64, 100_000
_IGNORED = ("IndependentBlock", "UnitState", "LineComment", "BlockComment", "Define", "Model")


@dataclass
class Declarations:
    """The declarations of a file, by name; lines of all of them are in `lines`.

    What a comment says of the model that the file was exported from is in `notes`, `area_um2`,
    `temperature_C` and the parameters.
    """

    title: str = ""
    suffix: str = ""
    point: bool = False
    parameters: dict[str, ImportedParameter] = field(default_factory=dict)
    constants: dict[str, float] = field(default_factory=dict)
    states: dict[str, int] = field(default_factory=dict)
    variables: set[str] = field(default_factory=set)
    currents: list[str] = field(default_factory=list)
    functions: dict[str, Tree] = field(default_factory=dict)
    solvable: dict[str, Tree] = field(default_factory=dict)
    initial: Tree | None = None
    breakpoint: Tree | None = None
    celsius: float = CELSIUS
    celsius_given: bool = False
    lines: dict[str, int] = field(default_factory=dict)
    range_variables: set[str] = field(default_factory=set)
    ions: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    area_um2: float | None = None
    temperature_C: float | None = None

    def knows(self, key: str) -> bool:
        """Return whether a variable, or an element of an array, may be given a value."""
        base = key.partition("[")[0]
        return base in self.variables or base in self.parameters or key in self.states


def declarations(tree: Tree, title: str) -> Declarations:
    """Return the declarations of a file.

    Raises InputError: something that no channel has, with its line.
    """
    found = Declarations(title)
    _put_in_defined(found, tree)
    _check_tables(tree)
    for block in tree.children:
        _block(found, block)
    for key in found.currents:
        found.variables.add(key)
    if not found.suffix:
        raise InputError("no SUFFIX or POINT_PROCESS names a mechanism")
    if found.breakpoint is None or not found.currents:
        raise InputError(
            "no current: NEURON { } names none with USEION ... WRITE or NONSPECIFIC_CURRENT, or "
            "there is no BREAKPOINT"
        )
    for key in (*found.states, "v", "celsius", "t", "dt"):
        found.parameters.pop(key, None)
    for ion in found.ions:
        _equilibrium(found, ion)
    return found


def _equilibrium(found: Declarations, ion: str) -> None:
    """Give a reversal potential the value that NEURON computes for it.

    Where a mechanism reads concentrations of an ion beside its reversal potential, NEURON takes the
    latter from the former, at the temperature of the cell.
    """
    key, inside, outside = f"e{ion}", f"{ion}i", f"{ion}o"
    read = {name for name, given in found.parameters.items() if given.kind}
    if key not in read or not {inside, outside} & read or not found.ions[ion]:
        return
    ci, co = (_IONS.get(name, 1.0) for name in (inside, outside))
    thermal = 1e3 * _CONSTANTS["k-mole"] * (found.celsius + 273.15) / _CONSTANTS["faraday"]
    value = thermal / found.ions[ion] * math.log(co / ci)
    found.parameters[key] = replace(found.parameters[key], value=value)


def _put_in_defined(found: Declarations, tree: Tree) -> None:
    """Put the numbers of DEFINE in place of their names."""
    for block in tree.all("Define"):
        found.constants[block.name] = _value(block)
    for leaf in tree.walk():
        if leaf.kind in ("Integer", "Double", "Float"):
            if leaf.text in found.constants:
                leaf.text = number_text(found.constants[leaf.text])
            try:
                float(leaf.text)
            except ValueError:
                raise InputError(f"{leaf.text} is no number", None, f"line {leaf.line}") from None


def _check_tables(tree: Tree) -> None:
    """Refuse a TABLE that would fill the memory of the NEURON that proves the translation."""
    for table in tree.walk():
        counts = table.all("Integer")[-1:] if table.kind == "TableStatement" else []
        if counts and float(counts[0].text) > _LONGEST_TABLE:
            raise InputError(
                f"a TABLE WITH {counts[0].text[:20]}; one has at most {_LONGEST_TABLE:,} rows",
                None,
                f"line {table.line}",
            )


def _block(found: Declarations, block: Tree) -> None:
    kind = block.kind
    if kind == "NeuronBlock":
        _neuron(found, block)
    elif kind == "ParamBlock":
        for row in block.all("ParamAssign"):
            _parameter(found, row)
    elif kind == "ConstantBlock":
        for row in block.walk():
            if row.kind == "ConstantVar":
                found.constants[row.name] = _value(row)
    elif kind == "UnitBlock":
        for row in block.all("FactorDef"):
            found.constants[row.name] = _factor(row)
    elif kind in ("StateBlock", "AssignedBlock"):
        for row in block.all("AssignedDefinition"):
            _variable(found, row, kind == "StateBlock")
    elif kind == "LocalListStatement":
        found.variables |= {child.name for child in block.children}
    elif kind == "InitialBlock":
        found.initial = _joined(found.initial, block)
    elif kind == "BreakpointBlock":
        found.breakpoint = _joined(found.breakpoint, block)
    elif kind in ("FunctionBlock", *_SOLVABLE):
        key = block.children[0].text
        if kind in ("FunctionBlock", "ProcedureBlock"):
            found.functions[key] = block
        if kind in _SOLVABLE:
            found.solvable[key] = block
    elif kind not in _IGNORED:
        raise InputError(f"{kind} cannot be translated", None, f"line {block.line}")


def _joined(before: Tree | None, block: Tree) -> Tree:
    inside = block.all("StatementBlock")[0]
    return inside if before is None else Tree("StatementBlock", before.children + inside.children)


def _neuron(found: Declarations, block: Tree) -> None:
    for row in block.children[0].children:
        if row.kind == "Suffix":
            found.suffix, found.point = row.children[1].text, row.name == "POINT_PROCESS"
            if row.name not in ("SUFFIX", "POINT_PROCESS"):
                raise InputError(f"{row.name} is no channel", None, f"line {row.line}")
        elif row.kind == "Useion":
            _ion(found, row)
        elif row.kind == "Nonspecific":
            found.currents += [child.name for child in row.children]
        elif row.kind == "Range":
            found.range_variables |= {child.name for child in row.children}
        elif row.kind not in ("Global", "ThreadSafe", "Text"):
            raise InputError(f"{row.kind} cannot be translated", None, f"line {row.line}")
    for row in block.walk():
        if row.kind in ("NonspecificCurVar", "WriteIonVar"):
            found.lines[row.name] = row.line


def _ion(found: Declarations, row: Tree) -> None:
    ion = row.name
    reads = [child.name for child in row.all("ReadIonVar")]
    for key in (child.name for child in row.all("WriteIonVar")):
        if key != f"i{ion}":
            quantity = "a reversal potential" if key == f"e{ion}" else "a concentration"
            raise InputError(
                f"{key}, {quantity}, is written: it changes with time, which cannot be translated",
                None,
                f"line {row.line}",
            )
        found.currents.append(key)
    for key in reads:
        if key == f"i{ion}":
            if key in found.currents:
                continue
            raise InputError(
                f"{key} is read, a current of other mechanisms", None, f"line {row.line}"
            )
        kind = "reversal" if key == f"e{ion}" else "concentration"
        unit = "mV" if kind == "reversal" else "mM"
        usual = _IONS.get(key, 0.0 if kind == "reversal" else 1.0)
        before = found.parameters.get(key)
        unheard = before.value if before is not None and not before.kind else None
        found.parameters[key] = ImportedParameter(usual, unit, row.line, kind, key, unheard)
    valence = next((_value(child) for child in row.all("Valence")), None)
    found.ions[ion] = VALENCES.get(ion, 0) if valence is None else int(valence)


def _parameter(found: Declarations, row: Tree) -> None:
    key, line = row.name, row.line
    for array in row.all("IndexedName"):
        _length(array.children[1], line)
    found.lines[key] = line
    values = row.all("Double", "Integer", "Float", "UnaryExpression")
    value = _value(row) if values else 0.0
    units = [child.text for child in row.children if child.kind == "Unit"]
    if key == "celsius":
        found.celsius, found.celsius_given = (value, True) if values else (CELSIUS, False)
    before = found.parameters.get(key)
    if before is not None and before.kind:
        found.parameters[key] = replace(before, unheard=value if values else None)
    else:
        found.parameters[key] = ImportedParameter(value, units[0] if units else "", line, "", key)


def _variable(found: Declarations, row: Tree, state: bool) -> None:
    numbers, whole = row.all("Integer", "Double"), row.all("Integer")
    names = [row.name]
    # an array; an even count is FROM and TO, and a Double besides is a tolerance, <1e-4>
    if len(numbers) % 2 and len(whole) % 2:
        names = [f"{row.name}[{k}]" for k in range(_length(numbers[0], row.line))]
    found.variables.add(row.name)
    for key in names:
        found.lines.setdefault(key, row.line)
        if state:
            found.states[key] = row.line


def _length(number: Tree, line: int) -> int:
    """Return the length of an array. Raises InputError for more than a channel could have."""
    if not 0 < float(number.text) <= _LONGEST_ARRAY:
        raise InputError(
            f"an array of {number.text[:20]}; one has 1 to {_LONGEST_ARRAY} elements",
            None,
            f"line {line}",
        )
    return int(float(number.text))


def _value(row: Tree) -> float:
    """Return the first number in a row, with the sign that stands before it."""
    sign = 1.0
    for tree in row.walk():
        if tree.kind == "UnaryOperator" and tree.text == "-":
            sign = -1.0
        if tree.kind in ("Double", "Integer", "Float"):
            return sign * float(tree.text)
    raise InputError(f"{row.name} has no value", None, f"line {row.line}")


def _factor(row: Tree) -> float:
    """Return a constant of nature in a unit, such as (faraday) (kilocoulombs), or a number."""
    if row.all("Double", "Integer", "Float"):
        return _value(row)
    what, *units = (child.text.strip() for child in row.children if child.kind == "Unit")
    unit = units[0] if units else ""
    what = "k-mole" if what.split() in (["mole", "k"], ["k", "mole"]) else what
    found = _IN_UNIT.fullmatch(unit.replace("mV-coulomb", "millijoule"))  # the same: 1 J is 1 V C
    prefix = None
    if found:
        ending = next(name for name in _NAMES if found[2].endswith(name))
        prefix = _PREFIXES.get(found[2].removesuffix(ending)) if found[2] else 1.0
    if what not in _CONSTANTS or prefix is None or found is None:
        raise InputError(
            f"{row.name} = ({what}) ({unit}): only the constants {', '.join(_CONSTANTS)} in "
            "coulombs, joules per degree or 1 are known",
            None,
            f"line {row.line}",
        )
    return _CONSTANTS[what] / (float(found[1] or 1.0) * prefix)
