"""A symbolic interpreter of .mod files: blocks and procedures become equations.

INITIAL and BREAKPOINT are followed statement by statement as NEURON would run them, with
expressions in place of numbers. Each assignment gives a new definition, so that the result is about
as long as the file, and procedures, functions, loops and conditions are gone from it. What a
variable holds from an earlier call is known as such: a file that computes with it is refused,
unless it is computed anew from the voltage and the states at each step.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import NoReturn

from channelfit.model.imports import nodes
from channelfit.model.imports.equations import Equations, Reaction
from channelfit.model.imports.gating import exact_step
from channelfit.model.imports.guards import unguarded
from channelfit.model.imports.nmodl_declarations import CELSIUS, Declarations
from channelfit.model.imports.nmodl_tree import Tree
from channelfit.model.imports.nodes import COMPARISONS, Node, choice, make, name, number
from channelfit.model.imports.trial import never_seen
from channelfit.reading.errors import InputError

#: Statements that are followed, calls within calls, and parts of an argument that is put in whole.
_MOST_STATEMENTS, _DEEPEST, _SHORT = 50_000, 40, 25
#: Parts of an expression that needs no name of its own.
_TINY = 3
#: The prefix of a variable's value before this step.
_OLD = "?"
#: Operators of NMODL that `nodes` spells otherwise.
_OPERATORS = {"^": "**", "&&": "and", "||": "or"}
_ARITHMETIC = ("+", "-", "*", "/", "**")
_ONE_ARGUMENT = {key: key for key in ("exp", "log", "sqrt", "abs", "tanh")} | {"fabs": "abs"}
#: The number of arguments of other functions that can be written by these.
_WRITTEN_BY = {"pow": 2, "log10": 1, "sinh": 1, "cosh": 1, "fmin": 2, "fmax": 2}
_OUTSIDE = {
    "t": "the time",
    "dt": "the step of the integrator",
    "diam": "the diameter of the section",
    "area": "the area of the segment",
}
_SILENT = (
    "TableStatement",
    "ConductanceHint",
    "UnitState",
    "ProtectStatement",
    "MutexLock",
    "MutexUnlock",
    "LineComment",
    "BlockComment",
)


class Frame(dict[str, Node]):
    """The arguments and LOCAL variables of a call."""


class Interpreter:
    """The run of one file.

    Arguments:
        declared: what the file declares.

    Attributes:
        found: the equations so far.
    """

    def __init__(self, declared: Declarations) -> None:
        self.declared = declared
        self.found = Equations(title=declared.title, density=not declared.point)
        # pA of 1 mA/cm2 through 1 um2, or of 1 nA
        self.found.per_pA = 1e3 if declared.point else 10.0
        self.found.parameters = declared.parameters
        self.found.states = declared.states
        self.found.lines = declared.lines
        self.found.notes += declared.notes
        self.found.area_um2 = declared.area_um2
        self.found.temperature_C = declared.temperature_C
        self.taken = {*declared.parameters, *declared.states, "v", "celsius"}
        self.values: dict[str, Node] = {}
        self.statements, self.depth = 0, 0
        self.old: dict[str, tuple[str, int]] = {}
        self.line = 0
        self.in_initial = False
        self.uses_celsius = False

    def equations(self) -> Equations:
        """Run the file.

        Raises InputError: what cannot be translated, with its line.
        """
        declared, found = self.declared, self.found
        self._forget(self._fresh())
        self.in_initial = True
        self._block(declared.initial, Frame())
        self.in_initial = False
        found.initial = {s: self.values[s] for s in declared.states if self.values[s] != name(s)}
        kept = {key: node for key, node in self.values.items() if self._constant(node)}
        for key in kept.keys() & declared.states.keys():
            del kept[key]
        self._forget(self._fresh() | kept)
        first = self._step()
        again = {
            key: node
            for key, node in first.items()
            if not self._resolved(node) and key not in declared.states
        }
        if any(node.names & self.old.keys() for node in self._outcome()):
            self._forget(self._fresh() | kept | again)
            self._step()
        found.currents = {key: self.values[key] for key in declared.currents}
        self._check_old()
        found.celsius = declared.celsius if self.uses_celsius else None
        if self.uses_celsius and not declared.celsius_given:
            found.notes.append(
                f"the file gives no temperature; {declared.celsius:g} degC is NEURON's own"
            )
        elif self.uses_celsius and declared.celsius != CELSIUS:
            found.notes.append(
                f"the temperature is the file's; NEURON does not take it from there and runs at "
                f"{CELSIUS:g} degC until celsius is set"
            )
        for key, given in declared.parameters.items():
            if given.unheard is not None and given.unheard != given.value:
                found.notes.append(
                    f"{key} is {given.value:.6g}, as in a cell that does not set it; NEURON does "
                    f"not take {given.unheard:g} from the file's PARAMETER block"
                )
            if given.kind == "concentration":
                found.notes.append(f"{key} is constant here, whatever flows")
        return found

    def _fresh(self) -> dict[str, Node]:
        """Return the values of parameters, states and constants before anything has run."""
        values = {key: name(key) for key in ("v", *self.declared.parameters, *self.declared.states)}
        for key, one in self.declared.parameters.items():
            if one.factor != 1.0:
                values[key] = make("*", name(key), number(one.factor))
        return {**values, **{key: number(x) for key, x in self.declared.constants.items()}}

    def _forget(self, values: Mapping[str, Node]) -> None:
        self.values = dict(values)

    def _constant(self, node: Node) -> bool:
        """Return whether an expression depends on no voltage, state or earlier value."""
        moving = self.found.dependent(frozenset({"v", *self.declared.states}))
        return not node.names & moving and not self._resolved(node)

    def _resolved(self, node: Node) -> frozenset[str]:
        """Return the old values on which an expression depends."""
        return node.names & self.found.dependent(frozenset(self.old))

    def _step(self) -> dict[str, Node]:
        """Run BREAKPOINT with the blocks that it solves, and return the values of all variables."""
        self.found.rhs, self.found.reactions = {}, []
        self._block(self.declared.breakpoint, Frame())
        for key in self.declared.currents:
            if key not in self.values:  # as NEURON has it, where a switch leaves a current out
                self.values[key] = nodes.ZERO
        return dict(self.values)

    def _outcome(self) -> list[Node]:
        """Return all expressions that the model consists of, written out in their old values."""
        roots = self._roots()
        return [*roots, *(self.found.definitions[key] for key in self.found.used(roots))]

    def _roots(self) -> list[Node]:
        found = self.found
        roots = [*found.rhs.values(), *(self.values[key] for key in self.declared.currents)]
        for reaction in found.reactions:
            roots += [reaction.forth, reaction.back]
        return roots

    def _check_old(self) -> None:
        """Refuse a file in which something depends on a variable's value before the step."""
        found = self.found
        needed = set(found.used(self._roots()))
        for node in self._outcome():
            for key in sorted(node.names & self.old.keys()):
                variable, line = self.old[key]
                if never_seen(self.found, key, self._roots()):
                    continue  # an `if` never lets it through; 0 stands for it
                why = (
                    f"the current depends on {variable}, {_OUTSIDE[variable]}"
                    if variable in _OUTSIDE
                    else f"{variable} is read before this step has given it a value, so that the "
                    "current depends on its value from INITIAL or an earlier step"
                )
                raise InputError(why, None, f"line {line}")
        nothing = dict.fromkeys(self.old, nodes.ZERO)
        for key, node in found.definitions.items():
            if node.names & nothing.keys() and key in needed:
                found.definitions[key] = nodes.replaced(node, nothing)

    # statements

    def _block(self, block: Tree | None, frame: Frame) -> None:
        if block is None:
            return
        for statement in block.children:
            self._statement(statement, frame)

    def _statement(self, tree: Tree, frame: Frame) -> None:
        self.line = tree.line or self.line
        self._count(1)
        if tree.kind == "LocalListStatement":
            for local in tree.children:
                frame[local.name] = self._unset(local.name)
        elif tree.kind in _SILENT:
            self._silent(tree)
        elif tree.kind == "StatementBlock":
            self._block(tree, frame)
        elif tree.kind == "BinaryExpression" and tree.children[1].text == "=":
            self._assign(tree.children[0], self._expression(tree.children[2], frame), frame)
        elif tree.kind == "FunctionCall":
            self._call(tree, frame)
        elif tree.kind == "IfStatement":
            self._if(tree, frame)
        elif tree.kind == "FromStatement":
            self._loop(tree, frame)
        elif tree.kind == "SolveBlock":
            self._solve(tree)
        elif tree.kind == "DiffEqExpression":
            self._derivative(tree.children[0], frame)
        elif tree.kind == "ReactionStatement":
            self._reaction(tree, frame)
        elif tree.kind == "Conserve":
            self._conserve(tree, frame)
        elif tree.kind == "LinEquation":
            left, right = (self._expression(child, frame) for child in tree.children)
            self.found.equations.append((left, right))
        else:
            self._refuse(f"a statement that cannot be translated ({tree.kind})")

    def _count(self, more: int) -> None:
        """Refuse a file that has more statements than can be followed."""
        self.statements += more
        if self.statements > _MOST_STATEMENTS:
            self._refuse(f"more than {_MOST_STATEMENTS} statements, loops and calls unrolled")

    def _silent(self, tree: Tree) -> None:
        if tree.kind == "TableStatement" and not any("TABLE" in note for note in self.found.notes):
            self.found.notes.append(
                f"line {tree.line}: the TABLE is left out; rates are computed exactly"
            )

    def _assign(self, target: Tree, value: Node, frame: Frame) -> None:
        key = self._key(target, frame)
        kept = self._defined(key, value)
        if key in frame:
            frame[key] = kept
        elif key in self.declared.constants and key not in self.declared.parameters:
            self._refuse(f"{key} is a constant and is given another value")
        elif self.declared.knows(key):
            self.values[key] = kept
        else:
            self._refuse(f"{key} is given a value but is not declared")

    def _defined(self, key: str, value: Node) -> Node:
        """Return a value as it is kept: a very short one as it is, else a new definition."""
        if value.size <= _TINY and value.op not in ("if", *nodes.FUNCTIONS):
            return value
        base = key.replace("[", "_").replace("]", "")
        unique, n = base, 1
        while unique in self.taken:
            n += 1
            unique = f"{base}_{n}"
        self.taken.add(unique)
        self.found.definitions[unique] = value
        self.found.bases[unique] = base
        self.found.lines.setdefault(unique, self.line)
        return name(unique)

    def _key(self, tree: Tree, frame: Frame) -> str:
        """Return the name of a variable; of an element of an array with its index."""
        if tree.kind == "Name":
            return tree.text
        if tree.kind == "IndexedName":
            index = self._expression(tree.children[1], frame)
            if not index.is_number or not index.value.is_integer():
                self._refuse(f"the index of {tree.children[0].text} is no number that is known")
            return f"{tree.children[0].text}[{int(index.value)}]"
        self._refuse(f"{tree.kind} cannot be given a value")

    def _if(self, tree: Tree, frame: Frame) -> None:
        pieces = list(tree.children)
        condition = self._condition(self._expression(pieces[0], frame))
        self._branches(self._switched(condition), pieces[1], pieces[2:], frame)

    def _switched(self, condition: Node) -> Node:
        """Return a condition, decided where it compares a PARAMETER, as a switch does."""
        if condition.op not in ("==", "!="):
            return condition
        for key, other in itertools.permutations(condition.args):
            given = self.declared.parameters.get(str(key.args[0])) if key.op == "name" else None
            if given is not None and not given.kind and other.is_number:
                self.found.notes.append(
                    f"line {self.line}: {key.args[0]} is {given.value:g}, which decides here what "
                    "is computed; import the file again for another value"
                )
                return make(condition.op, number(given.value), other)
        return condition

    def _branches(self, condition: Node, chosen: Tree, rest: list[Tree], frame: Frame) -> None:
        """Follow both branches, and choose between their values of each variable."""
        if condition.is_number:
            if condition.value:
                self._block(chosen, frame)
            else:
                self._else(rest, frame)
            return
        before, local, line = dict(self.values), dict(frame), self.line
        self._block(chosen, frame)
        values, locals_ = dict(self.values), dict(frame)
        self.values = before
        frame.clear()
        frame.update(local)
        self._else(rest, frame)
        for here, there in ((frame, locals_), (self.values, values)):
            for key in dict.fromkeys((*here, *there)):
                one = there.get(key) or self._unset(key)
                other = here.get(key) or self._unset(key)
                if one != other:
                    here[key] = self._defined(key, self._chosen(condition, one, other, line))

    def _chosen(self, condition: Node, one: Node, other: Node, line: int) -> Node:
        plain = unguarded(self.found, condition, one, other, line)
        return choice(condition, one, other) if plain is None else plain

    def _else(self, rest: list[Tree], frame: Frame) -> None:
        if not rest:
            return
        first = rest[0]
        if first.kind == "ElseIfStatement":
            condition = self._condition(self._expression(first.children[0], frame))
            self._branches(self._switched(condition), first.children[1], rest[1:], frame)
        else:
            self._block(first.children[0], frame)

    def _loop(self, tree: Tree, frame: Frame) -> None:
        bounds = [self._expression(child, frame) for child in tree.children[1:-1]]
        if not all(b.is_number and b.value.is_integer() for b in bounds):
            self._refuse("a loop whose bounds are no numbers that are known")
        first, last, step = [int(b.value) for b in bounds] + [1] * (3 - len(bounds))
        if step < 1:
            self._refuse("a loop that does not count upward")
        counter, hidden = tree.children[0].text, frame.get(tree.children[0].text)
        self._count(len(range(first, min(last, first + _MOST_STATEMENTS * step) + 1, step)))
        for k in range(first, last + 1, step):
            frame[counter] = number(k)
            self._block(tree.children[-1], frame)
        frame.pop(counter, None)
        if hidden is not None:
            frame[counter] = hidden

    # expressions

    def _expression(self, tree: Tree, frame: Frame) -> Node:
        """Return an expression of the file with the values of its variables put in.

        Arguments:
            tree: the part of the file's syntax tree that holds the expression.
            frame: the arguments and LOCAL variables that it can name.

        Raises InputError: a part that cannot be translated, with its line.
        """
        self.line = tree.line or self.line  # for messages
        if tree.kind in ("Double", "Integer", "Float"):
            return number(float(tree.text))
        if tree.kind == "DoubleUnit":
            return number(float(tree.children[0].text))
        if tree.kind in ("Name", "IndexedName"):
            return self._variable(self._key(tree, frame), frame)
        if tree.kind == "FunctionCall":
            return self._call(tree, frame)
        if tree.kind == "UnaryExpression":
            sign, operand = tree.children
            node = self._expression(operand, frame)
            if sign.text == "!":
                return make("not", self._condition(node))
            return make("neg", self._number(node))
        if tree.kind == "BinaryExpression":
            left, sign, right = tree.children
            operands = self._expression(left, frame), self._expression(right, frame)
            return self._binary(sign.text, *operands)
        self._refuse(f"{tree.kind} cannot be translated")

    def _binary(self, sign: str, left: Node, right: Node) -> Node:
        """Return two values joined by a logical operator, a comparison or arithmetic."""
        op = _OPERATORS.get(sign, sign)
        if op in ("and", "or"):
            return make(op, self._condition(left), self._condition(right))
        if op not in COMPARISONS and op not in _ARITHMETIC:
            self._refuse(f'the operator "{sign}" cannot be translated')
        return self._made(op, self._number(left), self._number(right))

    def _made(self, op: str, *args: Node) -> Node:
        """Return `make(op, *args)`; its error names the line of the file."""
        try:
            return make(op, *args)
        except InputError as error:
            self._refuse(error.message)

    def _condition(self, node: Node) -> Node:
        """Return a condition; a number is true where it is not 0."""
        logical = node.op in (*COMPARISONS, "and", "or", "not") or node.is_number
        return node if logical else make("!=", node, nodes.ZERO)

    def _number(self, node: Node) -> Node:
        """Return a number; a condition is 1 where it holds and 0 else."""
        if node.op in (*COMPARISONS, "and", "or", "not"):
            return choice(node, nodes.ONE, nodes.ZERO)
        return node

    def _variable(self, key: str, frame: Frame) -> Node:
        """Return the value that a variable has at this statement."""
        if key in frame:
            return frame[key]
        if key == "celsius":
            self.uses_celsius = True
            return name("celsius")
        if key in self.values:
            return self.values[key]
        if key in _OUTSIDE:
            return self._unset(key)
        if self.declared.knows(key):
            return self._unset(key)
        self._refuse(f"{key} is not declared")

    def _unset(self, key: str) -> Node:
        """Return a variable's value before this step."""
        self.old.setdefault(_OLD + key, (key, self.line))
        return name(_OLD + key)

    def _call(self, tree: Tree, frame: Frame) -> Node:
        """Return the value of a call: of a function of the file, or of one that NMODL has."""
        called = tree.children[0].text
        args = [self._expression(child, frame) for child in tree.children[1:]]
        if called in self.declared.functions:
            return self._inlined(called, args)
        count = 1 if called in _ONE_ARGUMENT else _WRITTEN_BY.get(called)
        if len(args) != count:
            self._refuse(f"the function {called}() cannot be translated")
        args = [self._number(arg) for arg in args]
        if called == "pow":
            return self._made("**", *args)
        if called == "log10":
            return make("/", self._made("log", *args), make("log", number(10)))
        if called in ("sinh", "cosh"):
            up, down = make("exp", args[0]), make("exp", make("neg", args[0]))
            return make("/", make("-" if called == "sinh" else "+", up, down), number(2))
        if called in ("fmin", "fmax"):
            return self._made(called[1:], *args)
        return self._made(_ONE_ARGUMENT[called], *args)

    def _inlined(self, called: str, args: list[Node]) -> Node:
        """Return the value of a FUNCTION, or the assignments of a PROCEDURE."""
        block, line = self.declared.functions[called], self.line
        names = [argument.name for argument in block.all("Argument")]
        if len(names) != len(args):
            self._refuse(f"{called}() takes {len(names)} arguments, not {len(args)}")
        self.depth += 1
        if self.depth > _DEEPEST:
            self._refuse(f"{called}() calls itself, or calls are nested too deeply")
        frame = Frame()
        for key, node in zip(names, args, strict=True):
            frame[key] = node if node.size <= _SHORT else self._defined(key, node)
        frame[called] = nodes.ZERO
        self._block(block.all("StatementBlock")[0], frame)
        self.depth, self.line = self.depth - 1, line
        return frame[called]

    # solved blocks

    def _solve(self, tree: Tree) -> None:
        solved = tree.children[0].text
        block = self.declared.solvable.get(solved)
        if block is None:
            self._refuse(f"SOLVE {solved}: there is no such block of equations")
        inside = block.all("StatementBlock")[0]
        if self.in_initial and block.kind in ("KineticBlock", "DerivativeBlock"):
            states = self._states_in(inside)
            self.found.steady |= states
            return
        if self.in_initial and block.kind == "LinearBlock":
            self.found.steady |= self._states_in(inside)
            before = {key: self.values[key] for key in self.declared.states}
            self.values |= {key: name(key) for key in self.declared.states}
            self._block(inside, Frame())
            self.values |= before
            return
        if block.kind == "LinearBlock":
            self._refuse(f"SOLVE {solved}: a LINEAR block is translated in INITIAL alone")
        if block.kind == "ProcedureBlock":
            self._steps(solved, inside)
            return
        self._block(inside, Frame())
        self.values["v"] = name("v")  # NEURON reads it anew where the current is computed

    def _steps(self, solved: str, inside: Tree) -> None:
        """Read a PROCEDURE that advances gates by exact steps, m = m + (1 - exp(-dt/tau))*.."""
        states, line = self.declared.states, self.line
        self.values |= {key: name(key) for key in states} | {"dt": self._unset("dt")}
        self._block(inside, Frame())
        for key in states:
            step = self.values[key]
            self.values[key] = name(key)
            if step == name(key):
                continue
            rate = exact_step(self.found, key, step, _OLD + "dt")
            if rate is None:
                self.line = line
                self._refuse(
                    f"SOLVE {solved}: a PROCEDURE that advances {key} by a step that is not the "
                    "exact one of a gate, m = m + (1 - exp(-dt/tau))*(inf - m)"
                )
            self.found.rhs[key] = rate
        del self.values["dt"]
        self.found.stepped = True
        self.values["v"] = name("v")

    def _states_in(self, block: Tree) -> set[str]:
        found = {tree.text for tree in block.walk() if tree.kind in ("Name", "PrimeName")}
        return found & self.declared.states.keys()

    def _derivative(self, tree: Tree, frame: Frame) -> None:
        state = tree.children[0].text
        if state not in self.declared.states:
            self._refuse(f"{state}' is the derivative of no STATE")
        self.found.lines[state] = tree.line
        self.found.rhs[state] = self._expression(tree.children[2], frame)

    def _reaction(self, tree: Tree, frame: Frame) -> None:
        sign = next(child.text for child in tree.children if child.kind == "ReactionOperator")
        if sign != "<->":
            self._refuse(f'a reaction "~ ... {sign}": states come from nothing or go there')
        left, _, right, *rates = tree.children
        sides = [self._species(side) for side in (left, right)]
        if any(rate.name in ("f_flux", "b_flux") for rate in rates):
            self._refuse("f_flux and b_flux cannot be translated")
        forth, back = (self._number(self._expression(rate, frame)) for rate in rates)
        (source, *others), (target, *more) = sides
        for factor in others:
            forth = make("*", forth, self._variable(factor, frame))
        for factor in more:
            back = make("*", back, self._variable(factor, frame))
        self.found.reactions.append(Reaction(source, target, forth, back, tree.line))
        for state in (source, target):
            self.found.lines[state] = tree.line

    def _species(self, side: Tree) -> list[str]:
        """Return the one state of a side of a reaction, and its constant factors."""
        names = []
        for piece in [side] if side.kind == "ReactVarName" else side.all("ReactVarName"):
            if any(child.kind == "Integer" for child in piece.children):
                self._refuse("a reaction of several copies of one state")
            names.append(piece.name)
        states = [key for key in names if key in self.declared.states]
        if len(states) != 1:
            reactants = " + ".join(names) or "nothing"
            self._refuse(f"a reaction of {reactants}: one state on each side can be translated")
        return [*states, *(key for key in names if key not in states)]

    def _conserve(self, tree: Tree, frame: Frame) -> None:
        total = self._expression(tree.children[-1], frame)
        if total != nodes.ONE:
            self._refuse("CONSERVE: the states must add up to the number 1")

    def _refuse(self, message: str) -> NoReturn:
        raise InputError(message, None, f"line {self.line}" if self.line else None)
