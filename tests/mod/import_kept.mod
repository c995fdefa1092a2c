: rates that BREAKPOINT computes and the equations use, and a voltage that is moved and put back
NEURON { SUFFIX ikept  USEION k READ ek WRITE ik  RANGE gbar }
PARAMETER { gbar = 0.003 (S/cm2) }
ASSIGNED { v (mV) ek (mV) ik (mA/cm2) celsius (degC) ninf ntau (ms) speed }
STATE { n }
INITIAL {
    speed = 2.3^((celsius - 20)/10)    : kept from here on
    rates()
    n = ninf
}
BREAKPOINT {
    rates()
    SOLVE s METHOD cnexp
    ik = gbar*n*n*(v - ek)
}
DERIVATIVE s { n' = speed*(ninf - n)/ntau }
PROCEDURE rates() {
    v = v + 10
    if (v < -40) { ntau = 5 }
    if (v >= -40) { ntau = 5*exp(-(v + 40)/60) }
    ninf = 1/(1 + exp(-(v + 20)/9))
    v = v - 10
}
