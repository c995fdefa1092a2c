"""Does any file or name end in a traceback? Mutants of all shipped files, and nasty expressions.

    python tests/fuzz.py                        # 20,000 files, 10,000 expressions, 3,000 names
    python tests/fuzz.py --processes 4 --write  # also benchmarks/results/fuzz.json
    python tests/fuzz.py --share 0.1 --seed 7   # a tenth of that, with other cases
    python tests/fuzz.py --count 300 models protocols
    python tests/fuzz.py --case models:7:1234   # one case again, its file printed

Every case is read by the command that a user would call. It must end with exit code 0, with 2 and a
message that names the file (or, of an expression, the key), or with 1 where `validate` found an
error; within 10 s of computing and 2 GB. Anything else is a finding: it is printed with the words
that repeat it, and the exit code of this program is then 1.

Cases run in processes of their own, so that one that takes a process down is found, too.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from unittest.mock import patch

import matplotlib.figure  # noqa: F401 - loaded before the cases, or each would have its own report writer
import numpy as np
import platformdirs
import yaml
from click.testing import CliRunner
from scipy.io import savemat

import channelfit.front.commands.optimize
import channelfit.front.commands.show
import channelfit.front.commands.simulate  # noqa: F401 - the cases need not wait for these
from channelfit.front.main import main
from channelfit.results.report import report_writer
from support.places import BENCHMARKS, ROOT

sys.path.append(str(BENCHMARKS))
import report

from support.rig_files import WRITERS

os.environ.setdefault("CHANNELFIT_CACHE", platformdirs.user_cache_dir("channelfit-tests"))
SECONDS, BYTES = 10, 2 << 30
#: Cases that one process tries before it is begun anew.
_PIECE = 250
#: How many cases of each kind a whole run has.
COUNTS = {
    "models": 7000,
    "fits": 4000,
    "protocols": 4000,
    "functions": 2000,
    "tables": 2000,
    "matlab": 1000,
    "rig": 2000,
    "expressions": 10_000,
    "names": 3000,
}
_NASTY = [
    "1e308", "-1e308", "1e-320", "0", "-0.0", ".nan", ".inf", "1e400", "''", "null", "true", "[]",
    "{}", "[[1, 2], [3]]", "12,5", "1_000", "0x1f", "!!python/object:os.system x", "!!bool x",
    "!!int ''", "!!timestamp x", "&a [*a, *a]", "~", "~nosuchuser/x", "../" * 40, "\x1b[31mred",
    "\u202e", "\ud7ff", "é" * 50, "9" * 400, "a" * 3000, "(" * 200, "-", "&x", "*x", "|", ">",
    "%", "exp(" * 30, "1 mV", "5 pA", "10 kHz", "-80 mV", "1/ms", "nS",
]  # fmt: skip
_ATOMS = ["v", "a", "b", "k", "1", "0", "-2", "0.5", "1e9", "1e-9", "1e308", "exp", "celsius", "O"]
_BINARY = [" + ", " - ", "*", "/", "**", " < ", " >= ", " == ", " and ", " or ", ", ", " if "]
_CALLS = ["exp", "log", "sqrt", "abs", "tanh", "min", "max", "exprel", "sin", "pow", "eval", "V"]
#: Files in whose roles (names in braces) other texts are put, and words that mean something.
_TEXTS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
ROLES: dict[str, str] = _TEXTS["roles"]
_WORDS = _TEXTS["words"].split()
_CHANNEL, _FUNCTION = _TEXTS["channel"], _TEXTS["function"]
_GATES = re.sub(
    "states: .*\nrates: .*\n",
    """gates: {{"{gate}": {{alpha: "{expression}", beta: "{definition}"}}}}\n""",
    _CHANNEL,
).replace("open: [O], ", "")
SOURCES = ([], ["--source", "cpu"], ["--source", "cuda"], ["--source", "nmodl"])
#: What a message begins with: the name of one of the case's files.
_FILE = re.compile(
    r"(fuzzed\.yaml|cell\.(csv|mat|abf|nwb|ibw|wcp|h5)|steps\.yaml)(: |$)", re.MULTILINE
)


@dataclass(frozen=True)
class Outcome:
    """How a case ended: "ok", "refused", or what is wrong with it.

    `bytes` is the most memory that the case held beyond what its process held before.
    """

    kind: str
    seed: int
    case: int
    verdict: str
    seconds: float = 0.0
    bytes: int = 0


#: Where in that file: a key, a line, or the text that is wrong.
_PLACE = re.compile(r'^[^ ]+: |^\w+\.|line \d|"')
#: Each so many-th case draws its pictures, which take longer than all else.
_DRAWN_EACH = 5
#: Beginnings of messages about no key or line but all of a file.
_OF_THE_WHOLE_FILE = (
    "cannot be read",
    "no such file",
    "a function is no mechanism",
    "a mapping (lines",
    "give either gates",
    "either cost",
)


# --- the cases ------------------------------------------------------------------------------------


def mutated(data: bytes, draw: random.Random, others: list[bytes]) -> bytes:
    """A file with a few changes of the kinds that slips, editors and malice make."""
    for _ in range(draw.choice([1, 1, 1, 2, 3, 8])):
        place = draw.randrange(len(data) + 1)
        end = min(len(data), place + draw.choice([1, 2, 5, 20, 200]))
        way = draw.randrange(9)
        if way == 0:
            data = data[:place] + bytes([draw.randrange(256)]) + data[place + 1 :]
        elif way == 1:
            data = data[:place] + data[end:]
        elif way == 2:
            data = data[:end] + data[place:]
        elif way == 3:
            other = draw.choice(others)
            start = draw.randrange(len(other) + 1)
            data = data[:place] + other[start : start + draw.choice([5, 50, 500])] + data[end:]
        elif way in (4, 5):
            words = list(re.finditer(rb"[-+\w.]+", data)) or [re.match(rb"", data)]
            word = draw.choice(words)
            nasty = draw.choice(_NASTY).encode("utf-8", "surrogatepass")
            data = data[: word.start()] + nasty + data[word.end() :]
        elif way == 6:
            words = list(re.finditer(rb"[\w.]+", data))
            if len(words) > 1:
                one, other = draw.choice(words), draw.choice(words)
                data = data[: one.start()] + other[0] + data[one.end() :]
        elif way == 7:
            coding = draw.choice(["latin-1", "utf-16", "utf-8-sig", "utf-32"])
            data = data.decode("utf-8", "replace").encode(coding, "replace")
        else:
            lines = data.split(b"\n")
            draw.shuffle(lines) if draw.random() < 0.2 else lines.insert(
                draw.randrange(len(lines) + 1), draw.choice(lines)
            )
            data = b"\n".join(lines)
    return data


def expression(draw: random.Random, depth: int = 0) -> str:
    """A text that is nearly a rate expression."""
    way = draw.random()
    if depth > 5 or way < 0.25:
        return draw.choice(_ATOMS)
    if way < 0.65:
        return f"{expression(draw, depth + 1)}{draw.choice(_BINARY)}{expression(draw, depth + 1)}"
    if way < 0.85:
        return f"{draw.choice(_CALLS)}({expression(draw, depth + 1)})"
    if way < 0.95:
        inner = [expression(draw, depth + 1) for _ in range(3)]
        return f"({inner[0]} if {inner[1]} < 0 else {inner[2]})"
    return draw.choice([*_NASTY, "a.b", "a[0]", "lambda: a", "__import__('os')", "a;b", "a=b"])


def sound(draw: random.Random, depth: int = 0) -> str:
    """A rate expression that may have no value, too large a one, or too many terms."""
    way = draw.random()
    if depth > draw.choice([2, 3, 5]) or way < 0.15:
        return draw.choice(["v", "a", "b", "k", "1", "2", "0.5", "1e-9", "1e100", "20"])
    left, right = sound(draw, depth + 1), sound(draw, depth + 1)
    if way < 0.6:
        return f"({left}{draw.choice(_BINARY[:4])}{right})"
    if way < 0.7:
        return f"({left})**{draw.choice(['2', '-1', '0.5', 'b', '(v/k)', '300'])}"
    if way < 0.85:
        return f"{draw.choice([*_CALLS[:5], 'exprel'])}({left})"
    if way < 0.92:
        return f"{draw.choice(['min', 'max'])}({left}, {right})"
    relation = f"{right} {draw.choice(['<', '>=', '=='])} {draw.choice(['0', 'v', left])}"
    return f"({left} if {relation} else {sound(draw, depth + 1)})"


def name(draw: random.Random) -> str:
    """A text that is nearly a name."""
    letters = "abzAZ09_ .-:;'\"{}[]()#%$\\/\n\t\x00\x1bé漢\u202e"
    if draw.random() < 0.4:
        return draw.choice(_WORDS)
    if draw.random() < 0.3:
        return draw.choice(_WORDS) + draw.choice(["_", "0", "1", "x", "_" * 300, " ", "\x1b[2J"])
    return "".join(draw.choice(letters) for _ in range(draw.choice([0, 1, 3, 8, 300])))


def prepared(kind: str, folder: Path, draw: random.Random) -> list[str]:
    """Writes a case's files into a folder that holds all shipped ones; returns the command."""
    if kind == "expressions":
        return _expression(folder, draw)
    if kind == "names":
        return _named(folder, draw)
    if kind in ("tables", "matlab"):
        return _recorded(kind, folder, draw)
    if kind == "rig":
        return _of_the_rig(folder, draw)
    places = {
        "models": "models/*.yaml",
        "fits": "models/fits/*.yaml",
        "protocols": "protocols/*.yaml",
        "functions": "models/functions/*.yaml",
    }
    files = sorted(ROOT.glob(places[kind]))
    chosen = draw.choice(files)
    data = mutated(chosen.read_bytes(), draw, [f.read_bytes() for f in files])
    file = folder / chosen.relative_to(ROOT).parent / "fuzzed.yaml"
    file.write_bytes(data)
    if kind == "protocols":
        out = folder / "out"
        model = str(folder / "models" / "model_b.yaml")
        return ["simulate", model, str(file), "--out", str(out), "--backend", "cpu"]
    return ["show", str(file)]


