: arrays, loops, arguments that are changed, conditions of several parts, v changed and restored
DEFINE N 2
NEURON { SUFFIX iloops  USEION h READ eh WRITE ih VALENCE 1  RANGE ghbar }
PARAMETER { ghbar = 5e-4 (S/cm2) eh = -30 (mV) slow = 1 }
ASSIGNED { v (mV) ih (mA/cm2) inf[N] tau[N] }
STATE { quick late }
INITIAL { rates(v) quick = inf[0] late = inf[1] }
BREAKPOINT {
    SOLVE s METHOD euler
    ih = ghbar*(0.8*quick + 0.2*late)*(v - eh)
}
DERIVATIVE s {
    rates(v)
    quick' = (inf[0] - quick)/tau[0]
    late' = (inf[1] - late)/tau[1]
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
