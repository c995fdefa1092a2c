TITLE gates by a function, a procedure, a table and a guard
COMMENT
VERBATIM and INCLUDE may stand in a comment.
ENDCOMMENT
NEURON {
    SUFFIX igates
    USEION na READ ena WRITE ina
    RANGE gnabar, shift
    GLOBAL q10
    THREADSAFE
}
UNITS { (mV) = (millivolt) (mA) = (milliamp) (S) = (siemens) }
PARAMETER {
    gnabar = 0.12 (S/cm2) <0, 1e9>
    shift = 3 (mV)
    q10 = 3
    celsius = 16 (degC)
    ena = 55 (mV)
}
ASSIGNED { v (mV) ina (mA/cm2) minf mtau (ms) hinf htau (ms) }
STATE { m FROM 0 TO 1 h FROM 0 TO 1 }
INITIAL {
    rates(v)
    m = minf
    h = hinf
}
BREAKPOINT {
    SOLVE gating METHOD cnexp
    ina = gnabar*m^3*h*(v - ena)
}
DERIVATIVE gating {
    rates(v)
    m' = (minf - m)/mtau
    h' = (hinf - h)/htau
}
FUNCTION trapped(x (mV), y (mV)) (mV) {
    if (fabs(x/y) < 1e-6) {
        trapped = y*(1 - x/y/2)
    } else {
        trapped = x/(exp(x/y) - 1)
    }
}
PROCEDURE rates(u (mV)) {
    LOCAL a, b, w, speed
    TABLE minf, mtau, hinf, htau DEPEND celsius FROM -100 TO 100 WITH 200
UNITSOFF
    speed = q10^((celsius - 6.3)/10)
    w = u - shift
    a = 0.1*trapped(-(w + 40), 10)
    b = 4*exp(-(w + 65)/18)
    mtau = 1/(speed*(a + b))
    minf = a/(a + b)
    a = 0.07*exp(-(w + 65)/20)
    b = 1/(exp(-(w + 35)/10) + 1)
    htau = 1/(speed*(a + b))
    hinf = a/(a + b)
UNITSON
}
