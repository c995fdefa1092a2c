"""A channel as CUDA that writes currents and their derivatives: stepping in dual numbers.

Every formula is the template that the stepping kernels use, with the number type `Dual`. What
stands here differs: the samples that are visited, their order, and the places of results.

A thread takes a candidate through one job with TANGENTS of its directions; neighboring threads have
the other directions of the same candidate. Currents are needed at some samples only, and the
distances between these are powers of two. A visit to a voltage therefore squares its propagator
again and again and serves all its runs at each power, so that one propagator is kept at a time, and
no table of rows as in `cuda_source`, which would not fit the registers with derivatives.

Samples at a varying voltage come one after the other, and a few candidates would leave the GPU
empty. Their runs are therefore cut into segments. Threads of their own compute the effect of each
segment on any state (`composeTangents`); the walk goes from the end of one segment to the end of
the next; and threads of their own again step through each segment from the state that it starts
with (`replayTangents`). Without derivatives the same program is the fastest way to the costs of a
few candidates at a varying voltage. Where the voltage is smooth the segments may be pieces on which
occupancies are polynomials (`cuda_pieces`); then nothing is stepped.
"""

from __future__ import annotations

import hashlib

import numpy as np

from channelfit.model.channel import RATE_FLOOR, ChannelModel
from channelfit.problem.statuses import cuda_names
from channelfit.scoring.kernels.cuda_algebra import ALGEBRA
from channelfit.scoring.kernels.cuda_common import CudaChannel
from channelfit.scoring.kernels.cuda_drives import with_drives
from channelfit.scoring.kernels.cuda_dual import DUAL
from channelfit.scoring.kernels.cuda_mixed import (
    composite_numbers,
    is_mixed,
    steppable,
    write_mixed,
)
from channelfit.scoring.kernels.cuda_mixed import tangents as mixed_tangents
from channelfit.scoring.kernels.cuda_moving import GATE_STEP, write_gates, write_scheme
from channelfit.scoring.kernels.cuda_pieces import open_numbers, takes_pieces, write_pieces
from channelfit.scoring.kernels.cuda_propagator import write_propagators
from channelfit.scoring.kernels.fast_rates import DEEP
from channelfit.scoring.kernels.writers import CudaWriter

#: Names of the kernels: the walk, and those before and behind it where runs are cut.
TRACE_TANGENTS = "traceTangents"
COMPOSE_TANGENTS, REPLAY_TANGENTS = "composeTangents", "replayTangents"

#: Derivatives that a thread carries, by the states of the largest chain; 1 for more states. More
#: derivatives share the work for the value, but the propagator of many states fills the registers.
_TANGENTS_BY_STATES = {1: 4, 2: 4, 3: 2}


