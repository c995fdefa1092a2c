"""The integrators of a clamp: RODAS of order four (Hairer and Wanner 1996, Solving ODEs II, IV.7),
and a linearly implicit method of backward differences, of order six.

The circuit is stiff beside the channel and the channel is stiff beside the circuit, both can be so
at once, and they do not commute: splitting them loses its order exactly where series resistance
matters. A linearly implicit method takes them together. RODAS is L-stable and stiffly accurate, and
keeps its order for M y' = f with a singular M, in which a derivative has the factor 0. That
makes the ideal clamp (no resistance), a membrane without capacitance and an amplifier without
lag limits like all others: R C, lag and (1 - prediction) R C stand in M, and nothing is divided by
them. A step is six solutions with one matrix; it has no iteration, so that all candidates of a
block take the same instructions, and its derivatives are those of the six stages.

    (M/(h gamma) - J) k_i = f(t + c_i h, y + sum_j A_ij k_j) + M sum_j C_ij k_j / h + h d_i f_t
    y_new = y + sum_j A_6j k_j + k_6,    error = k_6,    y'_new = (k_6/gamma - sum_j C_6j k_j)/h

The last formula solves the sixth stage for the derivative; M drops out of it, so that it stays
finite where M vanishes.

RODAS takes the first steps behind a jump or a kink. From then on the past states predict the next
one, y_p, by a polynomial, and one solution corrects it: a sixth of the work of a step.

    (g M - J) k = f(t + h, y_p) - M y_p',    y_new = y_p + k,    y'_new = y_p' + g k

The polynomial is one of the logarithm of the time since the jump (`clamp_grid`), in which the steps
are nearly equal: backward differences of order six are stable for equal steps alone, and a
relaxation is smoother as a function of the logarithm, where it has long begun.
"""

from __future__ import annotations

import numpy as np

GAMMA = 0.25
#: A[i] and C[i] are the factors of the stages before stage i.
A: tuple[tuple[float, ...], ...] = (
    (),
    (1.544,),
    (0.9466785280815826, 0.2557011698983284),
    (3.314825187068521, 2.896124015972201, 0.9986419139977817),
    (1.221224509226641, 6.019134481288629, 12.53708332932087, -0.6878860361058950),
    (1.221224509226641, 6.019134481288629, 12.53708332932087, -0.6878860361058950, 1.0),
)
C: tuple[tuple[float, ...], ...] = (
    (),
    (-5.6688,),
    (-2.430093356833875, -0.2063599157091915),
    (-0.1073529058151375, -9.594562251023355, -20.47028614809616),
    (7.496443313967647, -10.24680431464352, -33.99990352819905, 11.70890893206160),
    (
        8.083246795921522,
        -7.981132988064893,
        -31.52159432874371,
        16.31930543123136,
        -6.058818238834054,
    ),
)
D: tuple[float, ...] = (0.25, -0.1043, 0.1035, -0.0362, 0.0, 0.0)
#: The times in a step, as parts of it, at which stages read the command; and the one of each stage.
NODES: tuple[float, ...] = (0.0, 0.386, 0.21, 0.63, 1.0)
NODE_OF_STAGE: tuple[int, ...] = (0, 1, 2, 3, 4, 4)
#: Order of the multistep method.
ORDER = 6


def multistep(ages: np.ndarray) -> tuple[float, np.ndarray, np.ndarray, float]:
    """Return the factors of a step of the multistep method.

    Arguments:
        ages: (ORDER + 1,) ms from the last states, the newest first, to the end of the step.

    Returns:
        g, 1/ms; the factors (ORDER,) of the differences of the older states from the newest in the
        prediction, and in the derivative of it, 1/ms; and the error of the step relative to the
        correction.
    """
    inverse = 1 / ages
    ratios = ages[None, :] / (ages[None, :] - ages[:, None] + np.diag(np.full(len(ages), np.inf)))
    np.fill_diagonal(ratios, 1.0)
    ahead = ratios.prod(axis=1)
    slope = ahead * (inverse.sum() - inverse)
    g = float(inverse[:-1].sum())
    return g, ahead[1:], slope[1:], float(inverse[-1] / g)
