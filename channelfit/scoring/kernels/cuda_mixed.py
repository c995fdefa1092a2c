"""Several currents at once on a GPU: gates beside schemes where the voltage varies, in CUDA C++.

The chains of a model do not depend on each other. Gates stand first among them and take the steps
of `cuda_moving` for gates; each scheme takes those for schemes, in a namespace of its own.
"""

from __future__ import annotations

from dataclasses import replace

from channelfit.model.channel import ChannelModel
from channelfit.scoring.kernels.cuda_common import CudaChannel
from channelfit.scoring.kernels.cuda_moving import own_names, write_gates, write_scheme
from channelfit.scoring.kernels.writers import CudaWriter

#: Voltages of a step, all of `run_tree.NODES`: start, middle, end, then those of schemes.
N_NODES = 13


def is_mixed(model: ChannelModel) -> bool:
    """Return whether there are several chains, and any of them has more than two states."""
    return len(model.chains) > 1 and not model.relaxes


def steppable(model: ChannelModel) -> ChannelModel:
    """Return the model as threads step it.

    A scheme times gates becomes the one scheme of all pairs of states. Of several currents the
    chains of two states come first.
    """
    if not is_mixed(model):
        return model
    if sum(bool(term.chains) for term in model.terms) == 1:
        return model.expanded()
    order = sorted(range(len(model.chains)), key=lambda k: len(model.chains[k].states) > 2)
    place = {k: new for new, k in enumerate(order)}
    terms = (replace(t, chains=tuple(place[k] for k in t.chains)) for t in model.terms)
    return replace(model, chains=tuple(model.chains[k] for k in order), terms=tuple(terms))


def write_mixed(w: CudaWriter, channel: CudaChannel, more: str = "", inlined: bool = True) -> None:
    """Write the steps of all chains.

    Arguments:
        more: text that every namespace of a scheme has too, as if its chain were the only one.
        inlined: as for `write_scheme`.
    """
    write_gates(w, channel)
    for k in _schemes(channel):
        w("", f"namespace scheme{k} {{")
        write_scheme(w, channel, inlined, k)
        w(*own_names(more, k).splitlines(), "}")


def stepping(channel: CudaChannel) -> str:
    """Return the beginning of a run of values, and its step."""
    steps = "\n".join(
        f"    scheme{k}::step(nodes + 3, h, p, m.x + {channel.first_x[k]}, flag);"
        for k in _schemes(channel)
    )
    return _STEPPING + steps + "\n}\n"


def tangents(channel: CudaChannel) -> str:
    """Return the steps of derivatives, of a state and of the composite of several steps."""
    schemes = _schemes(channel)
    parts = "".join(f" scheme{k}::Composite part{k};" for k in schemes)
    starts = "".join(f"    start(c.part{k});\n" for k in schemes)
    through = "".join(f"    through(c.part{k}, x + {channel.first_x[k]});\n" for k in schemes)
    of_state = "".join(
        f"    scheme{k}::step(nodes + 2, h, p, x + {channel.first_x[k]}, status);\n"
        for k in schemes
    )
    of_any = "".join(
        f"    scheme{k}::step(nodes + 2, h, p, &c->part{k}, status);\n" for k in schemes
    )
    return _TANGENTS % (parts, starts, through, of_state, of_any)


def composite_numbers(channel: CudaChannel) -> int:
    """Return the numbers in the effect of several steps: two a gate, a matrix a scheme."""
    sizes = [len(channel.model.chains[k].states) for k in _schemes(channel)]
    n_gates = len(channel.chains) - len(sizes)
    return 2 * max(1, n_gates) + sum(n * n for n in sizes)


def _schemes(channel: CudaChannel) -> list[int]:
    return [k for k, chain in channel.chains if len(chain.states) > 2]


_STEPPING = f"""
struct Moving {{
    Gates<real> gates;
    double x[N_X];
}};

constexpr int TOGETHER = 1;
constexpr int N_NODES = {N_NODES}, BEFORE = 0;  // start, middle, end, Gauss points ..

__device__ __forceinline__ LevelOf<real> level(const Moving &, const LevelOf<real> *nodes) {{
    return nodes[0];
}}

__device__ __forceinline__ void begin(Moving &m, const LevelOf<real> *nodes, const real *p,
                                      int &flag) {{
    real up[N_X];
    begin(m.gates, up, nodes[0], p, flag);
    arrive(m.gates, m.x);
}}

__device__ __forceinline__ void step(Moving &m, const LevelOf<real> *nodes, const real h,
                                     const real *p, int &flag) {{
    step(m.gates, nodes + 1, h, p, m.x, flag);
"""

_TANGENTS = f"""
constexpr int N_NODES = {N_NODES};  // start, middle, end, Gauss points, those of quarters

struct Moving {{ Gates<Dual> gates; }};

INLINE void begin(Moving &m, const Level v, const Dual *p, int &status) {{
    Dual up[N_X];
    begin(m.gates, up, v, p, status);
}}

INLINE void arrive(const Moving &m, Dual *x) {{ arrive(m.gates, x); }}

// The effect of several steps on any state.
struct Composite {{ Relaxation<Dual> gate[N_GATES ? N_GATES : 1];%s }};

INLINE void start(Composite &c) {{
    for (int k = 0; k < (N_GATES ? N_GATES : 1); ++k) c.gate[k] = {{0.0, 1.0}};
%s}}

INLINE void follow(const Relaxation<Dual> &r, const int k, Composite *c) {{
    Relaxation<Dual> &gate = c->gate[k];
    gate.gained = r.of(gate.gained);
    gate.kept *= r.kept;
}}

INLINE void through(const Composite &c, Dual *x) {{
#pragma unroll
    for (int k = 0; k < N_GATES; ++k) follow(c.gate[k], k, x);
%s}}

INLINE void step(Moving &m, const Level *nodes, const double h, const Dual *p, Dual *x,
                 int &status) {{
    step(m.gates, nodes, h, p, x, status);
%s}}

INLINE void step(Moving &m, const Level *nodes, const double h, const Dual *p, Composite *c,
                 int &status) {{
    step(m.gates, nodes, h, p, c, status);
%s}}
"""