class CudaTangentSource:
    """The generated text of one model.

    Arguments:
        tangents: how many derivatives a thread carries. 0 gives values alone; with None the number
            is chosen by the states of the model.

    Attributes:
        text: the source, for reading; `specialized` gives the text that is compiled.
        hash: 16 hexadecimal digits of the SHA-256 of `text`.
        state_size: float64 numbers in a state with its derivatives.
        composite_size: float64 numbers in the effect of a segment on any state, with derivatives.
        open_size: float64 numbers in the open probabilities at the points of a piece, with
            derivatives.
    """

    def __init__(self, model: ChannelModel, tangents: int | None = None) -> None:
        self.model = model = steppable(model)
        self.channel = CudaChannel(model)
        self.chains = self.channel.chains
        self.largest = max(len(c.states) for c in model.chains)
        suitable = _TANGENTS_BY_STATES.get(self.largest, 1)
        self.tangents = suitable if tangents is None else tangents
        numbers = 1 + self.tangents
        n_x = max(1, self.channel.n_x)
        self.state_size = n_x * numbers
        composite = 2 * n_x if model.relaxes else self.largest**2
        if is_mixed(model):
            composite = composite_numbers(self.channel)
        self.composite_size = composite * numbers
        self.open_size = open_numbers(self.largest) * numbers
        self.text = self._text(cut=True)
        self.hash = hashlib.sha256(self.text.encode()).hexdigest()[:16]

    @property
    def takes_pieces(self) -> bool:
        """True if runs at smooth varying voltage can be taken in pieces."""
        return takes_pieces(self.model, self.tangents)

    def specialized(
        self, n_slots: int, varying: bool, cut: bool = False, pieces: bool = False
    ) -> str:
        """Return the text for one walk.

        Arguments:
            n_slots: how many states are kept between runs.
            varying: whether the voltage varies in any run.
            cut: whether runs at a varying voltage are cut into segments.
            pieces: whether these segments are pieces as `cuda_pieces` takes them.
        """
        text = self.text if cut and not pieces else self._text(cut, pieces)
        return f"#define N_SLOTS {n_slots}\n#define VARYING {int(varying)}\n{text}"

    def levels(self, nodes: np.ndarray) -> np.ndarray:
        """Return what is commanded in one run that varies, in the order that the text reads.

        Arguments:
            nodes: (n_steps, n_nodes) mV, at `run_tree.NODES` of every step; with ligands
                (n_steps, n_nodes, 1 + n_ligands) mV and mM.

        Returns:
            (n,) mV, or (n, 1 + n_ligands). Chains of two states need start, middle and end of each
            step; schemes need its start, its Gauss points and those of its quarters; both together
            need all.
        """
        if is_mixed(self.model):
            return nodes.reshape(-1, *nodes.shape[2:])
        columns = [0, 1, 2] if self.model.relaxes else [0, *range(3, nodes.shape[1])]
        return nodes[:, columns].reshape(-1, *nodes.shape[2:])

    # --- pieces of text

    def _text(self, cut: bool, pieces: bool = False) -> str:
        w = CudaWriter()
        w(self.channel.title("currents and their derivatives"), "")
        w("#ifndef N_SLOTS  // depends on the protocols: `specialized` defines it")
        w("#define N_SLOTS 16  // of states between runs", "#define VARYING 1", "#endif", "")
        w("typedef double real;  // of constants")
        w(f"constexpr int TANGENTS = {self.tangents};  // derivatives that a thread carries")
        w("constexpr int DEGREE = 12;  // of Taylor's polynomial")
        w("constexpr double TAYLOR_NORM = 1.0/6.0;  // where it and its slopes are exact")
        w("constexpr int KEPT = 5, SERIES_KEPT = 0;  // states: loops written out")
        w("constexpr double OUTSIDE = 1e-6;  // how far x may stray")
        self.channel.write(w, DUAL)
        self.channel.write_state(w)
        write_propagators(w, self.channel, inlined=False)
        w(*_RELAXED.splitlines())
        self._chains(w)
        w(*_PROGRAM.splitlines())
        if pieces:
            ends, kernel = self._suited(_ENDS), self._suited(_KERNEL)
            w(*SEEDED.splitlines(), "#if VARYING", *_SEGMENTS.splitlines())
            write_pieces(w, self.channel)
            w(*ends.splitlines(), "#endif", *kernel.splitlines(), *ALGEBRA.splitlines())
            return w.text
        w("", "#if VARYING", f"constexpr double FLOOR = {RATE_FLOOR!r};  // of a rate, 1/ms")
        w(f"constexpr double DEEP = {DEEP!r};  // relaxations in a step: more make no difference")
        w("constexpr bool SMALL_STEPS = true;", "constexpr int RATES_AT_ONCE = 1;")
        if self.model.relaxes:
            write_gates(w, self.channel)
            w(*GATE_STEP.splitlines(), *_GATES.splitlines())
        elif is_mixed(self.model):
            write_mixed(w, self.channel, _COMPOSITE, inlined=False)
            w(*GATE_STEP.splitlines(), *mixed_tangents(self.channel).splitlines())
        else:
            write_scheme(w, self.channel, inlined=False)
            w(*(_SCHEME + _COMPOSITE + _SCHEME_STEP).splitlines())
        texts = (_SAMPLES, _MOVE, _SEGMENTS + _ENDS + _CUT, _KERNEL)
        samples, move, cutting, kernel = map(self._suited, texts)
        w(*samples.splitlines(), *(() if cut else move.splitlines()), "#endif")
        cutting = f"#if VARYING{cutting}#endif"
        w(*SEEDED.splitlines(), *(cutting.splitlines() if cut else ()), *kernel.splitlines())
        w(*ALGEBRA.splitlines())
        return w.text

    def _suited(self, text: str) -> str:
        """Return a text for the current of the model: one ohmic term, or several drives."""
        return text if self.channel.ohmic else with_drives(text)

    def _chains(self, w: CudaWriter) -> None:
        """Write the propagators of all chains, and their products with a state."""
        w("", "struct Propagators {")
        for k, chain in self.chains:
            n = len(chain.states)
            w(f"    {f'Relaxation<Dual> chain{k};' if n == 2 else f'Dual chain{k}[{n}][{n}];'}")
        w("};")
        with w.device(
            "void createPropagators(const Dual *q, const double h, Propagators &p)",
            "The propagators of all chains over h ms at the rates q.",
        ):
            for k, chain in self.chains:
                if len(chain.states) == 2:
                    up, down = (f"q[{row}]" for row in self.channel.opening_and_closing(k))
                    w(f"createPropagator({up}, {down}, h, p.chain{k});")
                else:
                    w(f"createPropagator{k}(q + {self.channel.first_rate[k]}, h, p.chain{k});")
        with w.device("void square(Propagators &p)", "The propagators of twice the time."):
            w(*(f"square(p.chain{k});" for k, _ in self.chains))
        with w.device(
            "void advance(const Propagators &p, Dual *x)",
            "Takes a state through the time of the propagators.",
        ):
            for k, _ in self.chains:
                w(f"advance(p.chain{k}, x + {self.channel.first_x[k]});")
        self.channel.write_arrive(w, "Propagators &p, Dual", "p.chain{}.gained".format)


