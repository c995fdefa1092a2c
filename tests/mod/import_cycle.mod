: a scheme with a cycle, two open states, a ligand that is constant, and a steady start
NEURON {
    SUFFIX icycle
    USEION k READ ek WRITE ik
    USEION ca READ cai
    RANGE gkbar, weight
}
UNITS { (molar) = (1/liter) (mM) = (millimolar) FARADAY = (faraday) (kilocoulombs) R = (k-mole) (joule/degC) }
PARAMETER { gkbar = 0.01 (S/cm2) k1 = 0.7 (/ms) z = 0.9 on = 800 (/mM/ms) cai = 0.002 (mM) celsius = 24 (degC) }
ASSIGNED { v (mV) ek (mV) ik (mA/cm2) a (/ms) b (/ms) }
STATE { c1 c2 o1 o2 }
INITIAL { SOLVE kin STEADYSTATE sparse }
BREAKPOINT {
    SOLVE kin METHOD sparse
    ik = gkbar*(o1 + 0.4*o2)*(v - ek)
}
KINETIC kin {
    rates(v)
    ~ c1 <-> c2 (a, b)
    ~ c2 + cai <-> o2 (on, 0.6)
    ~ c1 + cai <-> o1 (on/3, 0.2)
    ~ o1 <-> o2 (2*a, b)
    ~ c1 <-> c2 (0.01, 0.02)
    CONSERVE c1 + c2 + o1 + o2 = 1
}
PROCEDURE rates(x) {
    a = k1*exp(z*0.5*FARADAY*x/(R*(celsius + 273.15)))
    b = k1*exp(-z*0.5*FARADAY*x/(R*(celsius + 273.15)))
}
