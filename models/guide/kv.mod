TITLE squid delayed rectifier, four gating particles written out as five states

COMMENT
Written by hand; see model_a.mod. Hodgkin & Huxley 1952, J Physiol 117:500-544.
alpha = a1 (a2 - u)/(exp((a2 - u)/a3) - 1) with u = v + 65, and its limit a1 a3 at u = a2.
ENDCOMMENT

NEURON {
    POINT_PROCESS PotassiumHH
    NONSPECIFIC_CURRENT i
    RANGE a1, a2, a3, b1, b2, gmax, ek, i, an, bn
}

UNITS {
    (nA) = (nanoamp)
    (mV) = (millivolt)
    (nS) = (nanosiemens)
}

PARAMETER {
    a1 = 0.01 (/ms)
    a2 = 10 (mV)
    a3 = 10 (mV)
    b1 = 0.125 (/ms)
    b2 = 80 (mV)
    gmax = 5 (nS)
    ek = -100 (mV)
}

ASSIGNED {
    v (mV)
    i (nA)
    an (/ms)
    bn (/ms)
}

STATE { n0 n1 n2 n3 n4 }

INITIAL {
    LOCAL n, m
    rates(v)
    n = an/(an + bn)
    m = bn/(an + bn)
    n0 = m*m*m*m
    n1 = 4*m*m*m*n
    n2 = 6*m*m*n*n
    n3 = 4*m*n*n*n
    n4 = n*n*n*n
}

BREAKPOINT {
    SOLVE kin METHOD sparse
    i = (1e-3)*gmax*n4*(v - ek)
}

KINETIC kin {
    rates(v)
    ~ n0 <-> n1 (4*an, bn)
    ~ n1 <-> n2 (3*an, 2*bn)
    ~ n2 <-> n3 (2*an, 3*bn)
    ~ n3 <-> n4 (an, 4*bn)
    CONSERVE n0 + n1 + n2 + n3 + n4 = 1
}

UNITSOFF

PROCEDURE rates(v (mV)) {
    LOCAL u
    u = v + 65
    an = a1*a3*vtrap((a2 - u)/a3)
    bn = b1*exp(-u/b2)
}

FUNCTION vtrap(x) {   : x/(exp(x) - 1), by its series near 0
    if (fabs(x) < 0.01) {
        vtrap = 1 - x/2 + x*x/12 - x*x*x*x/720
    } else {
        vtrap = x/(exp(x) - 1)
    }
}
