: arrays, loops, arguments that are changed, conditions of several parts, v changed and restored
DEFINE N 2
NEURON { SUFFIX iloops  USEION h READ eh WRITE ih VALENCE 1  RANGE ghbar }
PARAMETER { ghbar = 5e-4 (S/cm2) eh = -30 (mV) slow = 1 }
ASSIGNED { v (mV) ih (mA/cm2) inf[N] tau[N] }
STATE { fast[N] }
INITIAL { rates(v) FROM i = 0 TO N - 1 { fast[i] = inf[i] } }
BREAKPOINT {
    SOLVE s METHOD euler
    ih = ghbar*(0.8*fast[0] + 0.2*fast[1])*(v - eh)
}
DERIVATIVE s {
    rates(v)
    fast[0]' = (inf[0] - fast[0])/tau[0]
    fast[1]' = (inf[1] - fast[1])/tau[1]
}
PROCEDURE rates(x) {
    FROM i = 0 TO N - 1 {
        inf[i] = half(x, i)
        tau[i] = time(x, i)
    }
}
FUNCTION half(x, i) {
    x = x + 80
    if (i == 0) { half = 1/(1 + exp(x/8)) } else if (i == 1) { half = 1/(1 + exp((x + 2)/6)) } else { half = 0 }
}
FUNCTION time(x, i) {
    if ((x < -95 || x > 20) && slow) {
        time = 30*(1 + i)
    } else if (!(x >= -60)) {
        time = 30*(1 + i) + 5*(x > -80)
    } else {
        time = pow(2, 1 + i)*(8 + fabs(x)/10) + sinh(x/100)
    }
}
