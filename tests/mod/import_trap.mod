: a guard around 0 mV in place of the threshold, hidden by a TABLE; a time constant behind GLOBALs
NEURON {
    SUFFIX trap
    USEION na READ ena WRITE ina
    RANGE gbar
    GLOBAL minf, mtau, th, q10, tadj
}
PARAMETER {
    gbar = 0.05 (S/cm2)
    th = -33 (mV)
    q10 = 2.4
    ena = 60 (mV)
    celsius = 30 (degC)
}
ASSIGNED { v (mV) ina (mA/cm2) minf mtau (ms) tadj }
STATE { m }
INITIAL {
    tadj = q10^((celsius - 22)/10)
    settle(v)
    m = minf
}
BREAKPOINT {
    SOLVE states METHOD cnexp
    ina = tadj*gbar*m*m*m*(v - ena)
}
DERIVATIVE states { settle(v) m' = (minf - m)/mtau }
PROCEDURE settle(x (mV)) {
    LOCAL a, b
    TABLE minf, mtau DEPEND th, q10 FROM -119.3 TO 98.7 WITH 199
    tadj = q10^((celsius - 22)/10)
    a = trap(x, th, 0.2, 8)
    b = trap(-x, -th, 0.13, 8)
    mtau = 1/(tadj*(a + b))
    minf = a/(a + b)
}
FUNCTION trap(x, at, rate, slope) {
    if (fabs(x/at) > 1e-6) {
        trap = rate*(x - at)/(1 - exp(-(x - at)/slope))
    } else {
        trap = rate*slope
    }
}
