"""Does the fast suite notice when the code is wrong? Deliberate faults, one at a time.

    python tests/mutations.py                 # every fault; exit code 1 if one survives
    python tests/mutations.py swarm joining   # those whose names contain one of these words
    python tests/mutations.py --check         # only whether every fault still applies
    python tests/mutations.py --related       # only the tests that are about the code at fault
    python tests/mutations.py --table caught.txt   # also: fault, folder, circle, test, one a line

Each fault is one replacement in one file, the kind of slip that reads well: a sign, a lost factor,
an index beside the right one. The tree is copied, the fault put in, and tests run until one fails,
circle by circle: "fast", the fast tests of the files that are about that code; "integration", those
of these files that are whole commands beside other programs; "all", the fast tests of all other
files. A replacement that no longer finds its text, or finds it twice, is an error of this file
(exit code 2): write it anew.

The faults in the parts that are called drawn were not chosen by what is tested: for each room of
the package random.Random(2026) drew files, weighted by their lines, and a line in each. The fault
is at the first of these places, or next to it, where a slip would change a number, or what is
refused or kept. No test was looked at before.

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

PACKAGE = "channelfit"
ROOT = next(p for p in Path(__file__).resolve().parents if (p / PACKAGE).is_dir())
#: Seconds after which tests that do not end are taken for caught: a fault may loop for ever.
_LONGEST = 3600
#: What pytest ends with where files have no test of the circle.
_NO_TESTS = 5
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", re.MULTILINE)


@dataclass(frozen=True)
class Fault:
    """What goes wrong, where, and which tests are about that code.

    file: in the package. tests: the names of test files, in any folder: `clamp` is `test_clamp.py`.
    """

    name: str
    file: str
    right: str
    wrong: str
    tests: str

    @property
    def room(self) -> str:
        """The folder of the package."""
        return self.file.partition("/")[0]


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
        "scoring/kernels/clamp_output.py",
        'value.append(f"{r}*{x} - {ri}*{y}")',
        'value.append(f"{r}*{x} + {ri}*{y}")',
        "clamp",
    ),
    # --- channel noise
    Fault(
        "channel noise: channels whose moves spread them half as much",
        "scoring/kernels/kalman.py",
        "v[i, i] += spread[i]",
        "v[i, i] += 0.5 * spread[i]",
        "channel_noise",
    ),
    Fault(
        "channel noise: a gain that does not change with the number of channels",
        "scoring/kernels/kalman.py",
        "d_gain[d] = of_drive - gain * (of_channels + relative)",
        "d_gain[d] = of_drive - gain * relative",
        "channel_noise",
    ),
    Fault(
        "channel noise: a gap of many samples that lasts as long as two",
        "scoring/channel_noise.py",
        "key = (at, round(float(n_steps) * run.dt, 9))",
        "key = (at, round(min(float(n_steps), 2.0) * run.dt, 9))",
        "channel_noise",
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
        "scoring/kernels/tangent_tables.py",
        "current[1 + partials[k, 1]] += slope[k, v] * whole",
        "current[1 + partials[k, 1]] += slope[k, v]",
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
        "out[place + 1 + d] = s * open_by[d] + ds * is_open",
        "out[place + 1 + d] = s * open_by[d] - ds * is_open",
        "linearize",
    ),
    Fault(
        "tangents: a steady state's derivative without what leaves",
        "scoring/kernels/matrix_kernels.py",
        "dm[k, i, u] = (dm[k, i, u] - m[k, i] * d_exit_rate) / exit_rate",
        "dm[k, i, u] = dm[k, i, u] / exit_rate",
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
        "power = gates[other, POWER] - (1 if other == c else 0)",
        "power = gates[other, POWER] - (1 if other <= c else 0)",
        "linearize instant_gates",
    ),
    Fault(
        "CUDA stepping: halved once too seldom",
        "scoring/kernels/cuda_propagator.py",
        "(__double2hiint(norm*(1.0/TAYLOR_NORM)) >> 20) - 1022",
        "(__double2hiint(norm*(1.0/TAYLOR_NORM)) >> 20) - 1024",
        "cuda_source backends",
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
        "return _moved(protocol, -junction)",
        "return _moved(protocol, junction)",
        "command_segments",
    ),
    Fault(
        "command: the samples of a filtered edge count as those of its step",
        "problem/command_pieces.py",
        "if longest < 1 or not self.precision.measured:",
        "if longest < 1 or self.precision.measured:",
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
        "pull += by.social * two *",
        "pull += by.social * one *",
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
    # --- drawn: files that laboratories have
    Fault(
        "abf: a command below the nominal one counts as the same",
        "reading/formats/contents.py",
        "near.append(np.abs(row[start:end] - nominal) < _NEAR_MV)",
        "near.append(row[start:end] - nominal < _NEAR_MV)",
        "formats",
    ),
    Fault(
        "tables: empty cells are currents of 0",
        "reading/tables.py",
        'c if c.strip() else "nan"',
        'c if c.strip() else "0"',
        "recording",
    ),
    Fault(
        "igor: numbers without a sign have one",
        "reading/formats/igor.py",
        'stored.str.replace("i", "u")',
        'stored.str.replace("u", "i")',
        "formats",
    ),
    Fault(
        "winwcp: the scales of two records change places",
        "reading/formats/wcp.py",
        "scales[:, k] / scales[-1, k]",
        "scales[-1, k] / scales[:, k]",
        "formats",
    ),
    Fault(
        "syncropatch: as many intervals as samples",
        "reading/formats/syncropatch.py",
        "sampling = (last - first) / (len(times) - 1) * 1e3",
        "sampling = (last - first) / len(times) * 1e3",
        "formats",
    ),
    Fault(
        "nwb: a filter's kHz are taken for Hz",
        "reading/formats/nwb.py",
        'unit.lower() == "khz"',
        'unit == "khz"',
        "starter_clamp formats",
    ),
    # --- drawn: units, protocols, expressions
    Fault(
        "units: pS/pF a millionfold",
        "reading/units.py",
        '"pS/pF": 1e-3',
        '"pS/pF": 1e3',
        "units",
    ),
    Fault(
        "protocol: a sweep that carries over begins where the last one began",
        "problem/protocol.py",
        "last.voltage(np.array([last.end_ms]))[0]",
        "last.voltage(np.array([last.start_ms]))[0]",
        "protocol",
    ),
    Fault(
        "expressions: of comparisons in a row only the first counts",
        "model/expressions.py",
        "zip(node.ops, values, values[1:], strict=False)",
        "zip(node.ops, values[:1], values[1:], strict=False)",
        "expressions",
    ),
    # --- drawn: kernels
    Fault(
        "lowering: the size of a negative whole number",
        "scoring/machine/lowering_calls.py",
        "sub nsw i64 0, {ref}",
        "sub nsw i64 {ref}, 0",
        "lowering",
    ),
    Fault(
        "CUDA tangents: a later move ends among the segments of the first",
        "scoring/kernels/cuda_tangents.py",
        "load(scratch.composites + placeOf<Composite>(move.first + s, n, i), n, c);",
        "load(scratch.composites + placeOf<Composite>(s, n, i), n, c);",
        "cuda_linearize",
    ),
    Fault(
        "CUDA: an exponential below the least power of two",
        "scoring/kernels/cuda_math.py",
        "min(max(__double2loint(shifted), -1023), 1024)",
        "min(max(__double2loint(shifted), -1024), 1024)",
        "cuda_source backends",
    ),
    Fault(
        "tangents: the second ramp looks at the last edge of the first",
        "scoring/tangent_walks.py",
        "edges + run.n_steps + 1, middles",
        "edges + run.n_steps, middles",
        "linearize",
    ),
    Fault(
        "closed form: a good state takes back the doubt of another one",
        "scoring/kernels/spectral_runs.py",
        '{GREATEST_MISS**2!r}"\n            c.put("doubt", c.choose(good, "doubt", "1.0"))',
        '{GREATEST_MISS**2!r}"\n            c.put("doubt", c.choose(good, "0.0", "1.0"))',
        "modes",
    ),
    # --- drawn: clamp, conditioning, what is scored
    Fault(
        "clamp: prediction that takes away",
        "scoring/kernels/clamp_stages.py",
        "({right[self.at_p]}) - {self._c",
        "({right[self.at_p]}) + {self._c",
        "clamp",
    ),
    Fault(
        "clamp: a Bessel filter whose cutoff is at half of the amplitude",
        "scoring/layout/low_pass.py",
        "if gain > math.sqrt(0.5) else",
        "if gain > 0.5 else",
        "clamp",
    ),
    Fault(
        "conditioning: a filter that starts half at rest",
        "problem/conditioning.py",
        "np.exp(z) * rest + old * before",
        "np.exp(z) * rest",
        "conditioning",
    ),
    Fault(
        "recording: chosen sweeps in the order of their numbers",
        "problem/recording.py",
        "[number - 1 for number in numbers]",
        "[number - 1 for number in sorted(numbers)]",
        "recording",
    ),
    # --- drawn: search
    Fault(
        "hybrid: of those under way the worse ones are followed to their end",
        "search/hybrid.py",
        "under_way.starts.cost < _least(found)",
        "under_way.starts.cost > _least(found)",
        "agreement least_squares",
    ),
    Fault(
        "CMA-ES: a candidate that fails ranks before some that do not",
        "search/cma_es.py",
        "worst = cost[finite].max()",
        "worst = cost[finite].min()",
        "cma_es",
    ),
    Fault(
        "differential: weights are learned from crossovers",
        "search/differential.py",
        "((self._weights, weight), (self._crossovers, crossover))",
        "((self._weights, crossover), (self._crossovers, weight))",
        "differential",
    ),
    # --- drawn: how sure a fit is, and comparison
    Fault(
        "families: a path around a barrier that only counts where it is higher",
        "results/uncertainty/families.py",
        "= min(barriers[a, b], bent)",
        "= max(barriers[a, b], bent)",
        "families",
    ),
    Fault(
        "profiles: other parameters are drawn by the one that is held",
        "results/uncertainty/profiles.py",
        "hessian[:, self.place] = 0.0",
        "hessian[self.place, :] = 0.0",
        "profiles",
    ),
    Fault(
        "noise spectrum: a hum among samples left out seems weaker",
        "results/uncertainty/noise_spectrum.py",
        "(found[alone] / weight[alone] / share)",
        "(found[alone] / weight[alone])",
        "uncertainty",
    ),
    Fault(
        "posterior: one parameter within its range is enough",
        "results/uncertainty/posterior.py",
        "((unit >= 0) & (unit <= 1)).all(axis=0)",
        "((unit >= 0) & (unit <= 1)).any(axis=0)",
        "posterior",
    ),
    Fault(
        "comparison: what was held out is judged by the worst rival",
        "results/comparison.py",
        "better = min(rivals, key",
        "better = max(rivals, key",
        "comparison held_out",
    ),
    # --- drawn: batch
    Fault(
        "limits: a leak that is left counts without its voltage",
        "batch/limits.py",
        "abs(found.value) * volts / checked.peak_pA",
        "abs(found.value) / checked.peak_pA",
        "batch_checks",
    ),
    Fault(
        "population: half of the degrees of freedom",
        "batch/mixed.py",
        "found = 2 * np.diag(inverse) ** 2 / variance",
        "found = np.diag(inverse) ** 2 / variance",
        "population",
    ),
    Fault(
        "batch: what merging took out, without its weights",
        "batch/families.py",
        "np.sum(self.weights * (d - data[self.places]) ** 2)",
        "np.sum((d - data[self.places]) ** 2)",
        "batch_engine",
    ),
    Fault(
        "k-means: a center without points gets the nearest one",
        "results/uncertainty/k_means.py",
        "np.argsort(-distances, kind",
        "np.argsort(distances, kind",
        "kmeans",
    ),
    Fault(
        "outliers: those below the others are none",
        "batch/outliers.py",
        "np.abs(values - others.mean[:nd]) / reach",
        "(values - others.mean[:nd]) / reach",
        "population",
    ),
    # --- drawn: curves and functions
    Fault(
        "curves, CUDA: starts below one another are near",
        "curves/cuda_text.py",
        "max(far, gap < 0 ? -gap : gap)",
        "max(far, gap)",
        "curves_cuda",
    ),
    Fault(
        "curves: counts where few are expected weigh double",
        "curves/lane_math.py",
        "bend = 0.5 * ratio * share * q * q",
        "bend = ratio * share * q * q",
        "curves",
    ),
    Fault(
        "functions: a sum without its last term",
        "functions/source.py",
        'f"{begin}, {end} + 1"',
        'f"{begin}, {end}"',
        "functions",
    ),
    # --- drawn: cable
    Fault(
        "fhn, controlled: half of the errors are not seen",
        "fitzhugh_nagumo/crank_nicolson_controlled.py",
        "max(most, abs(here[l] - there[l]))",
        "max(most, here[l] - there[l])",
        "fitzhugh_nagumo_control",
    ),
    Fault(
        "fhn, CUDA: a new grid's recovery is its potential",
        "fitzhugh_nagumo/cuda/adaptive.py",
        "between(at, w, rank, n, monitor == 1, at_new[k])",
        "between(at, v_new, rank, n, monitor == 1, at_new[k])",
        "fitzhugh_nagumo_extended fitzhugh_nagumo_cuda",
    ),
    Fault(
        "fhn, noise: the last node asks the first end",
        "fitzhugh_nagumo/noise.py",
        "(node == n_nodes - 1 and kinds[1] == 0)",
        "(node == n_nodes - 1 and kinds[0] == 0)",
        "fitzhugh_nagumo",
    ),
    Fault(
        "fhn, Chebyshev: a whole first stage of recovery",
        "fitzhugh_nagumo/chebyshev.py",
        "ahead, slow, gamma = weight * h, weight * h * q[2], q[1]",
        "ahead, slow, gamma = weight * h, h * q[2], q[1]",
        "fitzhugh_nagumo_chebyshev",
    ),
    Fault(
        "fhn, Runge-Kutta: recovery of the node beside",
        "fitzhugh_nagumo/runge_kutta.py",
        "one[0, g - low + 1], one[1, g - low]",
        "one[0, g - low + 1], one[1, g - low + 1]",
        "fitzhugh_nagumo",
    ),
    Fault(
        "fhn, stimulus: a pulse is not repeated in part",
        "fitzhugh_nagumo/equation.py",
        "np.minimum(since - whole * self.period, length)",
        "np.minimum(since, length)",
        "fitzhugh_nagumo_stimuli",
    ),
    # --- drawn: exporters and importers
    Fault(
        "export, Python: states that are left out already leave once more",
        "results/export/python.py",
        "out = sum(k[last][:last])",
        "out = sum(k[last])",
        "export",
    ),
    Fault(
        "export, Myokit: half of a hyperbolic tangent's argument",
        "results/export/myokit.py",
        "1 - 2 / (exp(2 * ({x})) + 1)",
        "1 - 2 / (exp({x}) + 1)",
        "export export_myokit",
    ),
    Fault(
        "export, NMODL: every ion has one charge",
        "results/export/nmodl.py",
        "u = z*v/rtf",
        "u = v/rtf",
        "export_neuron export",
    ),
    Fault(
        "export, LaTeX: exprel with another sign",
        "results/export/latex.py",
        r"\\frac{e^{x} - 1}{x}",
        r"\\frac{1 - e^{x}}{x}",
        "export",
    ),
    Fault(
        "import, NMODL: a difference within a difference keeps its sign",
        "model/imports/gating.py",
        'negative ^ (node.op == "-")',
        'node.op == "-"',
        "import_neuron",
    ),
    Fault(
        "import, Myokit: what follows the voltage is held",
        "model/imports/myokit_model.py",
        'used.isdisjoint((self.plain["voltage"], self.plain["time"]))',
        'used.isdisjoint((self.plain["time"],))',
        "import_myokit import_cell import_inputs",
    ),
    # --- drawn: what was cut off, pieces
    Fault(
        "resuming: a run that may go on elsewhere is taken over",
        "results/checkpoint.py",
        "still_runs(process) is False",
        "still_runs(process) is not True",
        "run_state resume",
    ),
    Fault(
        "journal: an answer about other points is taken",
        "search/journal.py",
        "if (earlier, known) != (question, check):",
        "if earlier != question:",
        "resume",
    ),
    Fault(
        "cluster: a second worker before the patience has ended",
        "tasks/cluster.py",
        "max(self._cluster.patience, 4",
        "min(self._cluster.patience, 4",
        "tasks cluster",
    ),
    Fault(
        "tasks: one length that is right is enough",
        "tasks/result_store.py",
        "if any(n is not None and n != own",
        "if all(n is not None and n != own",
        "tasks",
    ),
    # --- drawn: pages and the command line
    Fault(
        "report: an inward current's availability is negative",
        "results/report/step_families.py",
        "values / values[np.nanargmax(size)]",
        "values / np.nanmax(size)",
        "report",
    ),
    Fault(
        "plate: one outlier stretches the axis of a distribution",
        "batch/page_figures.py",
        "min(ordered[-1], b + room)",
        "max(ordered[-1], b + room)",
        "batch_tables plate_page",
    ),
    Fault(
        "watch: samples that do not count are shown as data",
        "front/watching/traces.py",
        "np.where(recording.weight > 0, recording",
        "np.where(recording.weight >= 0, recording",
        "front watch",
    ),
    Fault(
        "command line: what a resumed run may change is not changed",
        "front/resumed.py",
        "{**again.params, **{name: given[name] for name in beside}}",
        "{**{name: given[name] for name in beside}, **again.params}",
        "resume curves_resume",
    ),
]


def main() -> int:
    """Run the trial; 0: all caught, 1: some survived, 2: some no longer apply."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="only faults whose name has one of these words")
    parser.add_argument("--check", action="store_true", help="only whether every fault applies")
    parser.add_argument("--related", action="store_true", help="leave out all unrelated tests")
    parser.add_argument("--table", type=Path, metavar="FILE", help="write what caught each fault")
    given = parser.parse_args()
    if stale := stale_faults():
        print("These faults no longer apply; write them anew:", *stale, sep="\n  ")
        return 2
    if given.check:
        print(f"{len(FAULTS)} faults apply")
        return 0
    chosen = [f for f in FAULTS if not given.words or any(w in f.name for w in given.words)]
    rows = ["fault\troom\tcircle\tcaught by"]
    survived = 0
    with tempfile.TemporaryDirectory(prefix="channelfit_mutations_") as folder:
        for fault in chosen:
            begun = time.monotonic()
            circle, shown = _trial(fault, Path(folder), given.related) or ("", "SURVIVED")
            survived += not circle
            print(f"{fault.name:74} {time.monotonic() - begun:5.0f} s  {shown}", flush=True)
            rows.append(f"{fault.name}\t{fault.room}\t{circle or '-'}\t{shown}")
            if given.table:  # after each one: what is there counts when the rest is cut off
                given.table.write_text("\n".join(rows) + "\n")
    print(f"{len(chosen) - survived} of {len(chosen)} faults caught")
    return int(survived > 0)


