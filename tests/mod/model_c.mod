TITLE model C of Ben-Shalom et al. 2012: C1 <-> C2 <-> C3 <-> O

COMMENT
Written by hand; see model_a.mod.
ENDCOMMENT

NEURON {
    POINT_PROCESS ModelC
    NONSPECIFIC_CURRENT i
    RANGE a12, z12, a21, z21, a23, z23, a32, z32, a34, z34, a43, z43, gmax, ek, i
}

UNITS {
    (nA) = (nanoamp)
    (mV) = (millivolt)
    (nS) = (nanosiemens)
}

PARAMETER {
    a12 = 0.05 (/ms)   z12 = 0.05 (/mV)
    a21 = 0.05 (/ms)   z21 = 0.05 (/mV)
    a23 = 0.05 (/ms)   z23 = 0.05 (/mV)
    a32 = 0.05 (/ms)   z32 = 0.05 (/mV)
    a34 = 0.05 (/ms)   z34 = 0.05 (/mV)
    a43 = 0.05 (/ms)   z43 = 0.05 (/mV)
    gmax = 5 (nS)
    ek = -100 (mV)
}

ASSIGNED {
    v (mV)
    i (nA)
    f1 (/ms)
    b1 (/ms)
    f2 (/ms)
    b2 (/ms)
    f3 (/ms)
    b3 (/ms)
}

STATE { C1 C2 C3 O }

INITIAL {
    LOCAL x, y, z, all
    rates(v)
    x = f1/b1
    y = x*(f2/b2)
    z = y*(f3/b3)
    all = 1 + x + y + z
    C1 = 1/all
    C2 = x/all
    C3 = y/all
    O = z/all
}

BREAKPOINT {
    SOLVE kin METHOD sparse
    i = (1e-3)*gmax*O*(v - ek)
}

KINETIC kin {
    rates(v)
    ~ C1 <-> C2 (f1, b1)
    ~ C2 <-> C3 (f2, b2)
    ~ C3 <-> O (f3, b3)
    CONSERVE C1 + C2 + C3 + O = 1
}

PROCEDURE rates(v (mV)) {
    f1 = a12*exp(v*z12)
    b1 = a21*exp(-v*z21)
    f2 = a23*exp(v*z23)
    b2 = a32*exp(-v*z32)
    f3 = a34*exp(v*z34)
    b3 = a43*exp(-v*z43)
}
