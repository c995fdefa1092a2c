TITLE model A of Ben-Shalom et al. 2012: C <-> O

COMMENT
Written by hand, so that a comparison with NEURON does not rest on generated text.
No rate is bounded.
The start is the steady state by detailed balance: a STEADYSTATE solution takes one step of 1e9 ms
and misses the steady state of slower rates.
ENDCOMMENT

NEURON {
    POINT_PROCESS ModelA
    NONSPECIFIC_CURRENT i
    RANGE a12, z12, a21, z21, gmax, ek, i
}

UNITS {
    (nA) = (nanoamp)
    (mV) = (millivolt)
    (nS) = (nanosiemens)
}

PARAMETER {
    a12 = 0.05 (/ms)
    z12 = 0.05 (/mV)
    a21 = 0.05 (/ms)
    z21 = 0.05 (/mV)
    gmax = 5 (nS)
    ek = -100 (mV)
}

ASSIGNED {
    v (mV)
    i (nA)
    opening (/ms)
    closing (/ms)
}

STATE { C O }

INITIAL {
    rates(v)
    O = opening/(opening + closing)
    C = closing/(opening + closing)
}

BREAKPOINT {
    SOLVE kin METHOD sparse
    i = (1e-3)*gmax*O*(v - ek)
}

KINETIC kin {
    rates(v)
    ~ C <-> O (opening, closing)
    CONSERVE C + O = 1
}

PROCEDURE rates(v (mV)) {
    opening = a12*exp(v*z12)
    closing = a21*exp(-v*z21)
}