#: The propagator of a chain of two states at a held voltage.
_RELAXED = """
INLINE void createPropagator(const Dual &up, const Dual &down, const double h,
                             Relaxation<Dual> &p) {
    p.gained = up*goneOverRates(up, down, h);
    p.kept = exponential(-(up + down)*h);
}

INLINE void square(Relaxation<Dual> &p) {
    p.gained = p.of(p.gained);
    p.kept *= p.kept;
}

INLINE void advance(const Relaxation<Dual> &p, Dual *x) { x[0] = p.of(x[0]); }
"""

_PROGRAM = f"""
{cuda_names()}

// --- the visits of a thread ----------------------------------------------------------------------

enum {{ REST, HELD, VARYING_VOLTAGE }};

struct Visit {{
    Level v;
    double dt;           // ms between samples
    int kind;            // REST: a steady state
    int first, last;     // steps; REST: first is its slot; varying: its move
    int unused;
}};

// At a held voltage: from the state in `source`, `steps` times 2^level samples on, to `target`. The
// current is written at the start (lead) and after each step: points `point` and on of a run,
// unless run < 0.
struct Step {{ int source, target, level, steps, run, point, lead, unused; }};

// A run at varying voltage: n samples of n_sub steps of dt ms; or pieces, n = 1 in the first job.
struct Move {{
    double dt;
    int n, n_sub, nodes, source, target, run;
    int first, n_segments;  // its segments, where it is cut; without any it takes up a state
    int left, unused;       // the first place of states that are left for a replay
}};

// The place of the currents of a run, times `root`: point k to row first + k*stride of an array
// (candidates, rows, 1 + n_free), before which there are `before` rows of all candidates.
struct Run {{
    double root;
    int before, rows, first, stride;
}};

// The places of a thread's results.
struct Trace {{
    const Run *runs;
    double *currents;
    long long n;              // candidates
    int candidate, n_free, first;  // its first direction
}};

// Results of the threads of segments, and states for them, where runs are cut.
struct Scratch {{
    const double *composites;
    double *states;
    long long n_threads, thread;
}};

INLINE void write(const Trace &trace, const int r, const int point, const Dual &current) {{
    const Run run = trace.runs[r];
    const long long row = run.before*trace.n + (long long)run.rows*trace.candidate + run.first
        + point*run.stride;
    double *place = trace.currents + row*(1 + trace.n_free);
    if (trace.first == 0) place[0] = run.root*current.v;
    place += 1 + trace.first;
    EACH_TANGENT if (trace.first + t < trace.n_free) place[t] = run.root*current.d[t];
}}

INLINE void check(const Dual *x, int &status) {{
    if (lost(x) && status == OK) status = OCCUPANCY_LOST;
}}"""

