"""The schemas in the language server of VS Code's YAML extension: it completes and it checks.

It needs Node and the server: `npm install yaml-language-server`, and its program on the PATH, or in
the environment variable CHANNELFIT_YAML_LANGUAGE_SERVER.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from channelfit.front.main import main
from support.places import ROOT

SERVER = os.environ.get("CHANNELFIT_YAML_LANGUAGE_SERVER") or shutil.which("yaml-language-server")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        not SERVER or not shutil.which("node"), reason="needs Node and yaml-language-server"
    ),
]


class Editor:
    """A client that speaks the language server protocol over pipes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.sent, self.opened = folder, 0, 0
        self.server = subprocess.Popen(
            ["node", str(SERVER), "--stdio"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.watch = threading.Timer(300, self.server.kill)  # no answer may take so long
        self.watch.start()
        self.ask("initialize", processId=None, rootUri=folder.as_uri(), capabilities={})
        self.tell("initialized")
        own = {"validate": True, "completion": True, "schemaStore": {"enable": False}}
        self.tell("workspace/didChangeConfiguration", settings={"yaml": own})

    def send(self, **message: Any) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self.server.stdin
        self.server.stdin.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        self.server.stdin.flush()

    def tell(self, method: str, **parameters: Any) -> None:
        self.send(method=method, params=parameters)

    def ask(self, method: str, **parameters: Any) -> Any:
        self.sent += 1
        self.send(id=self.sent, method=method, params=parameters)
        return self.until(
            lambda message: message.get("id") == self.sent and "method" not in message
        )["result"]

    def until(self, wanted: Any) -> dict[str, Any]:
        """Reads messages up to one that is wanted; what the server asks for it is refused."""
        assert self.server.stdout
        while True:
            length = 0
            while line := self.server.stdout.readline().strip():
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            assert length, "the server has ended"
            message = json.loads(self.server.stdout.read(length))
            if wanted(message):
                return message
            if "method" in message and "id" in message:
                asked = message.get("params", {}).get("items", [])
                self.send(id=message["id"], result=[None] * len(asked))

    def open(self, kind: str, text: str) -> tuple[str, list[str]]:
        """Opens a file with the line that names its schema; returns what is found wrong in it."""
        self.opened += 1
        uri = (self.folder / f"{self.opened}.yaml").as_uri()
        line = f"# yaml-language-server: $schema=schemas/channelfit-{kind}.schema.json\n"
        document = {"uri": uri, "languageId": "yaml", "version": 1, "text": line + text}
        self.tell("textDocument/didOpen", textDocument=document)
        told = self.until(
            lambda m: (
                m.get("method") == "textDocument/publishDiagnostics" and m["params"]["uri"] == uri
            )
        )
        return uri, [
            f"{d['range']['start']['line']}: {d['message']}" for d in told["params"]["diagnostics"]
        ]

    def completed(self, kind: str, text: str) -> dict[str, str]:
        """What is offered at the end of a text, with what is said of it."""
        uri, _ = self.open(kind, text)
        *lines, last = text.split("\n")
        place = {"line": len(lines) + 1, "character": len(last)}
        found = self.ask("textDocument/completion", textDocument={"uri": uri}, position=place)
        return {item["label"]: str(item.get("documentation", "")) for item in found["items"]}


@pytest.fixture(scope="module")
def editor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Editor]:
    folder = tmp_path_factory.mktemp("editor")
    done = CliRunner().invoke(main, ["schema", "--out", str(folder / "schemas")])
    assert done.exit_code == 0
    opened = Editor(folder)
    yield opened
    opened.watch.cancel()
    opened.server.kill()
    opened.server.wait()


FIT = "model: m.yaml\nfit:\n"


@pytest.mark.parametrize(
    ("kind", "text", "offered"),
    [
        ("fit", f"{FIT}  ", {"experiments", "clamp", "rates_within", "solve"}),
        ("fit", f"{FIT}  clamp:\n    ", {"series_resistance", "compensation", "lowpass"}),
        ("fit", f"{FIT}  optimizer:\n    name: ", {"hybrid", "genetic", "cma"}),
        ("model", "", {"states", "rates", "gates", "parameters", "current"}),
        ("model", "parameters:\n  a:\n    scale: ", {"linear", "log"}),
        ("protocol", "segments:\n  - ", {"hold", "step", "ramp", "sines", "recorded"}),
        ("function", "fit:\n  ", {"optimizer", "stop", "seed", "start"}),
    ],
)
def test_keys_and_words_are_offered(
    editor: Editor, kind: str, text: str, offered: set[str]
) -> None:
    found = editor.completed(kind, text)
    assert offered <= set(found)
    assert all(found[label] for label in offered)


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("protocol", "holding: -80 ms\n", "1: a number was expected, with or without a unit: mV"),
        (
            "protocol",
            "holding: 1\nsampling: 1\nsegments: [{stp: 1}]",
            "Property stp is not allowed",
        ),
        ("fit", f"{FIT}  noise: 5 mV", "3: a number was expected, with or without a unit: pA"),
        ("fit", f"{FIT}  sed: 5", "3: Property sed is not allowed"),
        ("fit", f"{FIT}  start: here", '3: Value is not accepted. Valid values: "none", "values"'),
        ("fit", f"{FIT}  seed: x", "3: Incorrect type"),
        ("fit", f"{FIT}  optimizer: {{name: hybrid, population: 5}}", "population is not allowed"),
        ("model", "current: {reversal: 5 ms, conductance: g}", "1: a number was expected"),
        ("model", "parameters: {a: {range: [1]}}", "too few items"),
        ("function", "cost: 1\noutputs: {}", "outputs is not allowed"),
    ],
)
def test_mistakes_are_marked(editor: Editor, kind: str, text: str, message: str) -> None:
    found = editor.open(kind, text)[1]
    assert any(message in one for one in found), found


def test_a_sound_file_is_not_marked(editor: Editor) -> None:
    for folder, kind in (("protocols", "protocol"), ("models", "model"), ("models/fits", "fit")):
        for path in sorted((ROOT / folder).glob("*.yaml")):
            text = path.read_text("utf-8")
            if kind == "fit" and "\nmodel: " not in text:
                continue
            assert editor.open(kind, text)[1] == [], path
