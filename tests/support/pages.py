"""The pages for users, and how what stands in their fenced blocks is run.

A page is followed from top to bottom, with the installed program, in a folder that is empty at the
beginning (`Reader`). The language of a block says what becomes of it:

    bash      each line is typed into bash, exactly as it is printed; `cd` holds for what follows
    python    runs with the others of its page, one after another, in the same folder
    yaml      is read as what it is: a model, a protocol, a function, a fit, or a part of a fit
    json      is read
    text      (nmodl, latex) is plain: a formula, or what a command prints; below a comment
              `<!-- prints -->`, all its lines must occur in what the block above it printed, in
              this order
    console   is typed by somebody whose computer has what this one may lack, such as a GPU or a
              second machine: its commands are parsed, and not run

A `yaml` or `python` block that begins with a comment `# name.yaml` or `# name.py` is saved under
that name for the commands that follow.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import yaml

from channelfit.batch.template import Template
from channelfit.cells.cell_file import read_cell
from channelfit.curves.curve import build_curve
from channelfit.discovery.run import ready
from channelfit.front.discoveries import read
from channelfit.front.main import main
from channelfit.front.night.calls import Call
from channelfit.front.night.jobs import read_night
from channelfit.functions.function import build_function
from channelfit.model.model_file import build_model
from channelfit.problem.protocol import build_protocol
from channelfit.reading.documents import Section
from channelfit.search.joined_files import FitFile
from channelfit.search.overrides import Changes
from channelfit.tasks.cluster_file import read_cluster
from support.places import ROOT

DOCS = ROOT / "docs"
LANGUAGES = {"bash", "python", "yaml", "json", "text", "nmodl", "latex", "console"}
PRINTS = "prints"
_FENCE = re.compile(
    r"^(?P<margin> *)```(?P<language>[\w-]*)[^\n]*\n(?P<text>.*?)^(?P=margin)```", re.M | re.S
)
_NAMED = re.compile(r"# ([\w.-]+\.(?:yaml|py))\b")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page; marker: the text of an HTML comment in the line above it."""

    page: Path
    line: int
    language: str
    marker: str
    text: str

    @property
    def name(self) -> str:
        found = _NAMED.match(self.text)
        return found[1] if found and self.language in ("yaml", "python") else ""

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """The fenced blocks of a page, in their order."""
    text = page.read_text(encoding="utf-8")
    found = []
    for fence in _FENCE.finditer(text):
        before = text[: fence.start()]
        above = before.rstrip("\n").rpartition("\n")[2].strip()
        marker = re.fullmatch(r"<!-- ([\w-]+) -->", above)
        inner = textwrap.dedent(fence["text"])
        line = before.count("\n") + 1
        found.append(Block(page, line, fence["language"], marker[1] if marker else "", inner))
    return found


def commands_of(blocks: Iterable[Block]) -> list[str]:
    """The lines of the bash blocks, without comments and empty lines."""
    lines = [line for b in blocks if b.language == "bash" for line in b.text.splitlines()]
    return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


# --- shells --------------------------------------------------------------------------------------


def typed(text: str, folder: Path, shell: dict[str, str], name: str) -> str:
    """Return the output of lines typed into bash; fail with all of it if one of them fails."""
    done = subprocess.run(
        ["bash", "--norc", "-euo", "pipefail", "-c", text],
        cwd=folder,
        env=shell,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
    )
    assert done.returncode == 0, f"{name}\n{text}\n{done.stdout}"
    return done.stdout


# --- YAML ----------------------------------------------------------------------------------------

#: The model of a part of a fit file, which may be a list of experiments or some keys of `fit`.
MODEL = "my_channel.yaml"


def read_yaml(block: Block, folder: Path) -> None:
    """Reads a block with the reader that a user's file would have."""
    document = yaml.safe_load(block.text)
    if block.name:
        (folder / block.name).write_text(block.text, encoding="utf-8")
    if isinstance(document, list):
        _read_fit({"model": MODEL, "fit": {"experiments": document}}, block, folder)
    elif "segments" in document:
        build_protocol(document, str(block))
    elif {"states", "gates", "currents"} & set(document) and "fit" not in document:
        build_model(document, str(block))
    elif "jobs" in document:
        place = folder / f"block_{block.line}.yaml"
        place.write_text(block.text, encoding="utf-8")
        night = read_night(place)
        for job in night.jobs.values():
            Call(night, job, main.commands[job.command])
    elif "membrane" in document:
        for channel in document["channels"].values():
            if not (folder / channel["model"]).exists():  # the page's commands would write it
                (folder / "samples.csv").write_text("a1\n0.01\n", encoding="utf-8")
                channel |= {"model": "models/k_hh_gate.yaml", "samples": "samples.csv"}
        read_cell(Section(document, folder / block.page.name))
    elif "curve" in document:
        build_curve(document, str(block))
    elif {"class", "scheduler", "local"} & set(document):
        _read_cluster(block, document, folder)
    elif {"cost", "outputs"} & set(document):
        build_function(document, folder / block.page.name)
    elif block.name and re.search(r"\{\w+\}", block.text):  # names of columns: of a batch
        assert Template.read(folder / block.name).expected.n_sweeps > 1
    elif "require" in document["fit"]:
        template = Template(FitFile({"model": MODEL, **document}, folder / block.page.name, folder))
        assert template.required == document["fit"]["require"]
    else:
        fit = {"protocols": ["my_steps.yaml"]} if "experiments" not in document["fit"] else {}
        _read_fit({"model": MODEL, **document, "fit": fit | document["fit"]}, block, folder)