def stale_faults() -> list[str]:
    """What is no longer right in this file: texts that are not there once, tests that are gone."""
    stale = []
    for fault in FAULTS:
        if (n := _text(ROOT, fault).count(fault.right)) != 1:
            stale.append(f"{fault.file}: {fault.name}: found {n} times: {fault.right}")
        gone = [name for name in fault.tests.split() if not _tests(ROOT, name)]
        stale += [f"{fault.name}: there is no test_{name}.py" for name in gone]
    names = [fault.name for fault in FAULTS]
    return stale + [f"{name}: named twice" for name in {n for n in names if names.count(n) > 1}]


def _text(root: Path, fault: Fault) -> str:
    file = root / PACKAGE / fault.file
    return file.read_text(encoding="utf-8") if file.is_file() else ""


def _tests(root: Path, name: str) -> list[str]:
    """The test file of this name, in whatever folder of the tests it lies."""
    return [str(p.relative_to(root)) for p in sorted((root / "tests").rglob(f"test_{name}.py"))]


def _trial(fault: Fault, folder: Path, related_only: bool) -> tuple[str, str] | None:
    """The circle and the first test in it that fails with the fault, None where none does."""
    tree = folder / "tree"
    _copy(tree)
    place = tree / PACKAGE / fault.file
    place.write_text(_text(tree, fault).replace(fault.right, fault.wrong), encoding="utf-8")
    related = [path for name in fault.tests.split() for path in _tests(tree, name)]
    # the test of this file sees that the text of the fault has gone, which is no catch
    others = [f"--ignore={path}" for path in (*related, *_tests(tree, "mutations"))]
    circles = {"fast": related, "integration": ["-m", "integration and not slow", *related]}
    if not related_only:
        circles["all"] = ["-n", "auto", *others]
    for circle, arguments in circles.items():
        if found := _first_failure(tree, folder / "cache", arguments, fault.name):
            return circle, found
    return None


def _first_failure(tree: Path, cache: Path, arguments: list[str], name: str) -> str | None:
    environment = {
        "CHANNELFIT_CACHE": str(cache),
        **os.environ,
        "PYTHONPATH": str(tree),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *arguments],
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_LONGEST,
        )
    except subprocess.TimeoutExpired:
        return f"no end within {_LONGEST} s: {' '.join(arguments)}"
    if done.returncode == 1 and (found := _FAILED.search(done.stdout)):
        return found[1]
    if done.returncode not in (0, _NO_TESTS):  # nothing that such a fault should bring about
        sys.exit(f"{name}: pytest ended with {done.returncode}\n{done.stdout}{done.stderr}")
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