def written(folder: Path, words: dict[str, str], text: str = _CHANNEL) -> str:
    """Writes a model or function, with its protocol and recording; returns the file's name."""
    words = ROLES | words
    (folder / "steps.yaml").write_text(_TEXTS["steps"].format(**words), "utf-8", "surrogatepass")
    rows = "".join(f"{k / 2:g},{math.sin(k):.6g}\n" for k in range(20))
    if words["recording"] == "cell.csv":
        header = words["column"] if "\n" not in words["column"] else "i"
        (folder / "cell.csv").write_text(f"t,{header}\n{rows}", "utf-8", "surrogatepass")
    file = folder / "fuzzed.yaml"
    file.write_text(text.format(**words), "utf-8", "surrogatepass")
    return str(file)


def _optimize(file: str, folder: Path, backend: str = "reference") -> list[str]:
    return ["optimize", file, "--out", str(folder / "run"), "--backend", backend, "--quiet"]


def _expression(folder: Path, draw: random.Random) -> list[str]:
    """A text in place of a rate or of a function's cost."""
    way = draw.random()
    text = f"a + {sound(draw)}" if draw.random() < 0.5 else expression(draw)
    words = {"expression": text}
    if draw.random() < 0.7:
        words |= {"unit": "", "voltage": ""}
    if way < 0.2:
        words["expression"] = re.sub(r"\bv\b", "k", re.sub(r"\ba\b", "a[1]", text))
        file = written(folder, words, _FUNCTION)
        return ["show", file, *draw.choice(SOURCES[:3])]
    bounds = "  rates_within: {{range: [1e-9, 1e9]}}\n"
    channel = draw.choice([_CHANNEL, _CHANNEL, _GATES])
    file = written(folder, words, channel + bounds * (way > 0.9))
    return _optimize(file, folder) if way > 0.9 else ["show", file, *draw.choice(SOURCES)]


