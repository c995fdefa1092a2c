"""A model written in Python: the same keys as in a model file, and the same checks."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from channelfit.model.channel import ChannelModel
from channelfit.model.model_file import build_model
from channelfit.model.printed_form import modern_form, read_model_document
from channelfit.reading.documents import Section, dump_yaml, parse_yaml
from channelfit.reading.errors import InputError
from channelfit.reading.files import save_text
from channelfit.reading.keys import KEYS, is_function
from channelfit.reading.plain import plain


class Model:
    """A kinetic model of one ion channel.

    The arguments are the keys of a model file, one to one. Give either `states` and `rates`, or
    `gates`. Everything is checked here, so that a model that exists can be used. What is passed in
    is copied: changing it later does not change the model.

    Arguments:
        name: its name in titles and file names.
        description: the channel, in words.
        source: its origin, such as a paper.
        temperature: degC, a number or text with a unit (``"22 degC"``); expressions can then use
            ``celsius``.
        ligands: names of concentrations, mM, that a protocol commands; rates may use them.
        states: names of the states, such as ``["C", "O"]``.
        rates: expressions in 1/ms by transition, such as ``{"C -> O": "a*exp(z*v)"}``. They may
            use the voltage ``v`` (mV), parameters, definitions and the functions exp, log, sqrt,
            abs, tanh, min, max and exprel. ``"balance"`` is the rate that microscopic
            reversibility leaves.
        gates: Hodgkin-Huxley gates by name, each a mapping of ``power`` and either ``alpha`` and
            ``beta`` (1/ms), or ``inf`` and ``tau`` (ms).
        definitions: named expressions that rates, gates and other definitions may use.
        parameters: by name, each a mapping of ``range: [lower, upper]`` and, optionally,
            ``unit``, ``value``, ``scale`` ("linear" or "log"), ``fixed``, ``prior`` or ``tie``.
        current: a mapping of ``conductance`` and ``reversal`` (each a quantity such as
            ``"-90 mV"``, or an expression of parameters), and ``open`` for a model of states: the
            conducting states, or their relative conductances. ``area`` or ``capacitance`` is
            needed for a conductance per either. ``gating`` is what the charges of the channels
            themselves carry as they move.

    Raises:
        InputError: anything that cannot be used, with the argument (and the key in it), the value
            and what would be right. An unknown argument is one of these.

    Example:
        >>> import channelfit as cf
        >>> model = cf.Model(
        ...     name="two states",
        ...     states=["C", "O"],
        ...     rates={"C -> O": "a*exp(z*v)", "O -> C": "b"},
        ...     current={"open": ["O"], "conductance": "g", "reversal": "-90 mV"},
        ...     parameters={
        ...         "a": {"range": [0.001, 1], "unit": "1/ms", "scale": "log", "value": 0.1},
        ...         "z": {"range": [0, 0.1], "unit": "1/mV", "value": 0.02},
        ...         "b": {"range": [0.001, 1], "unit": "1/ms", "scale": "log", "value": 0.05},
        ...         "g": {"range": [1, 100], "unit": "nS", "value": 10},
        ...     },
        ... )
        >>> model
        <Model two states: states C, O; 4 parameters>
        >>> model.channel.values()
        array([ 0.1 ,  0.02,  0.05, 10.  ])
    """

    def __init__(
        self,
        *,
        name: str | None = None,
        description: str | None = None,
        source: str | None = None,
        temperature: float | str | None = None,
        ligands: Sequence[str] | None = None,
        states: Sequence[str] | None = None,
        rates: Mapping[str, Any] | None = None,
        gates: Mapping[str, Mapping[str, Any]] | None = None,
        definitions: Mapping[str, Any] | None = None,
        parameters: Mapping[str, Mapping[str, Any]] | None = None,
        current: Mapping[str, Any] | None = None,
        currents: Mapping[str, Mapping[str, Any]] | None = None,
        leak: Mapping[str, Any] | None = None,
        **unknown: Any,
    ) -> None:
        if "fit" in unknown:
            raise InputError(
                "a model made in Python holds no fit section; give its settings to the function "
                "that fits",
                key="fit",
            )
        accepted = {key: row for key, row in KEYS["model"].items() if key != "fit"}
        Section(unknown, None).expect(accepted)
        arguments = {
            "name": name,
            "description": description,
            "source": source,
            "temperature": temperature,
            "ligands": ligands,
            "parameters": parameters,
            "definitions": definitions,
            "states": states,
            "rates": rates,
            "gates": gates,
            "current": current,
            "currents": currents,
            "leak": leak,
        }
        self._take({key: value for key, value in arguments.items() if value is not None}, None)

    def _take(self, document: Mapping[str, Any], file: str | os.PathLike[str] | None) -> None:
        """Check a document and keep a plain copy of it."""
        whole = plain(document)
        whole.pop("fit", None)
        self._channel = build_model(whole, file)
        channel = self._channel
        titles = {"name": channel.name, "description": channel.description}
        whole |= {**titles, "source": channel.source}
        self._document = {key: whole[key] for key in KEYS["model"] if whole.get(key, "") != ""}

    @classmethod
    def _from_document(
        cls, document: Mapping[str, Any], file: str | os.PathLike[str] | None
    ) -> Model:
        if isinstance(document.get("model"), str):
            raise InputError(
                "this is a fit file, which may change the model that it names; load the model's "
                f"own file, {document['model']}, or fit the whole with channelfit.fit",
                file,
                "model",
            )
        model = cls.__new__(cls)
        model._take(modern_form(document, file), file)
        return model

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Model:
        """Return the model that a file describes.

        The file is YAML, or has the compact form of Ben-Shalom et al. 2012. A `fit` section in it
        is left out.

        Arguments:
            path: the model file.

        Raises:
            InputError: the file cannot be read or used, with file, key and what would be right; a
                fit file, since it can change the model that it names.

        Example:
            >>> import channelfit as cf
            >>> cf.Model.load("models/na_hh.yaml")
            <Model na_hh: gates m^3, h; 11 parameters>
        """
        document = read_model_document(path)
        if is_function(document):
            raise InputError("this file describes a function; channelfit.fit(path) fits it", path)
        return cls._from_document(document, path)

    @classmethod
    def from_yaml(cls, text: str) -> Model:
        """Return the model in a YAML text, such as `to_yaml` gives.

        Raises:
            InputError: the text is not YAML, or not a model; with line or key.

        Example:
            >>> import channelfit as cf
            >>> model = cf.Model.load("models/k_hh_gate.yaml")
            >>> cf.Model.from_yaml(model.to_yaml()) == model
            True
        """
        if not isinstance(text, str):
            raise InputError(f"YAML text was expected, not a {type(text).__name__}")
        return cls._from_document(parse_yaml(text), None)

    @property
    def name(self) -> str:
        """The name of the model."""
        return self._channel.name

    @property
    def channel(self) -> ChannelModel:
        """The checked model: states or gates, rates as expressions, parameters in base units.

        Base units are ms, mV, nS, pA and 1/ms.

        Example:
            >>> import channelfit as cf
            >>> cf.Model.load("models/model_a.yaml").channel.parameter_names
            ('a12', 'z12', 'a21', 'z21', 'gmax')
        """
        return self._channel

    @property
    def values(self) -> dict[str, float | None]:
        """Values by parameter, in base units; None where the model gives none.

        Example:
            >>> import channelfit as cf
            >>> cf.Model.load("models/model_b.yaml").values["gmax"]
            5.0
        """
        return {p.name: p.value for p in self._channel.parameters}

    @property
    def document(self) -> dict[str, Any]:
        """A copy of the model's keys and values, as in a model file, as plain data.

        Example:
            >>> import channelfit as cf
            >>> cf.Model.load("models/model_a.yaml").document["states"]
            ['C', 'O']
        """
        return copy.deepcopy(self._document)

    def to_yaml(self) -> str:
        """Return the model as the text of a model file; reading it gives an equal model.

        Example:
            >>> import channelfit as cf
            >>> print(cf.Model.load("models/model_a.yaml").to_yaml().splitlines()[0])
            name: model_a
        """
        return dump_yaml(self._document)

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> Path:
        """Write the model file and return its path.

        Arguments:
            path: the file to write.
            overwrite: whether a file of that name may be replaced.

        Raises:
            InputError: the file exists and `overwrite` is false, or it cannot be written.

        Example:
            >>> import channelfit as cf
            >>> path = cf.Model.load("models/model_a.yaml").save("my_model.yaml")
            >>> cf.Model.load(path)
            <Model model_a: states C, O; 5 parameters>
        """
        return save_text(path, self.to_yaml(), overwrite)

    def __eq__(self, other: object) -> bool:
        """Return whether both are the same channel; cautions, which name a file, do not count."""
        if not isinstance(other, Model):
            return NotImplemented
        return replace(self._channel, cautions=()) == replace(other._channel, cautions=())

    def __repr__(self) -> str:
        channel = self._channel
        gates = [c for c in channel.chains if c.is_gate]
        states = [s for c in channel.chains if not c.is_gate for s in c.states]
        more = f" and {len(states) - 8} more" if len(states) > 8 else ""
        opening = ["states " + ", ".join(states[:8]) + more] if states else []
        powers = (c.name + (f"^{c.power}" if c.power > 1 else "") for c in gates)
        opening += ["gates " + ", ".join(powers)] if gates else []
        parts = "; ".join(opening)
        count = f"{len(channel.parameters)} parameter{'s' * (len(channel.parameters) != 1)}"
        fixed = sum(p.fixed for p in channel.parameters)
        count += f" ({fixed} fixed)" if fixed else ""
        odd = len(channel.cautions)
        doubts = f"; {odd} caution{'s' * (odd > 1)} in .channel.cautions" if odd else ""
        return f"<Model {channel.name}: {parts}; {count}{doubts}>"
