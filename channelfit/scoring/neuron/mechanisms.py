"""NEURON and its mechanisms: imports NEURON, compiles NMODL text and loads the result.

This is the only file that imports NEURON, and it does so when it is first needed, because NEURON
is optional and takes long to load. A compiled mechanism is kept in the cache folder, where it is
trusted as other machine code is (`cache.kept`), and is found again by a hash of its text, of
NEURON's version and of the platform. NEURON's parser runs in a process of its own
(`reading.second_process`): a text that is nested deeply enough ends it.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn

from channelfit.reading.errors import InputError
from channelfit.reading.second_process import read_in_process
from channelfit.scoring.machine.cache import keep, kept, private_folder

_DECLARATION = re.compile(r"^[^:\n]*\b(POINT_PROCESS|SUFFIX)\s+(\w+)", re.MULTILINE)
#: The folder of mechanisms within the cache folder.
_KIND = "neuron"
#: What a library is called, by which the system knows how to load it.
_LIBRARY = {"Windows": "nrnmech.dll", "Darwin": "libnrnmech.dylib"}.get(
    platform.system(), "libnrnmech.so"
)
#: Names of loaded mechanisms; NEURON cannot load a name twice in one process.
_loaded: set[str] = set()


class NeuronUnavailable(InputError):
    """NEURON, or the compiler that its mechanisms need, is not on this machine."""


def neuron_hoc() -> Any:
    """Return the interpreter of NEURON, which is imported when this is first called.

    Raises:
        NeuronUnavailable: NEURON is not installed; the message says how to install it.
    """
    os.environ.setdefault("NEURON_MODULE_OPTIONS", "-nogui")
    try:
        from neuron import h  # optional, and takes long to load
    except ImportError as error:
        if platform.system() == "Windows":
            how = (
                "on Windows it comes as an installer, not from PyPI: "
                "https://github.com/neuronsimulator/nrn/releases"
            )
        else:
            how = 'pip install "channelfit[neuron]"'
        raise NeuronUnavailable(f"NEURON cannot be imported ({error}); {how}") from error
    return h


def neuron_parser() -> Any:
    """Return NEURON's parser of NMODL: the module ``neuron.nmodl``.

    Raises:
        NeuronUnavailable: NEURON is not installed, or is older than 9.
    """
    neuron_hoc()
    try:
        from neuron import nmodl  # optional, and takes long to load
    except ImportError as error:
        raise NeuronUnavailable(
            f"NEURON's parser of NMODL cannot be imported ({error}); it comes with NEURON 9: "
            'pip install "neuron>=9"'
        ) from error
    return nmodl


def check_compiler() -> None:
    """Raise NeuronUnavailable where no mechanism can be compiled."""
    neuron_hoc()
    find_nrnivmodl()
    _check_cpp()


def compile_mechanism(text: str, cache: Path | None = None) -> str:
    """Compile a mechanism, load it into NEURON, and return its new name.

    Arguments:
        text: NMODL of a POINT_PROCESS or SUFFIX. The mechanism is renamed after a hash of the
            text, so that one process can hold several that had the same name.
        cache: a folder that keeps compiled mechanisms instead of the cache folder.

    Raises:
        NeuronUnavailable: NEURON, nrnivmodl or a C++ compiler is missing.
        InputError: the text does not compile; the message ends with that of the compiler.
    """
    h = neuron_hoc()
    declared = _DECLARATION.search(text)
    if not declared:
        raise InputError(
            "the NMODL text has neither POINT_PROCESS nor SUFFIX, which name a mechanism"
        )
    key = f"{text}\0{h.nrnversion()}\0{platform.platform()}\0{sys.version_info[:2]}"
    name = "channelfit_" + hashlib.sha256(key.encode()).hexdigest()[:16]
    if name not in _loaded:
        library = kept(_KIND, name, cache)
        if library is None:
            library = _compiled(text[: declared.start(2)] + name + text[declared.end(2) :], name)
            keep(_KIND, name, library, cache)
        _load(h, library, private_folder(_KIND, cache))
        _loaded.add(name)
    return name


def _load(h: Any, library: bytes, folder: Path | None) -> None:
    """Load a compiled mechanism into NEURON, from a file that nobody else can have changed.

    Arguments:
        folder: for that file, which is there only until it is loaded; None for the system's.
    """
    # Windows keeps what is loaded
    with tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as temporary:
        file = Path(temporary) / _LIBRARY
        file.write_bytes(library)
        h.nrn_load_dll(str(file))


def _compiled(text: str, name: str) -> bytes:
    """Return the library that nrnivmodl makes of a mechanism."""
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        (work / f"{name}.mod").write_text(text, encoding="utf-8")
        try:
            done = subprocess.run(  # noqa: S603  (a fixed command; the text is only compiled)
                [find_nrnivmodl(), f"{name}.mod"],
                cwd=work,
                capture_output=True,
                text=True,
                check=False,
            )
        except OSError as error:
            raise NeuronUnavailable(f"nrnivmodl does not run: {error}") from error
        if done.returncode:
            _explain(done.stdout + done.stderr)
        patterns = ("*/libnrnmech.*", "*/.libs/libnrnmech.so", "nrnmech.dll", "*/nrnmech.dll")
        found = [p for pattern in patterns for p in sorted(work.glob(pattern)) if p.suffix != ".la"]
        if not found:
            _explain(done.stdout + done.stderr)
        return found[0].read_bytes()


def find_nrnivmodl() -> str:
    """Return the path of nrnivmodl, first beside this Python and then anywhere in PATH."""
    beside = Path(sys.executable).parent
    found = shutil.which("nrnivmodl", path=str(beside)) or shutil.which("nrnivmodl")
    if not found:
        raise NeuronUnavailable(
            f"nrnivmodl, which compiles NEURON's mechanisms, is neither in {beside} nor in PATH"
        )
    if " " in found:  # neither its first line nor its makefile quotes paths
        raise NeuronUnavailable(
            f"NEURON's nrnivmodl does not run in a folder whose path has a space ({found}): "
            "use a virtual environment elsewhere"
        )
    return found


def _explain(output: str) -> NoReturn:
    """Raise the error that explains the messages of nrnivmodl."""
    _check_cpp()
    lines = [line for line in output.splitlines() if re.search("error|Illegal|^ ", line)]
    raise InputError(
        "nrnivmodl could not compile the mechanism:\n" + "\n".join(lines[-12:] or [output[-800:]])
    )


def _check_cpp() -> None:
    """Raise NeuronUnavailable where there is no C++ compiler."""
    if shutil.which("c++") is None and shutil.which("g++") is None:
        raise NeuronUnavailable(
            "NEURON's mechanisms need a C++ compiler (on Debian and Ubuntu: apt install g++ make; "
            "on macOS: xcode-select --install)"
        )


_SECONDS = 60.0
_PLACE = re.compile(r"\[Location : (\d+)")


def parse_nmodl(text: str) -> str:
    """Return the syntax tree of a .mod file as JSON.

    Arguments:
        text: the file without its comments (`model.imports.nmodl_text`), so that it includes none.

    Raises:
        NeuronUnavailable: NEURON's parser is not installed.
        InputError: it is not NMODL, with the line, or the parser did not survive it.
    """
    neuron_parser()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mechanism.mod"
        path.write_text(text, encoding="latin-1")
        try:
            found = read_in_process(f"{__name__}:answer", path, "a .mod file", _SECONDS)
        except InputError as error:
            raise InputError(error.message, None, error.key) from None
    return str(found["tree"])


def answer(path: Path) -> dict[str, str]:
    """Return the parser's answer; called in the other process."""
    driver = neuron_parser()
    text = path.read_text(encoding="latin-1")
    try:
        tree = driver.NmodlDriver().parse_string(text)
        return {"tree": driver.to_json(tree, True)}
    except RuntimeError as error:
        place = _PLACE.search(str(error))
        what = str(error).split("[Location")[0].replace("NMODL Parser Error :", "").strip()
        raise InputError(
            f"NEURON's parser cannot read it: {what}", None, f"line {place[1]}" if place else None
        ) from None