#: Gates at a varying voltage: the places of their voltages, and the effect of steps on any state.
_GATES = """
constexpr int N_NODES = 3;  // voltages of a step: start, middle and end

typedef Gates<Dual> Moving;

INLINE void begin(Moving &m, const Level v, const Dual *p, int &status) {
    Dual up[N_X];
    begin(m, up, v, p, status);
}

// The effect of several steps on any state.
struct Composite { Relaxation<Dual> gate[N_X]; };

INLINE void start(Composite &c) {
#pragma unroll
    for (int k = 0; k < N_X; ++k) c.gate[k] = {0.0, 1.0};
}

INLINE void follow(const Relaxation<Dual> &r, const int k, Composite *c) {
    Relaxation<Dual> &gate = c->gate[k];
    gate.gained = r.of(gate.gained);
    gate.kept *= r.kept;
}

INLINE void through(const Composite &c, Dual *x) {
#pragma unroll
    for (int k = 0; k < N_GATES; ++k) follow(c.gate[k], k, x);
}
"""

#: A scheme at a varying voltage: the places of its voltages.
_SCHEME = """
constexpr int N_NODES = 11;  // voltages of a step: start, two Gauss points, those of its quarters

struct Moving {};

INLINE void begin(Moving &, const Level, const Dual *, int &) {}
INLINE void arrive(const Moving &, Dual *) {}
"""

#: The effect of steps of a scheme on any state.
_COMPOSITE = """
// The effect of several steps on any state.
struct Composite { Dual whole[N][N]; };

INLINE void start(Composite &c) { unit(c.whole); }
INLINE void through(const Composite &c, Dual *x) { advance(c.whole, x); }

// Takes every column of the effect of earlier steps through exp(A); q as in the template.
__device__ __noinline__ void exponentialOf(const Dual *q, Composite *c) {
    const double norm = exitRate0(q);
    if (norm > TAYLOR_NORM) {
        Dual p[N][N], product[N][N];
        createPropagator0(q, 1.0, p);
        multiply(p, c->whole, product);
#pragma unroll(N <= KEPT ? N : 1)
        for (int i = 0; i < N; ++i) {
#pragma unroll
            for (int j = 0; j < N; ++j) c->whole[i][j] = product[i][j];
        }
    } else {
        const int last = terms(norm);
#pragma unroll 1
        for (int j = 0; j < N; ++j) {
            Dual term[N], total[N] = {};
#pragma unroll
            for (int i = 0; i < N; ++i) term[i] = c->whole[i][j];
            laterTerms(q, last, term, total);
#pragma unroll
            for (int i = 0; i < N; ++i) c->whole[i][j] += total[i];
        }
    }
    closeColumns(c->whole);
}
"""

#: A step of a scheme.
_SCHEME_STEP = """
template <class State>
INLINE void step(Moving &, const Level *nodes, const double h, const Dual *p, State *x,
                 int &status) {
    step(nodes, h, p, x, status);
}
"""

_SAMPLES = """
// Samples and their steps, from nodes on. Those of a state are written from point on of a run.
INLINE void walkSamples(const double dt, const int n, const int n_sub, const int run,
                        const int point, const Level *nodes, const Dual *p, const Dual &g,
                        const Dual &e, Dual *x, const Trace &trace, int &status) {
    Moving m;
    begin(m, nodes[0], p, status);
    arrive(m, x);
#pragma unroll 1
    for (int sample = 0; sample < n; ++sample) {
        if (run >= 0) write(trace, run, point + sample, currentOf(x, nodes[0], g, e));
#pragma unroll 1
        for (int k = 0; k < n_sub; ++k, nodes += N_NODES) step(m, nodes + 1, dt, p, x, status);
    }
}"""

_MOVE = """
INLINE void walkMove(const Move &move, const Level *nodes, const Dual *p, const Dual &g,
                     const Dual &e, const Scratch &, Dual *x, const Trace &trace, int &status) {
    walkSamples(move.dt, move.n, move.n_sub, move.run, 0, nodes + move.nodes, p, g, e, x, trace,
                status);
    check(x, status);
}"""

SEEDED = """
// Parameters of a candidate, and which of them the directions `first` and on are.
INLINE void seed(const double *parameters, const long long n, const int candidate,
                 const int *free, const int n_free, const int first, Dual (&p)[N_PARAMETERS]) {
#pragma unroll
    for (int k = 0; k < N_PARAMETERS; ++k) p[k] = parameters[k*n + candidate];
    EACH_TANGENT {
        const int place = first + t < n_free ? free[first + t] : -1;
#pragma unroll
        for (int k = 0; k < N_PARAMETERS; ++k) p[k].d[t] = k == place ? 1.0 : 0.0;
    }
}"""