def _read_fit(document: dict[str, Any], block: Block, folder: Path) -> None:
    place = folder / f"block_{block.line}.yaml"
    place.write_text(yaml.safe_dump(document), encoding="utf-8")
    plan, section = read(place, Changes(), "cpu")
    if section:
        ready(plan, section, None, "cpu")


def _read_cluster(block: Block, document: dict[str, Any], folder: Path) -> None:
    for name in document.get("tls", {}).values():
        (folder / name).touch()
    place = folder / f"block_{block.line}.yaml"
    place.write_text(block.text, encoding="utf-8")
    read_cluster(str(place))


# --- a whole page --------------------------------------------------------------------------------

#: A Python that runs one block a line, each a text in JSON, and answers when it has.
_PYTHON = """
import json, os, sys, traceback
space = {"__name__": "__main__"}
for line in sys.stdin:
    block = json.loads(line)
    os.chdir(block["folder"])
    try:
        exec(compile(block["text"], block["name"], "exec"), space)
    except BaseException:
        traceback.print_exc()
        print("failed", file=sys.__stdout__)
        break
    print("done", os.getcwd(), sep="\\0", flush=True)
"""


class Reader:
    """Someone who follows a page in an empty folder, with nothing but what the page says.

    Arguments:
        folder: where the page is followed; `cd` in a block of commands leads away from it.
        shell: the environment variables of its programs.
    """

    def __init__(self, folder: Path, shell: dict[str, str]) -> None:
        self.folder, self.shell, self.printed = folder, shell, ""
        self._python: subprocess.Popen[str] | None = None

    def follow(self, page: Path) -> None:
        """Types the commands and runs the Python of a page from top to bottom."""
        try:
            for block in blocks_of(page):
                self._do(block)
        finally:
            if self._python is not None:
                self._python.kill()
                self._python.communicate()

    def _do(self, block: Block) -> None:
        if block.language == "bash":
            self.type(block)
        elif block.name:
            (self.folder / block.name).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            self._run(block)
        elif block.marker == PRINTS:
            compare_printed(block, self.printed)

    def type(self, block: Block) -> None:
        """Types a block into bash, and stays in the folder to which it leads."""
        place = self.folder / ".folder"
        text = f'{block.text}\npwd >"{place}"'
        self.printed = typed(text, self.folder, self.shell, str(block))
        leads_to = Path(place.read_text(encoding="utf-8").strip())
        place.unlink()
        self.folder = leads_to

    def _run(self, block: Block) -> None:
        if self._python is None:
            self._python = subprocess.Popen(
                ["python", "-c", _PYTHON],
                env=self.shell,
                executable=shutil.which("python", path=self.shell["PATH"]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                encoding="utf-8",
            )
        assert self._python.stdin is not None
        assert self._python.stdout is not None
        message = {"folder": str(self.folder), "text": block.text, "name": str(block)}
        self._python.stdin.write(json.dumps(message) + "\n")
        self._python.stdin.flush()
        printed = []
        for line in self._python.stdout:
            if line.startswith("done\0"):
                self.folder = Path(line.rstrip("\n").partition("\0")[2])
                self.printed = "".join(printed)
                return
            printed.append(line)
        raise AssertionError(f"{block}\n{self._python.communicate()[1]}")


def read_page(page: Path, folder: Path) -> None:
    """Reads the blocks of a page that are not run, as what they are, in `folder`."""
    for block in blocks_of(page):
        if block.language == "yaml":
            read_yaml(block, folder)
        elif block.language == "python" and block.name:
            compile(block.text, str(block), "exec")
        elif block.language == "json":
            json.loads(block.text)
        elif block.language == "console":
            parse_console(block)


def compare_printed(block: Block, printed: str) -> None:
    """Every line of a block stands among what was printed, in order; `...` stands for anything."""
    rest = [" ".join(line.split()) for line in printed.splitlines()]
    for line in block.text.splitlines():
        words = " ".join(line.split())
        pattern = ".*".join(re.escape(part.strip()) for part in words.split("..."))
        at = next((k for k, seen in enumerate(rest) if re.fullmatch(pattern, seen)), None)
        assert at is not None, f"{block}: {line!r} is not printed:\n{printed}"
        rest = rest[at + 1 :]


def parse_console(block: Block) -> None:
    """The commands of channelfit in a `console` block have these options; the scripts are there."""
    extras = set(re.findall(r"^(\w+) =$", (ROOT / "setup.cfg").read_text("utf-8"), re.M))
    for line in re.sub(r"\\\n\s*", "", block.text).splitlines():
        words = shlex.split(line.removeprefix("$ "), comments=True)
        if words[:1] == ["channelfit"]:
            context = click.Context(main)
            name, command, rest = main.resolve_command(context, words[1:])
            assert command is not None
            command.make_context(name, rest, parent=context)
        for asked in re.findall(r"channelfit(?:-[\w.-]+\.whl)?\[(\w+(?:,\w+)*)\]", line):
            assert set(asked.split(",")) <= extras, f"{block}: {line}"
        for script in re.findall(r"benchmarks/\w+\.py", line):
            assert (ROOT / script).is_file(), f"{block}: {line}"
