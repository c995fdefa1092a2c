: a cycle whose slow rates are beyond NEURON's own steady state, and fast ones beyond its integrator
NEURON { SUFFIX stiff NONSPECIFIC_CURRENT i RANGE g }
PARAMETER { g = 0.01 (S/cm2) slow = 1e-10 (/ms) }
ASSIGNED { v (mV) i (mA/cm2) up down }
STATE { c o d }
INITIAL { rates(v) SOLVE s STEADYSTATE sparse }
BREAKPOINT { SOLVE s METHOD sparse
    i = g*o*(v + 70) }
KINETIC s {
    rates(v)
    ~ c <-> o (up, down)
    ~ o <-> d (slow, 2*slow)
    CONSERVE c + o + d = 1
}
PROCEDURE rates(x (mV)) { up = 0.2*exp(x/30) down = 0.1*exp(-x/40) }