def _named(folder: Path, draw: random.Random) -> list[str]:
    """A text in place of a name, raw or as a YAML string that says all of it."""
    role, given = draw.choice([*ROLES][:13]), name(draw)
    texts = [t for t in (_CHANNEL, _GATES, _FUNCTION) if f"{{{role}}}" in t] or [_CHANNEL]
    text = draw.choice(texts)
    if draw.random() < 0.8:
        given = json.dumps(given, ensure_ascii=draw.random() < 0.5)[1:-1]
    words = {role: given}
    if role == "parameter":
        words["expression"] = f"{given}[1]" if text is _FUNCTION else f"{given}*exp(v/k)"
    elif text is _FUNCTION:
        words["expression"] = "b*k"
    file = written(folder, words, text)
    if role in ("fit", "protocol", "column") or draw.random() < 0.05:
        return _optimize(file, folder, draw.choice(["reference", "reference", "cpu"]))
    return ["show", file, *draw.choice(SOURCES)]


def _recorded(kind: str, folder: Path, draw: random.Random) -> list[str]:
    """A fit file whose recording is a mutant."""
    recording = "cell.csv" if kind == "tables" else "cell.mat"
    file = written(folder, {"recording": recording})
    cell = folder / recording
    if kind == "matlab":
        columns = {"t": np.arange(0.0, 10.0, 0.5), "i": np.sin(np.arange(20))}
        savemat(cell, columns, do_compression=draw.random() < 0.2, format=draw.choice("4555"))
    whole = cell.read_bytes()
    cell.write_bytes(mutated(whole, draw, [whole]))
    return _optimize(file, folder)


