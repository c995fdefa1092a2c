: derivatives by alpha and beta in several orders, a sum of gates, a gate that is closed, a leak
NEURON {
    SUFFIX irates
    USEION k READ ek WRITE ik
    NONSPECIFIC_CURRENT il, ix
    RANGE gk, gl, el, gx, share
}
PARAMETER { gk = 20 (mS/cm2) gl = 1e-4 (mho/cm2) el = -54 (mV) gx = 3 (pS/um2) share = 0.3 }
ASSIGNED { v (mV) ek (mV) ik (mA/cm2) il (mA/cm2) ix (mA/cm2) }
STATE { n p q r }
INITIAL {
    n = an(v)/(an(v) + bn(v))
    p = an(v)/(an(v) + 0.2)
    q = bn(v)/0.5/(bn(v)/0.5 + 1)
    r = 1/(1 + exp((v + 50)/8))
}
BREAKPOINT {
    LOCAL g
    SOLVE s METHOD derivimplicit
    g = (0.001)*gk*n^4*(share*p + (1 - share)*q)
    ik = g*(v - ek)
    il = gl*(v - el)
    ix = (1e-4)*gx*(1 - r)*(1 - r)*(v + 20)
}
DERIVATIVE s {
    n' = an(v)*(1 - n) - bn(v)*n
    p' = -0.2*p + (1 - p)*an(v)
    q' = bn(v)/0.5 - q*(bn(v)/0.5 + 1)
    r' = (1/(1 + exp((v + 50)/8)) - r)*0.25/(1 + 0.1*exp(-v/40))
}
FUNCTION an(x) { an = 0.02*(x + 55)/(1 - exp(-(x + 55)/10)) }
FUNCTION bn(x) { bn = 0.25*exp(-(x + 65)/80) }
