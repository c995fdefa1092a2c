"""Rates so fast that only their ratios matter: a generator without speed that has no effect.

A propagator is a series of A h / 2^k squared k times, and k grows with the logarithm of the fastest
rate. Where the norm of A h exceeds GREATEST_NORM the generator is therefore replaced by

    A' = A (I - s A)^-1 = ((I - s A)^-1 - I)/s,   s = h / GREATEST_NORM

(Yosida's approximation). A' is a generator again: none of its rates is negative, its steady state
is that of A, and it leaves no state faster than 1/s. An eigenvalue -l of A becomes -l/(1 + l s), so
that a trace errs by at most 0.54 s/h of its size: 1.3e-10 in float64, 1.3e-7 in float32. Where a
rate is slower than GREATEST_NORM/h (4e10 /ms at 0.1 ms) nothing is changed at all.

Column j of (I - s A)^-1 holds the occupancies of a channel that starts in j after a random time,
exponential with mean s. It is found by eliminating one state after the other: transitions into the
state go on to its targets at once. Nothing is subtracted, so each element keeps its relative
accuracy however far apart the rates lie, as in the elimination of Grassmann, Taksar and Heyman
(1985).
"""

from __future__ import annotations

#: The norm of A h beyond which a generator is replaced, a power of two, by the precision of steps.
GREATEST_NORM = {"float64": 2.0**32, "float32": 2.0**22}
#: Relaxations in one step beyond which more of them make no difference. Their cube is still finite.
DEEP = 1e90


def resolvent(b, r, n, lanes):  # type: ignore[no-untyped-def]
    """Store (I - s A)^-1 of every lane in r (n * n * lanes).

    b (n * n * lanes): element (i, j) s times the rate from j to i, no diagonal; destroyed.
    """
    size = n * lanes
    for k in range(n * size):
        r[k] = 0.0
    for i in range(n):
        for lane in range(lanes):
            r[i * size + i * lanes + lane] = 1.0
    for s in range(n):
        # the state's own column: transitions to the other states left, and the ends there
        for lane in range(lanes):
            total = 0.0
            for i in range(s + 1, n):
                total += b[i * size + s * lanes + lane]
            for i in range(n):
                total += r[i * size + s * lanes + lane]
            share = 1.0 / total
            for i in range(s + 1, n):
                b[i * size + s * lanes + lane] *= share
            for i in range(n):
                r[i * size + s * lanes + lane] *= share
        for j in range(n):
            if j == s:
                continue
            for lane in range(lanes):
                here = b[s * size + j * lanes + lane]
                for i in range(s + 1, n):
                    b[i * size + j * lanes + lane] += here * b[i * size + s * lanes + lane]
                for i in range(n):
                    r[i * size + j * lanes + lane] += here * r[i * size + s * lanes + lane]


#: The same in CUDA C++, as a template over the number of states.
CUDA = """
// (I - s A)^-1 into r. b holds s times the rate from j to i in [i][j], and no diagonal. States are
// eliminated one by one, without a subtraction; see fast_rates.py. Of many states, loops
// stay loops, for the compiler's sake.
template <int N> __device__ void resolvent(double (&b)[N][N], double (&r)[N][N]) {
#pragma unroll 1
    for (int i = 0; i < N; ++i)
        for (int j = 0; j < N; ++j) r[i][j] = i == j ? 1.0 : 0.0;
#pragma unroll 1
    for (int s = 0; s < N; ++s) {
        double total = 0.0;
#pragma unroll(N > 5 ? 1 : N)
        for (int i = s + 1; i < N; ++i) total += b[i][s];
#pragma unroll(N > 5 ? 1 : N)
        for (int i = 0; i < N; ++i) total += r[i][s];
        const double share = 1.0/total;
#pragma unroll(N > 5 ? 1 : N)
        for (int i = s + 1; i < N; ++i) b[i][s] *= share;
#pragma unroll(N > 5 ? 1 : N)
        for (int i = 0; i < N; ++i) r[i][s] *= share;
#pragma unroll 1
        for (int j = 0; j < N; ++j) {
            if (j == s) continue;
            const double here = b[s][j];
#pragma unroll(N > 5 ? 1 : N)
            for (int i = s + 1; i < N; ++i) b[i][j] += here*b[i][s];
#pragma unroll(N > 5 ? 1 : N)
            for (int i = 0; i < N; ++i) r[i][j] += here*r[i][s];
        }
    }
}
"""