def _of_the_rig(folder: Path, draw: random.Random) -> list[str]:
    """A fit file whose recording is a mutant of a laboratory's file."""
    source = draw.choice([name for name in WRITERS if not name.endswith(".eph")])
    whole = WRITERS[source](folder / source).read_bytes()
    cell = folder / f"cell{Path(source).suffix}"
    head = draw.choice([len(whole), 600, 6000])  # most of what can go wrong is in headers
    cell.write_bytes(mutated(whole[:head], draw, [whole]) + whole[head:])
    file = Path(written(folder, {}))
    recording = f"recording: {{file: {cell.name}, current: {{signal: 1}}}}\n"
    text = re.sub(r"recording:\n(      .*\n)+", recording, file.read_text("utf-8"))
    file.write_text(text, "utf-8")
    (folder / "steps.yaml").write_text(_TEXTS["swept"])
    return _optimize(str(file), folder)


# --- running them ---------------------------------------------------------------------------------


class _TooLong(BaseException):
    """Raised by the alarm; no handler for ordinary errors catches it."""


def _peak(begins: bool) -> int:
    """The most bytes that this process has held since it was last asked so with `begins`."""
    status = Path("/proc/self/status")
    if not status.exists():  # not Linux: the most that it has ever held
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if begins:
        Path("/proc/self/clear_refs").write_text("5")
    line = next(x for x in status.read_text().splitlines() if x.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def verdict(command: list[str]) -> str:
    """How a command ends, in words."""

    def ring(number: int, frame: object) -> None:
        raise _TooLong

    signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)  # computing, whoever else computes here
    try:
        result = CliRunner().invoke(main, command)
    except _TooLong:
        return f"over {SECONDS} s"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    error = result.exception
    if isinstance(error, _TooLong):
        return f"over {SECONDS} s"
    if error is not None and not isinstance(error, SystemExit):
        return f"{type(error).__name__}: {str(error)[:200]!r}"
    told = result.output + result.stderr
    if re.search(r"[\x00-\x08\x0b-\x1f\x7f]", re.sub(r"\x1b\[[0-9;]*m", "", told)):
        return f"control character printed: {told[:200]!r}"
    if result.exit_code == 0:
        return "ok"
    if result.exit_code != 2:
        return f"exit code {result.exit_code}"
    message = told[told.find("Error: ") :].strip()
    if "Error: " not in told or "Traceback" in told:
        return f"no message: {told[:200]!r}"
    if not (found := _FILE.search(message)):
        return f"a message without its file: {message[-300:]!r}"
    said = message[found.end() :]
    whole = said.startswith(_OF_THE_WHOLE_FILE) or not found[1].endswith("yaml")
    if not whole and not _PLACE.search(said):
        return f"a message without a key: {message[-300:]!r}"
    return "refused"


_LARGE = shutil.ignore_patterns("recordings")


