# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""Propagators and steady states with their derivatives, for the linearization of schemes.

Value and derivative are carried through the same steps, so that the derivative is that of the value
as computed. A *rate* is a distinct rate expression; matrices are differentiated by the logarithm of
each rate.
"""

from __future__ import annotations

from channelfit.scoring.kernels.integration import TAYLOR, TAYLOR_NORM
from channelfit.scoring.machine.kernel_math import exp

#: The five products of a propagator's series: the scratch matrices that are its left factor, its
#: right factor and its result.
_FACTORS = ((0, 0, 1), (1, 0, 2), (1, 1, 3), (4, 3, 5), (5, 3, 6))


def product(a, da, b, db, c, dc):
    """Store the matrix product a b in c (n, n), and its derivatives in dc (n, n, n_rates)."""
    n, n_rates = a.shape[0], da.shape[2]
    for i in range(n):
        for j in range(n):
            c[i, j] = 0.0
            for u in range(n_rates):
                dc[i, j, u] = 0.0
        for k in range(n):
            left = a[i, k]
            for j in range(n):
                right = b[k, j]
                c[i, j] += left * right
                for u in range(n_rates):
                    dc[i, j, u] += left * db[k, j, u] + right * da[i, k, u]


def closeColumns(p, dp):
    """Set the diagonal of p (n, n) so that each column sums to 1, and its derivatives in dp.

    No diagonal element becomes negative.
    """
    n, n_rates = p.shape[0], dp.shape[2]
    for j in range(n):
        rest = 1.0
        for i in range(n):
            if i != j:
                rest -= p[i, j]
        p[j, j] = max(rest, 0.0)
        for u in range(n_rates):
            dp[j, j, u] = 0.0
        if rest > 0.0:
            for i in range(n):
                if i != j:
                    for u in range(n_rates):
                        dp[j, j, u] -= dp[i, j, u]


def propagator(depth, transitions, p, dp, m, dm):
    """Store exp(A) in p (n, n), and its derivatives by the logarithms of the first rates in dp.

    A is the generator matrix times a duration. It is written as B - a I, where a is the fastest
    exit from a state and no element of B is negative, so that the series of exp(B) adds without
    cancellation. The series is taken of a part of the duration and squared back to the whole;
    `closeColumns` follows on each product.

    depth (n_rates,): each rate times the duration. transitions (n_transitions, 4): source, target,
    rate, multiplicity. dp (n, n, n_slopes). m (k, n, n), dm (k, n, n, n_slopes): scratch of at
    least seven matrices.
    """
    n, n_rates = p.shape[0], dp.shape[2]
    a, da = m[0], dm[0]
    a[:] = 0.0
    da[:] = 0.0
    for t in range(transitions.shape[0]):
        i, j, u = transitions[t, 0], transitions[t, 1], transitions[t, 2]
        flow = transitions[t, 3] * depth[u]
        a[j, i] += flow
        a[i, i] -= flow
        if u < n_rates:
            da[j, i, u] += flow
            da[i, i, u] -= flow
    fastest = 0.0
    for i in range(n):
        fastest = max(fastest, -a[i, i])
    levels, scale = 0, 1.0
    while fastest * scale > TAYLOR_NORM:
        levels += 1
        scale *= 0.5
    for i in range(n):
        a[i, i] += fastest
        for j in range(n):
            a[i, j] *= scale
            for u in range(n_rates):
                da[i, j, u] *= scale
    # Degree 12 in five products (Paterson and Stockmeyer), then squared. One place from which
    # `product` is called keeps the compiler from writing it out six times.
    out = 0
    for step in range(5 + levels):
        if step < 5:
            left, right, out = _FACTORS[step]
        else:
            left, right, out = out, out, 11 - out
        if step == 3:
            for i in range(n):
                for j in range(n):
                    m[4, i, j] = (
                        TAYLOR[12] * m[3, i, j] + TAYLOR[11] * m[2, i, j] + TAYLOR[10] * m[1, i, j]
                    )
                    m[4, i, j] += TAYLOR[9] * a[i, j] + (TAYLOR[8] if i == j else 0.0)
                    for u in range(n_rates):
                        dm[4, i, j, u] = (
                            TAYLOR[12] * dm[3, i, j, u]
                            + TAYLOR[11] * dm[2, i, j, u]
                            + TAYLOR[10] * dm[1, i, j, u]
                            + TAYLOR[9] * da[i, j, u]
                        )
        elif step == 4:
            for i in range(n):
                for j in range(n):
                    m[5, i, j] += (
                        TAYLOR[7] * m[2, i, j] + TAYLOR[6] * m[1, i, j] + TAYLOR[5] * a[i, j]
                    )
                    m[5, i, j] += TAYLOR[4] if i == j else 0.0
                    for u in range(n_rates):
                        dm[5, i, j, u] += (
                            TAYLOR[7] * dm[2, i, j, u]
                            + TAYLOR[6] * dm[1, i, j, u]
                            + TAYLOR[5] * da[i, j, u]
                        )
        product(m[left], dm[left], m[right], dm[right], m[out], dm[out])
        if step == 4:
            shrunk = exp(-fastest * scale)
            for i in range(n):
                for j in range(n):
                    m[6, i, j] += TAYLOR[3] * m[2, i, j] + TAYLOR[2] * m[1, i, j] + a[i, j]
                    m[6, i, j] = shrunk * (m[6, i, j] + (1.0 if i == j else 0.0))
                    for u in range(n_rates):
                        dm[6, i, j, u] += (
                            TAYLOR[3] * dm[2, i, j, u] + TAYLOR[2] * dm[1, i, j, u] + da[i, j, u]
                        )
                        dm[6, i, j, u] *= shrunk
        if step >= 4:
            closeColumns(m[out], dm[out])
    for i in range(n):
        for j in range(n):
            p[i, j] = m[out, i, j]
            for u in range(n_rates):
                dp[i, j, u] = dm[out, i, j, u]


def steadyState(rate, transitions, x, dx, m, dm):
    """Store x (n,), the steady state of a scheme, and derivatives dx (n, n_slopes) by log rates.

    It solves A x = 0 with sum(x) = 1, where A is the generator matrix of the scheme. States are
    eliminated one by one without a subtraction, so that small occupancies keep all their digits
    (Grassmann, Taksar and Heyman 1985). Each state but the first needs a transition with a positive
    rate to one before it, possibly through later states.

    rate (n_rates,): 1/ms. transitions (n_transitions, 4): source, target, rate, multiplicity.
    m (n, n), dm (n, n, n_slopes): scratch for the matrix and its derivatives by log rate.
    """
    n, n_rates = x.shape[0], dx.shape[1]
    m[:] = 0.0
    dm[:] = 0.0
    # m[j, i]: the flow from state i to state j; its diagonal is not used
    for t in range(transitions.shape[0]):
        i, j, u = transitions[t, 0], transitions[t, 1], transitions[t, 2]
        flow = transitions[t, 3] * rate[u]
        m[j, i] += flow
        if u < n_rates:
            dm[j, i, u] += flow
    # Eliminate the last state k: whatever flows into it leaves to an earlier state at once. Row k
    # becomes the occupancy of k for each unit of occupancy of the earlier states.
    for eliminated in range(n - 1):
        k = n - 1 - eliminated
        exit_rate = 0.0
        for i in range(k):
            exit_rate += m[i, k]
        for i in range(k):
            m[k, i] /= exit_rate
            for u in range(n_rates):
                d_exit_rate = 0.0
                for j in range(k):
                    d_exit_rate += dm[j, k, u]
                dm[k, i, u] = (dm[k, i, u] - m[k, i] * d_exit_rate) / exit_rate
        for i in range(k):
            for j in range(k):
                if i != j:
                    m[i, j] += m[i, k] * m[k, j]
                    for u in range(n_rates):
                        dm[i, j, u] += dm[i, k, u] * m[k, j] + m[i, k] * dm[k, j, u]
    # Put the states back in order; the occupancies of those so far always sum to 1.
    x[:] = 0.0
    dx[:] = 0.0
    x[0] = 1.0
    for k in range(1, n):
        for i in range(k):
            x[k] += m[k, i] * x[i]
            for u in range(n_rates):
                dx[k, u] += dm[k, i, u] * x[i] + m[k, i] * dx[i, u]
        total = 1.0 + x[k]
        for i in range(k + 1):
            x[i] /= total
        for u in range(n_rates):
            d_total = dx[k, u]
            for i in range(k + 1):
                dx[i, u] = (dx[i, u] - x[i] * d_total) / total