_SEGMENTS = """
// --- runs at varying voltage, cut into segments --------------------------------------------------

// n samples of n_sub steps of dt ms; the first is point of a run (-1: none). Or a piece of
// dt ms with n rows of results, which a matrix makes of the currents at its points.
struct Segment {
    double dt;
    int n, n_sub, nodes, run, point, matrix;
};

// Numbers of any kind, those of neighboring threads side by side.
template <class T> INLINE void store(const T &value, double *place, const long long n_threads) {
    const double *from = reinterpret_cast<const double *>(&value);
#pragma unroll
    for (int k = 0; k < int(sizeof(T)/sizeof(double)); ++k) place[k*n_threads] = from[k];
}

template <class T> INLINE void load(const double *place, const long long n_threads, T &value) {
    double *to = reinterpret_cast<double *>(&value);
#pragma unroll
    for (int k = 0; k < int(sizeof(T)/sizeof(double)); ++k) to[k] = place[k*n_threads];
}

// The place in which thread i of n_threads keeps a segment's value of type T.
template <class T> INLINE long long placeOf(const int segment, const long long n_threads,
                                            const long long i) {
    return segment*(long long)(sizeof(T)/sizeof(double))*n_threads + i;
}

struct State { Dual x[N_X]; };
"""

_ENDS = """
// From end to end of the segments of a move; the states between them are left for the replay, by
// the first job (n > 0) of those that walk it.
INLINE void walkMove(const Move &move, const Level *, const Dual *, const Dual &, const Dual &,
                     const Scratch &scratch, Dual *x, const Trace &, int &status) {
    const long long i = scratch.thread, n = scratch.n_threads;
    State state;
    if (move.n_segments == 0) {
        load(scratch.states + placeOf<State>(move.left, n, i), n, state);
        for (int k = 0; k < N_X; ++k) x[k] = state.x[k];
    }
#pragma unroll 1
    for (int s = 0; s < move.n_segments; ++s) {
        Composite c;
        for (int k = 0; k < N_X; ++k) state.x[k] = x[k];
        if (move.n) store(state, scratch.states + placeOf<State>(move.left + s, n, i), n);
        load(scratch.composites + placeOf<Composite>(move.first + s, n, i), n, c);
        through(c, x);
        check(x, status);
    }
}
"""

_CUT = f"""
// The effect of segment blockIdx.y on any state, for thread i as in the walk.
extern "C" __global__ void {COMPOSE_TANGENTS}(
    const double *__restrict__ parameters, const long long n, const int *__restrict__ free,
    const int n_free, const int n_groups, const Segment *__restrict__ segments,
    const Level *__restrict__ nodes, double *__restrict__ composites,
    signed char *__restrict__ statuses) {{
    const long long i = (long long)blockIdx.x*blockDim.x + threadIdx.x;
    if (i >= n*n_groups) return;
    const int candidate = int(i/n_groups), group = int(i % n_groups);
    const Segment segment = segments[blockIdx.y];
    Dual p[N_PARAMETERS];
    seed(parameters, n, candidate, free, n_free, group*TANGENTS, p);
    int status = OK;
    Moving m;
    Composite c;
    start(c);
    const Level *node = nodes + segment.nodes;
    begin(m, node[0], p, status);
#pragma unroll 1
    for (int k = 0; k < segment.n*segment.n_sub; ++k, node += N_NODES)
        step(m, node + 1, segment.dt, p, &c, status);
    store(c, composites + placeOf<Composite>(blockIdx.y, n*n_groups, i), n*n_groups);
    if (group == 0) statuses[(long long)blockIdx.y*n + candidate] = (signed char)status;
}}

// The currents of segment blockIdx.y from the state that the walk found.
extern "C" __global__ void {REPLAY_TANGENTS}(
    const double *__restrict__ parameters, const long long n, const int *__restrict__ free,
    const int n_free, const int n_groups, const Segment *__restrict__ segments,
    const Level *__restrict__ nodes, const double *__restrict__ states,
    const Run *__restrict__ runs, double *__restrict__ currents) {{
    const long long i = (long long)blockIdx.x*blockDim.x + threadIdx.x;
    const Segment segment = segments[blockIdx.y];
    if (i >= n*n_groups || segment.run < 0) return;
    const int candidate = int(i/n_groups), group = int(i % n_groups);
    const Trace trace = {{runs, currents, n, candidate, n_free, group*TANGENTS}};
    Dual p[N_PARAMETERS], g, e;
    seed(parameters, n, candidate, free, n_free, trace.first, p);
    int status = OK;
    createGains(p, g, e, status);
    State state;
    load(states + placeOf<State>(blockIdx.y, n*n_groups, i), n*n_groups, state);
    walkSamples(segment.dt, segment.n, segment.n_sub, segment.run, segment.point,
                nodes + segment.nodes, p, g, e, state.x, trace, status);
}}
"""

