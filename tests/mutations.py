"""Does the fast suite notice when the code is wrong? Deliberate faults, one at a time.

    python tests/mutations.py                 # every fault; exit code 1 if one survives
    python tests/mutations.py swarm joining   # those whose names contain one of these words
    python tests/mutations.py --check         # only whether every fault still applies
    python tests/mutations.py --related       # only the tests that are about the code at fault

Each fault is one replacement in one file, the kind of slip that reads well: a sign, a lost factor,
an index beside the right one. The tree is copied, the fault put in, and the fast tests run until
one fails: first the files that are about that code, then all others. A replacement that no longer
finds its text, or finds it twice, is an error of this file (exit code 2): write it anew.

The cache of compiled kernels is shared by all runs. A kernel is kept under the hash of its text, so
that a fault in the text makes its own; one that got the kernel of the sound text would survive,
and that would be a find, too.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "channelfit"
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", re.MULTILINE)


@dataclass(frozen=True)
class Fault:
    """What goes wrong, where, and which tests are about that code (`tests/test_NAME.py`)."""

    name: str
    file: str
    right: str
    wrong: str
    tests: str


FAULTS = [
    # --- the clamp
    Fault(
        "clamp: the resistance compensated twice as much",
        "scoring/kernels/clamp_stages.py",
        "c('fraction')}*across + ",
        "c('fraction')}*2.0*across + ",
        "clamp",
    ),
    Fault(
        "clamp: a derivative without the change of the steepness",
        "scoring/kernels/clamp_step.py",
        "*(flows + change) + {pushed",
        "*(flows) + {pushed",
        "clamp",
    ),
    Fault(
        "clamp: a delay that makes earlier",
        "scoring/kernels/clamp_cpu.py",
        'w("x = (times[i] - late - begin)/h"',
        'w("x = (times[i] + late - begin)/h"',
        "clamp",
    ),
    Fault(
        "clamp: a sweep that goes on as if its command had not jumped",
        "scoring/layout/clamp_grid.py",
        "if protocol.carry_over and k and protocol.rest_ms > 0:",
        "if protocol.carry_over and k > 9 and protocol.rest_ms > 0:",
        "clamp",
    ),
    Fault(
        "clamp: a filter whose output has another phase",
        "scoring/kernels/clamp_seen.py",
        'value.append(f"{r}*{x} - {ri}*{y}")',
        'value.append(f"{r}*{x} + {ri}*{y}")',
        "clamp",
    ),
    # --- kernels
    Fault(
        "stepping: both halves of a step the same",
        "scoring/kernels/cpu_varying.py",
        "late[i] = max(less*first + more*second",
        "late[i] = max(more*first + less*second",
        "backends",
    ),
    Fault(
        "stepping: half of a relaxation from the wrong end",
        "scoring/kernels/integration.py",
        "h / 24.0 * (8.0 * s1 + 5.0 * s2 - s0)",
        "h / 24.0 * (8.0 * s1 + 5.0 * s0 - s2)",
        "backends",
    ),
    Fault(
        "stepping: quarters too late",
        "scoring/kernels/cpu_varying.py",
        "stiff = {t.at('norm', 4)} > {STIFF!r}",
        "stiff = {t.at('norm', 4)} > 1.5",
        "backends",
    ),
    Fault(
        "current: the flux that leaves and the flux that enters change places",
        "model/channel.py",
        "inward = product(ion.inside, power(exprel(-u)",
        "inward = product(ion.inside, power(exprel(u)",
        "terms",
    ),
    Fault(
        "current: a drive's derivative forgets what is open",
        "scoring/tangent_terms.py",
        "current[:, 1:] += slope[k][at] * is_open[:, :1]",
        "current[:, 1:] += slope[k][at]",
        "terms",
    ),
    Fault(
        "current: a leak decays with the first mode",
        "scoring/kernels/spectral_runs.py",
        """{'' if any(index) else ' + leak'}""",
        """{' + leak' if any(index) else ''}""",
        "terms",
    ),
    Fault(
        "closed form: nothing makes up for modes that are gone",
        "scoring/kernels/spectral.py",
        'extra = f" + missed{k}_{i}" if e == 0 else ""',
        'extra = ""',
        "modes",
    ),
    Fault(
        "closed form: cancellation without its weight",
        "scoring/kernels/spectral_runs.py",
        'lost = f"weight*gain*gain*n*w{k}_2*w{k}_2"',
        'lost = f"gain*gain*n*w{k}_2*w{k}_2"',
        "modes",
    ),
    Fault(
        "closed form: rates at a bound are not doubted",
        "scoring/kernels/spectral.py",
        "least, most = LEAST_RATE * t.multiplicity, GREATEST_RATE * t.multiplicity",
        "least, most = LEAST_RATE * t.multiplicity, 1e3 * GREATEST_RATE * t.multiplicity",
        "modes",
    ),
    Fault(
        "transforms: the wrong place within a cell",
        "scoring/layout/exponential_tables.py",
        "middle = 2.0**octave + (place + 0.5) * width",
        "middle = 2.0**octave + place * width",
        "modes",
    ),
    Fault(
        "tangents: sign of a conductance's derivative",
        "scoring/kernels/scheme_kernels.py",
        "out[place + 1 + d] = s * seen[d] + ds * is_open",
        "out[place + 1 + d] = s * seen[d] - ds * is_open",
        "linearize",
    ),
    Fault(
        "tangents: a steady state's derivative without what leaves",
        "scoring/kernels/matrix_kernels.py",
        "dm[k, i, u] = (dm[k, i, u] - m[k, i] * lost) / out",
        "dm[k, i, u] = dm[k, i, u] / out",
        "linearize",
    ),
    Fault(
        "relaxation: a lost factor in a derivative",
        "scoring/kernels/integration.py",
        "h / 24.0 * (16.0 * by_whole + 8.0 * by_half)",
        "h / 24.0 * (16.0 * by_whole + 4.0 * by_half)",
        "linearize",
    ),
    Fault(
        "relaxation: derivative of a power of one gate more",
        "scoring/kernels/relaxation_kernels.py",
        "power = chains[other, POWER] - (1 if other == c else 0)",
        "power = chains[other, POWER] - (1 if other <= c else 0)",
        "linearize instant_gates",
    ),
    Fault(
        "CUDA stepping: halved once too seldom",
        "scoring/kernels/cuda_propagator.py",
        "(__double2hiint(norm*(1.0/TAYLOR_NORM)) >> 20) - 1022",
        "(__double2hiint(norm*(1.0/TAYLOR_NORM)) >> 20) - 1024",
        "cuda_source",
    ),
    Fault(
        "CUDA tangents: quotient rule without the quotient",
        "scoring/kernels/cuda_dual.py",
        "EACH_TANGENT y.d[t] = (a.d[t] - y.v*b.d[t])*per;",
        "EACH_TANGENT y.d[t] = (a.d[t] - a.v*b.d[t])*per;",
        "cuda_linearize",
    ),
    Fault(
        "fhn, CUDA: the end as its own neighbor",
        "fitzhugh_nagumo/cuda/explicit.py",
        "NODES > 1 ? v[NODES > 1 ? 1 : 0] : right",
        "NODES > 1 ? v[0] : right",
        "fitzhugh_nagumo_cuda",
    ),
    Fault(
        "fhn, CPU: recovery sees the new potential",
        "fitzhugh_nagumo/explicit.py",
        "w[i] = forget * w[i] + slow * v",
        "w[i] = forget * w[i] + slow * change",
        "fitzhugh_nagumo",
    ),
    Fault(
        "lowering: the greater of two where one is NaN",
        "scoring/machine/lowering_calls.py",
        '{"max": ("ogt", "sgt")',
        '{"max": ("ugt", "sgt")',
        "lowering",
    ),
    Fault(
        "lowering: remainders of negative numbers",
        "scoring/machine/lowering_expressions.py",
        'f"select i1 {off}, i64 {b}, i64 0"',
        'f"select i1 {off}, i64 0, i64 0"',
        "lowering",
    ),
    Fault(
        "cache: code of another text",
        "scoring/machine/cache.py",
        "hashlib.sha256(key.encode() + b",
        "hashlib.sha256(b",
        "cache",
    ),
    # --- readers
    Fault(
        "tables: lines counted without the header",
        "reading/tables.py",
        "table.lines = places[skip:]",
        "table.lines = places",
        "recording messages",
    ),
    Fault(
        "recording: one sample more in a window",
        "problem/conditioning.py",
        "(t >= start - tiny) & (t < end - tiny)",
        "(t >= start - tiny) & (t < end + tiny)",
        "recording",
    ),
    Fault(
        "recording: overlapping masks replace each other",
        "problem/recording.py",
        "weight[k, inside] *= factor",
        "weight[k, inside] = factor",
        "recording",
    ),
    Fault(
        "protocol: a rest between sweeps is no step",
        "problem/protocol.py",
        "return self.resting_mV",
        "pass",
        "protocol",
    ),
    Fault(
        "protocol: a junction potential is added, not subtracted",
        "problem/protocol.py",
        "return _moved(told, -junction)",
        "return _moved(told, junction)",
        "command_segments",
    ),
    Fault(
        "command: the samples of a filtered edge count as those of its step",
        "problem/command_pieces.py",
        "if most < 1 or not self.grain.measured:",
        "if most < 1 or self.grain.measured:",
        "command_segments",
    ),
    Fault(
        "recording measures: the current of open channels counts as leak",
        "problem/measures.py",
        "if not volts.size or volts.max() > highest_mV:",
        "if not volts.size:",
        "inspect",
    ),
    Fault(
        "recording: what a mask hides counts as known",
        "problem/arguments.py",
        "np.ma.filled(values.astype(float), np.nan)",
        "np.asarray(values, dtype=float)",
        "recording",
    ),
    Fault(
        "protocol in Python: the last sample of a command is lost",
        "problem/protocol.py",
        "end = round(float(times[-1]) + float(np.diff(times)[-1]), 9)",
        "end = round(float(times[-1]), 9)",
        "protocol_in_python",
    ),
    Fault(
        "protocol files: equal sweeps become one",
        "problem/segments.py",
        "force = place == 0 and not families and len(sweeps) > 1",
        "force = place == 1 and not families and len(sweeps) > 1",
        "protocol_in_python",
    ),
    Fault(
        "model in Python: its document can be changed from outside",
        "model/model.py",
        "return copy.deepcopy(self._document)",
        "return dict(self._document)",
        "model_in_python",
    ),
    Fault(
        "units: a rate per volt a thousandfold",
        "reading/units.py",
        '"1/(ms V)": 1e-3, "1/(s V)": 1e-6',
        '"1/(ms V)": 1e-3, "1/(s V)": 1e-3',
        "units",
    ),
    Fault(
        "joining: recordings beside the model's surrogate",
        "search/joined_files.py",
        '("experiments", ("protocols", "surrogate"))',
        '("experiments", ("protocols",))',
        "joining",
    ),
    # --- search
    Fault(
        "genetic: crossed one parameter late",
        "search/genetic.py",
        "exchanged = points <= parameters[rows]",
        "exchanged = points < parameters[rows]",
        "genetic genetic_cuda",
    ),
    Fault(
        "swarm: one draw for both pulls",
        "search/swarm.py",
        "pull += self.social * two *",
        "pull += self.social * one *",
        "swarm swarm_cuda",
    ),
    Fault(
        "least squares: half of the bend promised twice",
        "search/damped.py",
        "gradient[i, p] + 0.5 * bent",
        "gradient[i, p] + bent",
        "least_squares",
    ),
    Fault(
        "least squares: kept on the wrong face",
        "search/damped.py",
        "(x >= 1.0 and slope < 0.0)",
        "(x >= 1.0 and slope > 0.0)",
        "least_squares",
    ),
    Fault(
        "hybrid: the best minimum is not counted",
        "search/hybrid.py",
        "w = 1 + int((np.diff(rivals) > SAME * rivals[1:]).sum())",
        "w = int((np.diff(rivals) > SAME * rivals[1:]).sum())",
        "least_squares agreement",
    ),
    Fault(
        "sampling: constraints of a joined group forgotten",
        "search/sampling.py",
        "rows, shared = rows | other[0], other[1] + shared",
        "rows, shared = rows | other[0], shared",
        "space objective",
    ),
    Fault(
        "projection: a conductance at its bound moves on",
        "search/projection.py",
        "moves = inside & (own > 0)",
        "moves = own > 0",
        "least_squares",
    ),
]


def main() -> int:
    """Run the trial; 0: all caught, 1: some survived, 2: some no longer apply."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="only faults whose name has one of these words")
    parser.add_argument("--check", action="store_true", help="only whether every fault applies")
    parser.add_argument("--related", action="store_true", help="leave out all unrelated tests")
    given = parser.parse_args()
    stale = [
        f"{fault.file}: {fault.name}: found {n} times: {fault.right}"
        for fault in FAULTS
        if (n := _text(ROOT, fault).count(fault.right)) != 1
    ]
    if stale:
        print("These faults no longer apply; write them anew:", *stale, sep="\n  ")
        return 2
    if given.check:
        print(f"{len(FAULTS)} faults apply")
        return 0
    chosen = [f for f in FAULTS if not given.words or any(w in f.name for w in given.words)]
    survived = 0
    with tempfile.TemporaryDirectory(prefix="channelfit_mutations_") as folder:
        for fault in chosen:
            begun = time.monotonic()
            found = _trial(fault, Path(folder), given.related)
            survived += found is None
            shown = found or "SURVIVED"
            print(f"{fault.name:58} {time.monotonic() - begun:5.0f} s  {shown}", flush=True)
    print(f"{len(chosen) - survived} of {len(chosen)} faults caught")
    return int(survived > 0)


