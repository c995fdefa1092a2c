: constant-field current, with guards, constants of the file's own, and an instantaneous gate
NEURON {
    SUFFIX ighk
    USEION ca READ cai, cao WRITE ica
    RANGE pbar
}
UNITS { (mM) = (milli/liter) FARADAY = 96485 (coul) R = 8.3134 (joule/degC) }
PARAMETER { pbar = 1e-4 (cm/s) celsius = 36 (degC) cai = 1e-4 (mM) cao = 2 (mM) }
ASSIGNED { v (mV) ica (mA/cm2) minf hinf }
STATE { h }
INITIAL { settle(v) h = hinf }
BREAKPOINT {
    SOLVE s METHOD cnexp
    ica = pbar*minf*minf*h*ghk(v, cai, cao)
}
DERIVATIVE s { settle(v) h' = (hinf - h)/(20 + 30*exp(-((v + 60)/15)^2)) }
PROCEDURE settle(x) {
    minf = 1/(1 + exp(-(x + 20)/7))
    hinf = 1/(1 + exp((x + 55)/6))
}
FUNCTION ghk(x (mV), ci (mM), co (mM)) (0.001 coul/cm3) {
    LOCAL z, eco, eci
    z = (1e-3)*2*FARADAY*x/(R*(celsius + 273.15))
    eco = co*efun(z)
    eci = ci*efun(-z)
    ghk = (0.001)*2*FARADAY*(eci - eco)
}
FUNCTION efun(z) {
    if (fabs(z) < 1e-4) {
        efun = 1 - z/2
    } else {
        efun = z/(exp(z) - 1)
    }
}