def run_case(kind: str, seed: int, case: int, show: bool = False) -> Outcome:
    """One case in a folder of its own."""
    draw = random.Random(f"{kind}:{seed}:{case}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name_ in ("models", "protocols"):
            shutil.copytree(ROOT / name_, folder / name_, ignore=_LARGE)
        command = prepared(kind, folder, draw)
        if show:
            print(command, next(folder.rglob("fuzzed.yaml")).read_bytes(), sep="\n")
        drawing = nullcontext() if case % _DRAWN_EACH == 0 else patch.object(report_writer, "draw")
        held, start = _peak(begins=True), time.process_time()
        with drawing:
            word = verdict(command)
        seconds, taken = time.process_time() - start, _peak(begins=False) - held
    if taken > BYTES:
        word = f"took {taken / 1e9:.1f} GB, and ended: {word}"
    return Outcome(kind, seed, case, word, seconds, taken)


def _worker(kind: str, seed: int, cases: range, pipe: Connection) -> None:
    soft = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 + 3 * BYTES
    resource.setrlimit(resource.RLIMIT_AS, (soft, soft))
    for case in cases:
        pipe.send(("begins", case))
        pipe.send(("ended", run_case(kind, seed, case)))


def outcomes(kind: str, seed: int, cases: range) -> list[Outcome]:
    """Some cases of a kind, in a process that is begun again where one takes it down."""
    found: list[Outcome] = []
    context, first = multiprocessing.get_context("fork"), cases.start
    while first < cases.stop:
        ours, theirs = context.Pipe(duplex=False)
        rest = range(first, cases.stop)
        child = context.Process(target=_worker, args=(kind, seed, rest, theirs))
        child.start()
        theirs.close()
        case = first
        while True:
            try:
                if not ours.poll(12 * SECONDS):  # it waits for something that does not come
                    child.kill()
                what, value = ours.recv()
            except EOFError:
                break
            if what == "begins":
                case = value
            else:
                found.append(_shown(value))
                first = case + 1
        child.join()
        if first < cases.stop:
            why = f"the process ended with {child.exitcode}"
            found.append(_shown(Outcome(kind, seed, case, why)))
            first = case + 1
    return found


def _shown(one: Outcome) -> Outcome:
    """Prints a finding at once, with the words that repeat it."""
    if one.verdict not in ("ok", "refused"):
        print(f"{one.kind}:{one.seed}:{one.case}  {one.verdict}", flush=True)
    return one


def main_program() -> int:
    """Runs what was asked for; prints findings and a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "kinds", nargs="*", choices=[*COUNTS, []], help="which cases; all by default"
    )
    parser.add_argument("--count", type=int, help="cases of each kind")
    parser.add_argument("--share", type=float, default=1.0, help="of a whole run's cases")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", help="KIND:SEED:CASE, one case again")
    parser.add_argument("--processes", type=int, default=1, help="how many at the same time")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/fuzz.json")
    wanted = parser.parse_args()
    if wanted.case:
        kind, seed, case = wanted.case.split(":")
        print(run_case(kind, int(seed), int(case), show=True).verdict)
        return 0

    counts = {
        kind: wanted.count or math.ceil(wanted.share * COUNTS[kind])
        for kind in wanted.kinds or COUNTS
    }
    pieces = {
        kind: [range(k, min(k + _PIECE, count)) for k in range(0, count, _PIECE)]
        for kind, count in counts.items()
    }
    rows = []
    with ThreadPoolExecutor(wanted.processes) as pool:
        under_way = {
            kind: [pool.submit(outcomes, kind, wanted.seed, piece) for piece in parts]
            for kind, parts in pieces.items()
        }
        for kind, parts in under_way.items():
            rows += _told(kind, [one for part in parts for one in part.result()], wanted.seed)
    if wanted.write:
        report.finish("fuzz", "Hostile files, expressions and names", rows)
    return 1 if any(row.name.endswith("findings") and row.value for row in rows) else 0


def _told(kind: str, found: list[Outcome], seed: int) -> list[report.Row]:
    """Prints how many cases ended in each way; returns rows of a table."""
    ended = Counter(o.verdict if o.verdict in ("ok", "refused") else "findings" for o in found)
    seconds = sum(o.seconds for o in found)
    slowest, largest = max(o.seconds for o in found), max(o.bytes for o in found)
    print(
        f"{kind}: {len(found)} cases, {ended['ok']} read, {ended['refused']} refused, "
        f"{ended['findings']} findings, {seconds:.0f} s, the slowest {slowest:.1f} s, "
        f"the largest {largest / 1e6:.0f} MB, seed {seed}",
        flush=True,
    )
    return [
        report.Row(f"{kind}: read", ended["ok"], "cases", note=f"seed {seed}"),
        report.Row(f"{kind}: refused with a message", ended["refused"], "cases"),
        report.Row(f"{kind}: findings", ended["findings"], "cases", note="wanted: none"),
        report.Row(f"{kind}: all", seconds, "s", note="of computing"),
        report.Row(f"{kind}: slowest", slowest, "s", note=f"wanted: at most {SECONDS}"),
        report.Row(f"{kind}: most memory", largest / 1e6, "MB", note="beyond what each began with"),
    ]


if __name__ == "__main__":
    report.as_script(main_program, writes=False)
