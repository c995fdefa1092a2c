"""JSON Schemas for editors, and the reference of all keys: they say what the readers do.

A schema may let pass what only a reader can see, but it refuses nothing that a reader accepts, and
it sees unknown keys, wrong shapes, wrong units and words that are not among those allowed.
"""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from channelfit.front.kinds import load_plan
from channelfit.functions.fit_file import FunctionPlan
from channelfit.reading.documents import dump_yaml, parse_yaml, read_yaml
from channelfit.reading.errors import InputError
from channelfit.reading.keys import KEYS, SETTINGS
from channelfit.reading.keys.shapes import Choice, Integer, Key, Number, Quantity, Shape, UnitText
from channelfit.reading.reference import reference
from channelfit.reading.schema import FILES, SECTIONS, file_schema, kind_of, section_schema
from channelfit.reading.units import Membrane, dimensions, unit_factor, unit_pattern
from channelfit.search.choose import make_optimizer
from channelfit.search.saved_fit import fit_document
from channelfit.search.swarm import SwarmCoefficients
from support.json_output import ran, refused
from support.key_proofs import PROOFS, prepare
from support.places import ROOT
from support.recorded_files import OPENS, recorded

SHIPPED = sorted(
    path
    for folder in ("models", "protocols", "benchmarks/problems")
    for path in (ROOT / folder).rglob("*.yaml")
)
PAGES = [ROOT / "README.md", ROOT / "models" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@cache
def checker(name: str, a_file: bool = False) -> jsonschema.Draft7Validator:
    """What checks sections of a name, or files of a kind."""
    schema = file_schema(name) if a_file else section_schema(name)
    jsonschema.Draft7Validator.check_schema(schema)
    return jsonschema.Draft7Validator(schema)


def faults(document: dict[str, Any]) -> list[str]:
    """What the schema of a document finds wrong, place by place."""
    found = checker(kind_of(document), a_file=True).iter_errors(document)
    return [f"{'.'.join(map(str, fault.absolute_path))}: {fault.message[:200]}" for fault in found]


# --- what is shipped -----------------------------------------------------------------------------
def test_shipped_files_are_what_their_schemas_say() -> None:
    assert {str(path): faults(read_yaml(path)) for path in SHIPPED} == {
        str(path): [] for path in SHIPPED
    }


def blocks() -> Iterator[tuple[str, Any]]:
    """The YAML in the pages, with the page that it stands in."""
    for page in PAGES:
        for text in re.findall(r"```yaml\n(.*?)```", page.read_text("utf-8"), re.DOTALL):
            yield page.name, yaml.load(text, Loader=yaml.BaseLoader)


def whole(block: Any) -> dict[str, Any]:
    """A block of a page as a whole file, where it shows a part of one."""
    if isinstance(block, list):
        return {"fit": {"experiments": block}}
    if "recording" in block:
        return {"fit": {"experiments": [{"protocol": "steps.yaml", **block}]}}
    return dict(block)


def test_the_examples_in_the_pages_are_what_the_schemas_say() -> None:
    for page, block in blocks():
        document = parse_yaml(re.sub(r"'(?!>|<|{|, )([^'\n]*)'", r"\1", dump_yaml(whole(block))))
        assert list(block)[:1] == ["yaml.schemas"] or faults(document) == [], page


def test_files_that_the_program_writes_are_what_the_schemas_say(tmp_path, monkeypatch):
    """Starters, protocols that were found, and a fit that was saved."""
    monkeypatch.chdir(tmp_path)
    recorded(tmp_path, {"m": OPENS})
    for words in (
        ["init", "cell.csv", "--command", "steps.yaml"],
        ["inspect", "steps.yaml", "--protocol", "again.yaml"],
    ):
        ran(*words)
    plan = load_plan("cell-fit.yaml", (), "cpu")
    middle = np.array([(p.lower + p.upper) / 2 for p in plan.problem.parameters])
    Path("saved.yaml").write_text(dump_yaml(fit_document(plan, middle, tmp_path)))
    names = ["again.yaml", "cell-fit.yaml", "saved.yaml", "steps.yaml"]
    assert set(names) < {path.name for path in tmp_path.glob("*.yaml")}
    for path in tmp_path.glob("*.yaml"):
        assert faults(read_yaml(path)) == [], path


# --- the table itself ----------------------------------------------------------------------------
def told() -> dict[str, dict[str, Key]]:
    """Every key that may be given, by section."""
    tables = {**SECTIONS, **{f"optimizer {name}": own for name, own in SETTINGS.items()}}
    return {
        section: {name: key for name, key in keys.items() if not key.elsewhere}
        for section, keys in tables.items()
    }


def fault_of_value(section: str, name: str, value: object) -> list[str]:
    """What a section's schema finds wrong with the value of one key."""
    given: dict[str, Any] = {name: value}
    if section.startswith("optimizer "):
        section, given = "optimizer", {"name": section.removeprefix("optimizer "), name: value}
    found = checker(section).iter_errors(given)
    return [fault.message for fault in found if list(fault.absolute_path)[:1] == [name]]


def inside(shape: Shape, kind: type[Shape]) -> bool:
    return any(isinstance(part, kind) for part in shape.parts())


@pytest.mark.parametrize("section", told())
def test_keys_are_explained_and_values_of_another_kind_are_seen(section: str) -> None:
    """Another type; a unit of another dimension; a word that is not among those allowed."""
    for name, key in told()[section].items():
        assert re.fullmatch(r"[A-Z].*[.]", key.meaning), (name, key.meaning)
        assert key.example is not None, name
        assert fault_of_value(section, name, key.example) == [], name
        wrong: list[object] = [{"no": {"such": "thing"}}]
        if not inside(key.shape, Quantity) or "expression" not in str(key.shape):
            wrong += [] if str(key.shape).startswith(("Flag", "Either")) else [True]
        if inside(key.shape, Quantity) or inside(key.shape, UnitText):
            wrong += ["5 furlong", "5 kg"]
        if isinstance(key.shape, Choice):
            wrong += [key.shape.words[0] + "x", 5]
        for value in wrong:
            assert fault_of_value(section, name, value), (name, value)


def test_an_unknown_key_is_seen_in_every_section() -> None:
    for section in SECTIONS:
        messages = [f.message for f in checker(section).iter_errors({"no_such_key": 1})]
        assert any("no_such_key" in message for message in messages), section


# --- units ---------------------------------------------------------------------------------------
PIECES = ["^", "²", "2", "1", " ", "*", ".", "·", "/", "-1", "-2", "1/", "(", ")", "µ", "μ", "u"]
UNITS = ["mV", "1/ms", "S/cm2", "uA/cm2", "pA/pF", "1/mM/ms", "um3/ms", "1/(ms mV)", "per s", "µs"]
UNITS += [
    "Ohm cm",
    "ohm*m",
    "mm",
    "S cm^-2",
    "mM-1 ms-1",
    "degC",
    "°C",
    "MΩ",
    "mmol/l",
    "dimensionless",
    "1",
    "",
    "kHz",
]


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(UNITS),
    st.lists(st.tuples(st.integers(0, 12), st.sampled_from([*PIECES, *UNITS]), st.booleans())),
)
def test_the_pattern_of_units_is_exact(unit: str, edits: list[tuple[int, str, bool]]) -> None:
    for place, piece, instead in edits[:4]:
        unit = unit[:place] + piece + unit[place + instead :]
    if len(unit.strip()) > 40 or not unit.strip():
        return
    for dimension in dimensions():
        pattern = rf"\s*{unit_pattern([dimension], sized=True)}\s*"
        try:
            unit_factor(unit, dimension, membrane=Membrane(1.0, 1.0))
            accepted = True
        except InputError:
            accepted = False
        assert bool(re.fullmatch(pattern, unit)) == accepted, (unit, dimension)


