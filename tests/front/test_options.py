"""Options of the command line: one declaration each, from which Python's arguments do not stray."""

import dataclasses
import inspect
from pathlib import Path

import click
import pytest

import channelfit as cf
from channelfit.front.commands.inputs import changes_of
from channelfit.front.main import main
from channelfit.front.options import kept_options, overrides_of
from channelfit.front.verbs.batch import BatchOptions
from channelfit.front.verbs.cell import CellOptions
from channelfit.front.verbs.curves import CurvesOptions
from channelfit.front.verbs.discover import DiscoverOptions
from channelfit.front.verbs.fhn import FhnOptions
from channelfit.front.verbs.fits import (
    CompareOptions,
    ExportOptions,
    OptimizeOptions,
    UncertaintyOptions,
)
from channelfit.front.verbs.models import DesignOptions, SimulateOptions
from channelfit.reading.keys import KEYS, SETTINGS

#: By verb: its options, the Python function, and the arguments that only Python has.
TABLES = {
    "optimize": (
        OptimizeOptions,
        cf.fit,
        # data in memory, a cost of one's own, and keys of a fit file (--set fit.noise=..)
        {"experiments", "cost", "rates_within", "noise", "solve", "start", "name"},
    ),
    "discover": (DiscoverOptions, cf.discover, {"experiments", "schemes"}),
    "design": (DesignOptions, cf.design, {"values", "progress"}),
    "batch": (BatchOptions, cf.fit_batch, set()),
    "cell": (CellOptions, cf.cell, set()),
    "curves": (CurvesOptions, cf.fit_curves, set()),
    "uncertainty": (UncertaintyOptions, cf.uncertainty, {"progress"}),
    "compare": (CompareOptions, cf.compare, {"progress"}),
    "simulate": (SimulateOptions, cf.simulate, {"values", "progress"}),
    "export": (ExportOptions, cf.export, {"overwrite"}),
    "fhn": (FhnOptions, cf.fhn, set()),
}
#: Words that mean the same wherever they are an argument of a Python function.
ALIKE = ("folder", "resume", "progress", "cluster", "backend", "seed", "seeds")


@pytest.mark.parametrize("verb", TABLES)
def test_python_and_the_command_line_have_what_the_table_of_a_verb_says(verb: str) -> None:
    options, function, only_python = TABLES[verb]
    arguments = set(inspect.signature(function).parameters)
    declared_names = {f.name: f.metadata["option"].python for f in dataclasses.fields(options)}
    named = {python or name for name, python in declared_names.items() if python is not None}
    assert named - arguments == set(), f"{verb}: Python lacks what an option says it has"
    assert arguments - named == only_python, f"{verb}: Python has what no option says"
    declared = [p.name for p in main.commands[verb].params if p.expose_value]
    assert declared == [field.name for field in dataclasses.fields(options)]


def test_one_word_means_one_thing() -> None:
    """As the first words of what the docstrings say of it."""
    for word in ALIKE:
        kinds = {
            str(inspect.signature(function).parameters[word].annotation)
            for _, function, _ in TABLES.values()
            if word in inspect.signature(function).parameters
        }
        assert len({kind.replace(" | None", "") for kind in kinds}) <= 1, (word, kinds)


def test_keys_that_options_override_are_those_of_a_fit_file() -> None:
    for options, _, _ in TABLES.values():
        for field in dataclasses.fields(options):
            key = field.metadata["option"].key
            if key.startswith("fit.optimizer."):
                known = {name for settings in SETTINGS.values() for name in settings}
                assert key.rpartition(".")[2] in known | {"name", "generations"}
            elif key.startswith("fit.discover."):
                assert key.rpartition(".")[2] in KEYS["discover"]
            elif key:
                assert key.removeprefix("fit.") in KEYS["fit"]


def test_options_become_overrides_of_the_file() -> None:
    words = ["x.yaml", "--seed", "3", "--population", "40", "--set", "fit.stop.cost=1"]
    command = main.commands["optimize"]
    assert isinstance(command, click.Command)
    options = OptimizeOptions(**command.make_context("optimize", words).params)
    assert overrides_of(options) == {"fit.seed": 3, "fit.optimizer.population": 40}
    again = kept_options(options)
    assert again["model"] == "x.yaml"
    assert not {"out", "resume", "cluster", "quiet", "as_json"} & again.keys()
    document = {"fit": {"stop": {"generations": 4}}}
    changes_of(options).make(document, Path("x.yaml"))
    assert document["fit"] == {
        "stop": {"generations": 4, "cost": 1},
        "seed": 3,
        "optimizer": {"population": 40},
    }