_KERNEL = f"""
// --- the kernel ----------------------------------------------------------------------------------

INLINE void copy(const Dual *from, Dual *to) {{
#pragma unroll
    for (int i = 0; i < N_X; ++i) to[i] = from[i];
}}

INLINE void walkHeld(const Visit &visit, const Step *steps, const Dual *q, const Dual &scale,
                     Dual (&slots)[N_SLOTS][N_X], const Trace &trace, int &status) {{
    Propagators first, p;
    createPropagators(q, visit.dt, first);
    int level = 0;
    p = first;
#pragma unroll 1
    for (int s = visit.first; s < visit.last; ++s) {{
        const Step step = steps[s];
        Dual x[N_X];
        if (step.level < level) {{
            level = 0;
            p = first;
        }}
#pragma unroll 1
        for (; level < step.level; ++level) square(p);
        copy(slots[step.source], x);
        arrive(first, x);
        int point = step.point;
        if (step.lead && step.run >= 0) write(trace, step.run, point++, scale*openOf(x));
#pragma unroll 1
        for (int k = 0; k < step.steps; ++k) {{
            advance(p, x);
            if (step.run >= 0) write(trace, step.run, point++, scale*openOf(x));
        }}
        copy(x, slots[step.target]);
        check(x, status);
    }}
}}

// The n candidates through job blockIdx.y: thread i has candidate i/n_groups and the directions
// (i % n_groups)*TANGENTS and on, by parameters free[]. Writes currents, pA times the root of a
// weight, and behind each its derivatives; status (jobs, n).
extern "C" __global__ void {TRACE_TANGENTS}(
    const double *__restrict__ parameters, const long long n, const int *__restrict__ free,
    const int n_free, const int n_groups, const int *__restrict__ jobs,
    const Visit *__restrict__ visits, const Step *__restrict__ steps,
    const Move *__restrict__ moves, const Level *__restrict__ nodes,
    const Run *__restrict__ runs, const double *__restrict__ composites,
    double *__restrict__ states, double *__restrict__ currents,
    signed char *__restrict__ statuses) {{
    const long long i = (long long)blockIdx.x*blockDim.x + threadIdx.x;
    if (i >= n*n_groups) return;
    const int candidate = int(i/n_groups), group = int(i % n_groups);
    const Trace trace = {{runs, currents, n, candidate, n_free, group*TANGENTS}};
    Dual p[N_PARAMETERS];
    seed(parameters, n, candidate, free, n_free, trace.first, p);
    Dual slots[N_SLOTS][N_X], g, e;
    int status = OK;
    createGains(p, g, e, status);
#pragma unroll 1
    for (int k = jobs[blockIdx.y]; k < jobs[blockIdx.y + 1]; ++k) {{
        const Visit visit = visits[k];
#if VARYING
        if (visit.kind == VARYING_VOLTAGE) {{
            const Move move = moves[visit.first];
            Dual x[N_X];
            copy(slots[move.source], x);
            const Scratch scratch = {{composites, states, n*n_groups, i}};
            walkMove(move, nodes, p, g, e, scratch, x, trace, status);
            copy(x, slots[move.target]);
            continue;
        }}
#endif
        Dual q[N_RATES];
        createQmat(visit.v, p, q, status);
        if (visit.kind == REST) {{
            Dual x[N_X] = {{}};
            initStateProbs(q, x);
            copy(x, slots[visit.first]);
        }} else {{
            walkHeld(visit, steps, q, g*(visit.v - e), slots, trace, status);
        }}
    }}
    if (group == 0) statuses[(long long)blockIdx.y*n + candidate] = (signed char)status;
}}
"""
