"""The integrator of a clamp: RODAS of order four (Hairer and Wanner 1996, Solving ODEs II, IV.7).

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
"""

from __future__ import annotations

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
