: a scheme written as derivatives, in which one state is what the others leave of 1
NEURON { SUFFIX icoupled  NONSPECIFIC_CURRENT i  RANGE g, i }
PARAMETER { g = 0.002 (S/cm2) }
ASSIGNED { v (mV) i (mA/cm2) f b c }
STATE { d o }
INITIAL {
    rates(v)
    c = 1/(1 + f/b + f*f/(b*b*4))
    d = c*f/b
    o = c*f*f/(b*b*4)
}
BREAKPOINT {
    SOLVE s METHOD derivimplicit
    i = g*o*(v + 77)
}
DERIVATIVE s {
    rates(v)
    c = 1 - d - o
    d' = f*c - b*d + 2*b*o - 0.5*f*d
    o' = 0.5*f*d - 2*b*o
}
PROCEDURE rates(x) {
    f = 0.3*exp(x/30)
    b = 0.1*exp(-x/40)
}