def _text(root: Path, fault: Fault) -> str:
    return (root / PACKAGE / fault.file).read_text()


def _trial(fault: Fault, folder: Path, related_only: bool) -> str | None:
    """The first test that fails with the fault in place, None where none does."""
    tree = folder / "tree"
    _copy(tree)
    place = tree / PACKAGE / fault.file
    place.write_text(_text(tree, fault).replace(fault.right, fault.wrong))
    environment = {
        "CHANNELFIT_CACHE": str(folder / "cache"),
        **os.environ,
        "PYTHONPATH": str(tree),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    related = [f"tests/test_{name}.py" for name in fault.tests.split()]
    others = [f"--ignore={name}" for name in related]
    for arguments in [related] if related_only else [related, ["-n", "auto", *others]]:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *arguments],
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
        )
        if done.returncode == 1 and (found := _FAILED.search(done.stdout)):
            return found[1]
        if done.returncode != 0:  # nothing that a fault of this kind should bring about
            told = f"{done.stdout}{done.stderr}"
            sys.exit(f"{fault.name}: pytest ended with {done.returncode}\n{told}")
    return None


def _copy(tree: Path) -> None:
    """The files that belong to the tree, committed or not, without what was built from them."""
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(
        ROOT,
        tree,
        ignore=shutil.ignore_patterns(".git", "__pycache__", ".*_cache", "runs"),
        symlinks=True,
    )


if __name__ == "__main__":
    sys.exit(main())