# --- schema and reader ---------------------------------------------------------------------------

#: What is put in place of values: shapes, units and words that belong elsewhere.
VALUES: list[Any] = [
    *("5 ms", "-80 mV", "3 pA", "nS", "1/ms", "mV", "x", "a", "g", "", " log ", "2*a", "C -> O"),
    *("log", "all", "none", "fit", "values", "5 1", "1e5", "²", "5 µs", "1", "5.0"),
    *(True, False, None, 0, 1, 2, -1, 0.5, 1e300, [], {}, [1], [1, 2], ["a"], {"a": 1}),
    *({"from": 0, "to": 3}, [[1, 2], [3, 4]], [{"a": 1}]),
]
KEYS_ANYWHERE = [(name, key) for keys in KEYS.values() for name, key in keys.items()]


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every mapping and list with each of its keys, from the outside in."""
    rows = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in rows:
        yield value, key
        if isinstance(inner, dict | list):
            yield from places(inner)


def mutant(document: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """A copy with a few slips: another value, a misspelled, missing or foreign key, a bracket."""
    document = copy.deepcopy(document)
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        if not document:
            break
        within, key = draw.choice(list(places(document)))
        way = draw.randrange(7)
        if way <= 2:
            within[key] = copy.deepcopy(draw.choice(VALUES))
        elif way == 3 and isinstance(within, dict):
            place = draw.randrange(len(key))
            value = within.pop(key)
            within[key[:place] + draw.choice(["", "x"]) + key[place + 1 :]] = value
        elif way == 4:
            del within[key]
        elif way == 5 and isinstance(within, dict):
            name, told = draw.choice(KEYS_ANYWHERE)
            within[name] = copy.deepcopy(draw.choice([told.example, *VALUES]))
        else:
            within[key] = [within[key]] if draw.random() < 0.5 else {"x": within[key]}
    return document


#: The documents of all proofs of `test_keys`, with the base that they are written as.
DOCUMENTS = [(proof.base, one) for proof in PROOFS.values() for one in proof.documents()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all that the documents name."""
    return prepare(tmp_path_factory.mktemp("files"))


