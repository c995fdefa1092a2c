: a scheme whose start is the solution of linear equations, as a point process
NEURON {
    POINT_PROCESS ILinear
    NONSPECIFIC_CURRENT i
    RANGE gmax, erev
}
UNITS { (nA) = (nanoamp) (nS) = (nanosiemens) }
PARAMETER { gmax = 12 (nS) erev = -80 (mV) }
ASSIGNED { v (mV) i (nA) f b }
STATE { c d o }
INITIAL { rates() SOLVE start }
BREAKPOINT {
    SOLVE kin METHOD sparse
    i = (0.001)*gmax*o*(v - erev)
}
KINETIC kin {
    rates()
    ~ c <-> d (2*f, b)
    ~ d <-> o (f, 2*b)
    CONSERVE c + d + o = 1
}
LINEAR start {
    ~ b*d - 2*f*c = 0
    ~ f*d - 2*b*o = 0
    ~ c + d + o = 1
}
PROCEDURE rates() {
    f = 0.1*exp((v + 20)/25)
    b = 0.2*exp(-(v + 20)/30)
}
