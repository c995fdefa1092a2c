"""A cell as CUDA C++: a thread has one parameter set in one sweep, in float64.

Rates and steady states are those that all CUDA kernels of channels have. What the cell adds (its
currents, the steps of the voltage and of the occupancies) is printed from the text of the CPU's
kernel. One compartment keeps its state in registers. A cable keeps that of its segments in memory,
in which the threads of a warp have neighboring numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from channelfit.cells.cable_kernel import CableSource
from channelfit.cells.kernel import BACK, CellSource
from channelfit.cells.membrane import Membrane
from channelfit.problem.statuses import OK
from channelfit.scoring.kernels.clamp_cuda import SLOPES
from channelfit.scoring.kernels.cuda_common import CudaChannel
from channelfit.scoring.kernels.writers import CudaWriter
from channelfit.scoring.machine.cuda_printer import Card, cuda_function
from channelfit.scoring.machine.kernel_text import Source

#: Threads of a block: a warp, since sets are few and all multiprocessors should have some.
THREADS = 32
_SPELLED = {"exp": "exponential", "exprel_slope": "exprelSlope", "axial.shape[0]": "N_SEGMENTS"}
_PAST = [f"{x}{j or ''}" for x in "ab" for j in range(BACK)]
#: Arguments of both kernels before and behind their own; the first are the shape of the trace.
_HEAD = (
    "const int n_rows, const int n_traces, const int n_times, const int n_sets, "
    "const double *parameters, const double *stimulus, const int n_sweeps, const int n_steps, "
)
_TAIL = "const double start, double *trace, signed char *status_out"


class CellCudaSource:
    """The generated CUDA of one membrane; its kernel is runCells, or runCable.

    Arguments:
        segments: of a cable; 0 for one compartment.

    Attributes:
        text: the source.
        kept: of a cable, numbers that a thread keeps in memory.
    """

    def __init__(self, membrane: Membrane, segments: int = 0) -> None:
        self.source = CableSource(membrane, 1) if segments else CellSource(membrane, 1)
        self.channel = CudaChannel(membrane.model)
        n_x = max(1, self.source.n_x)
        self.kept = 15 * (segments + 1) + BACK * segments * n_x
        self.moving = [k for k, c in enumerate(membrane.model.chains) if len(c.states) > 1]
        self.stride = f"*{THREADS}" if segments else ""
        w = self.w = CudaWriter()
        w(self.channel.title("a cell"), f"constexpr int N_SEGMENTS = {segments};")
        w(f"constexpr int N_CURRENTS = {len(membrane.channels)};")
        self.channel.write(w, SLOPES)
        self._print()
        if segments:
            self._write_cable()
        else:
            self._write_cell()
        self.text = w.text

    def _print(self) -> None:
        """Write the functions of the CPU's text."""
        source, rows = Source(self.source.text, "cell"), dict.fromkeys
        kept = rows(("x", "x1", "x2", "x3"), f"double[]{self.stride}")
        plain = rows(("theta", "q", "currents"), "double[]")
        numbers = rows(("h", "pushed", *self.source.weights.split(", ")), "double")
        numbers |= rows([f"e{j}" for j in range(1, BACK + 1)], "double")
        one = rows(("v", *_PAST), "double&")
        segments = rows(("v", "v1", "v2", "v3", *_PAST), f"double[]{self.stride}")
        segments |= rows(("rest", "share", "right"), f"double[]{self.stride}")
        segments |= {"axial": "double[][3]"}
        for name in ["flow", *(f"step{k}" for k in self.moving)]:
            self._function(source, name, kept | plain | numbers | one)
        if self.stride:
            self._function(source, "cable", plain | numbers | segments)
        else:
            self._function(source, "advance", plain | numbers | one)

    def _function(self, source: Source, name: str, arguments: dict[str, str]) -> None:
        card = Card("double", arguments, _SPELLED, rolled=("s", "back"), lane="l")
        self.w("", *cuda_function(source, name, card).splitlines())

    @contextmanager
    def _kernel(self, head: str) -> Iterator[None]:
        """Open a kernel, with the set and the sweep of this thread, and its parameters."""
        w = self.w
        with w.block(f'extern "C" __global__ void __launch_bounds__({THREADS}) {head}'):
            w("const int set = blockIdx.x*blockDim.x + threadIdx.x, sweep = blockIdx.y;")
            w("if (set >= n_sets) return;")
            w("double theta[N_PARAMETERS], q[N_RATES], currents[N_CURRENTS];")
            w("for (int k = 0; k < N_PARAMETERS; ++k)")
            w("    theta[k] = parameters[(size_t)k*n_sets + set];", f"int status = {OK};")
            yield
            w("status_out[(size_t)sweep*n_sets + set] = status;")

    def _write_cell(self) -> None:
        """Write runCells; its arguments are those of the CPU's."""
        w = self.w
        head = f"{_HEAD}const int settled, const double h, const int every, "
        w("", "// Voltages, mV, and currents of channels, pA, of every sample.")
        with self._kernel(f"runCells({head}{_TAIL})"):
            lines = ", ".join(_PAST)
            w(f"double x[N_X], x1[N_X], x2[N_X], x3[N_X], v = start, {lines};")
            w("createQmat(v, theta, q, status);", "initStateProbs(q, x);")
            w("flow(v, theta, x, a, b, currents);")
            w("for (int k = 0; k < N_X; ++k) x1[k] = x2[k] = x3[k] = x[k];")
            w("a1 = a2 = a3 = a;", "b1 = b2 = b3 = b;")
            w("const size_t apart = (size_t)n_traces*n_times*n_sets;  // of the rows of a trace")
            w("double *sample = trace + (size_t)sweep*n_times*n_sets + set;", "int left = settled;")
            with w.block("for (int n = 0;; ++n)"):
                with w.block("if (left == 0)"):
                    w("*sample = v;", "#pragma unroll", "for (int k = 0; k < N_CURRENTS; ++k)")
                    w("    if (k + 1 < n_rows) sample[(k + 1)*apart] = currents[k];")
                    w("sample += n_sets;", "left = every;")
                w("if (n == n_steps) break;", "--left;")
                w(f"advance(v, theta, {lines}, stimulus[(size_t)sweep*n_steps + n], h);")
                w("createQmat(v, theta, q, status);")
                w(*(f"step{k}(q, x, x1, x2, x3, h);" for k in self.moving))
                w("flow(v, theta, x, a, b, currents);")

    def _write_cable(self) -> None:
        """Write runCable; its arguments are those of the CPU's, and memory."""
        w, weights = self.w, self.source.weights
        head = (
            f"{_HEAD}const double *steps, const long long *samples, const double *axial, "
            "const long long *places, double *memory, "
        )
        kept = [f"{x}{j or ''}" for x in "vab" for j in range(BACK)]
        names = [*kept, "rest", "share", "right"]
        own = ", ".join(f"{x}[s*{THREADS}]" for x in "ab")
        past = ", ".join(f"x{j or ''} + s*N_X*{THREADS}" for j in range(BACK))
        w("", "// Voltages, mV, of every sample at some segments; memory has zeros.")
        with self._kernel(f"runCable({head}{_TAIL})"):
            w(f"memory += (size_t)(sweep*gridDim.x + blockIdx.x)*{self.kept * THREADS};")
            w(
                "memory += threadIdx.x;",
                "const int n_places = n_traces/n_sweeps;",
                f"constexpr int SIZE = (N_SEGMENTS + 1)*{THREADS};",
            )
            w(*(f"double *{name} = memory + {k}*SIZE;" for k, name in enumerate(names)))
            for j in range(BACK):
                place = f"{len(names)}*SIZE + {j}*N_SEGMENTS*N_X*{THREADS}"
                w(f"double *x{j or ''} = memory + {place};")
            with w.block("for (int s = 0; s < N_SEGMENTS; ++s)"):
                w("double steady[N_X];", f"v[s*{THREADS}] = start;")
                w("createQmat(start, theta, q, status);", "initStateProbs(q, steady);")
                each = " = ".join(f"x{j or ''}[(s*N_X + k)*{THREADS}]" for j in range(BACK))
                w(f"for (int k = 0; k < N_X; ++k) {each} = steady[k];")
                w(f"flow(start, theta, x + s*N_X*{THREADS}, {own}, currents);")
                for name in "vab":
                    older = " = ".join(f"{name}{j}[s*{THREADS}]" for j in range(1, BACK))
                    w(f"{older} = {name}[s*{THREADS}];")
            with w.block("for (int n = 0; n <= n_steps; ++n)"):
                with w.block("if (n > 0)"):
                    w(f"const double *row = steps + {2 + 2 * BACK}*(n - 1);")
                    every = [*weights.split(", "), *(f"e{j}" for j in range(1, BACK + 1))]
                    w(*(f"const double {name} = row[{k}];" for k, name in enumerate(every)))
                    pushed = "stimulus[(size_t)sweep*n_steps + n - 1]"
                    w(f"cable(theta, {', '.join(names)}, axial, {pushed}, {', '.join(every)});")
                    with w.block("for (int s = 0; s < N_SEGMENTS; ++s)"):
                        w(f"createQmat(v[s*{THREADS}], theta, q, status);")
                        for k in self.moving:
                            w(f"step{k}(q, {past}, {weights});")
                        w(f"flow(v[s*{THREADS}], theta, x + s*N_X*{THREADS}, {own}, currents);")
                with w.block("if (samples[n] >= 0)"), w.block("for (int k = 0; k < n_places; ++k)"):
                    w("const size_t place = (size_t)(sweep*n_places + k)*n_times + samples[n];")
                    w(f"trace[place*n_sets + set] = v[places[k]*{THREADS}];")