def refusal(folder: Path, base: str, document: dict[str, Any]) -> str:
    """What the readers refuse a document with; empty where they accept it."""
    file = folder / f"{base}.yaml"
    before = file.read_text() if file.exists() else ""
    file.write_text(dump_yaml(document))
    try:
        load_plan(folder / ("model.yaml" if base == "steps" else file.name), (), "reference")
    except InputError as error:
        return str(error)
    finally:
        file.write_text(before)
    return ""


def test_schemas_accept_what_the_readers_accept(folder: Path) -> None:
    for base, document in DOCUMENTS:
        assert faults(document) == [] or refusal(folder, base, document), document


def test_what_a_schema_refuses_the_readers_refuse(folder: Path) -> None:
    draw, seen = random.Random(3), 0
    for _ in range(250):
        base, document = draw.choice(DOCUMENTS)
        made = mutant(document, draw)
        if kind_of(made) == kind_of(document) and (found := faults(made)):
            assert refusal(folder, base, made), (found, made)
            seen += 1
    assert seen > 100


# --- settings of searches ------------------------------------------------------------------------
@pytest.mark.parametrize("name", SETTINGS)
def test_defaults_and_bounds_of_settings_are_those_of_the_optimizers(name: str) -> None:
    """Both refuse what lies beyond the bounds; a schema is no stricter than the optimizer."""
    if name == "cma":
        pytest.importorskip("cma")

    def made(told: dict[str, Any]) -> Any:
        return make_optimizer(name, told, 4, 3, makers=FunctionPlan.optimizers)

    known = {"population": "population_size", "neighbors": "topology", "group": "topology"}
    beside = {"population": 64} if "population" in SETTINGS[name] else {}
    beside |= {"starts": 1} if name == "hybrid" else {}  # among the points of its scan
    for setting, key in SETTINGS[name].items():
        if key.default is None:
            assert key.otherwise, setting  # said in words
        elif setting == "islands":
            assert key.default == 1
        else:
            told = {"islands": 2} if setting in ("migrate_every", "migrants") else {}
            optimizer = made(told)
            place = getattr(optimizer, known.get(setting, setting), None)
            place = optimizer.coefficients if setting in vars(SwarmCoefficients()) else place
            if place is None or setting == "exchange":
                topology = setting in ("neighbors", "group", "exchange")
                place = optimizer.topology if topology else optimizer
            assert getattr(place, setting, place) == key.default, setting
        shape = key.shape
        assert isinstance(shape, Integer | Number)
        for bound, step in ((shape.least, -1), (shape.most, 1)):
            if bound is not None:
                with pytest.raises(InputError, match=setting):
                    made({setting: bound + step})
        if isinstance(shape, Integer):
            made(beside | {setting: shape.least})


@pytest.mark.parametrize("name", SETTINGS)
def test_an_optimizer_is_offered_its_own_settings_alone(name: str) -> None:
    everything = {setting: key for own in SETTINGS.values() for setting, key in own.items()}
    for setting in everything:
        fit = {"optimizer": {"name": name, setting: everything[setting].example}}
        seen = faults({"fit": {"protocols": ["a.yaml"], **fit}})
        assert (seen == []) == (setting in SETTINGS[name]), (setting, seen)


# --- the command ---------------------------------------------------------------------------------
def test_schemas_are_written_and_replaced_but_nothing_else_is(tmp_path: Path) -> None:
    done = ran("schema", "--out", tmp_path / "schemas")
    names = sorted(path.name for path in (tmp_path / "schemas").iterdir())
    assert names == sorted(f"channelfit-{kind}.schema.json" for kind in FILES)
    assert "# yaml-language-server: $schema=" in done.output
    where = re.search(r"\{\"yaml.schemas.*\}\}", done.output, re.DOTALL)
    assert where
    assert all(Path(p).exists() for p in json.loads(where[0])["yaml.schemas"])
    ran("schema", "--out", tmp_path / "schemas")
    for _ in range(2):
        ran("schema", "--to", "markdown", "--out", tmp_path)
    assert (tmp_path / "channelfit-reference.md").read_text("utf-8") == reference()
    other = tmp_path / "schemas" / "channelfit-fit.schema.json"
    other.write_text("{}")
    assert "is not replaced" in refused("schema", "fit", "--out", tmp_path / "schemas").output
    assert other.read_text() == "{}"


# --- the page ------------------------------------------------------------------------------------
def test_the_page_names_every_key_of_every_section() -> None:
    page = reference()
    tables = dict(re.findall(r"^##+ ([^\n]*)\n(.*?)(?=^##|\Z)", page, re.MULTILINE | re.DOTALL))
    titles = {section: f"A {kind} file" for kind, section in FILES.items()}
    for section, keys in SECTIONS.items():
        text = tables[titles.get(section, f"`{section}`")]
        wanted = {name for name, key in keys.items() if not key.elsewhere}
        if section == "optimizer":
            wanted |= {setting for own in SETTINGS.values() for setting in own}
        assert set(re.findall(r"^\| `([^`]+)`", text, re.MULTILINE)) == wanted, section
