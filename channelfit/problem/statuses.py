"""The status of a score: whether a candidate failed and why, for all backends and languages."""

OK, NOT_FINITE, OCCUPANCY_LOST, OUTSIDE_BOUNDS, NEGATIVE_RATE, OUT_OF_CLAMP = range(6)
#: The names of failures.
FAILURES = {
    NOT_FINITE: "not finite",
    OCCUPANCY_LOST: "occupancy lost",
    OUTSIDE_BOUNDS: "outside bounds",
    NEGATIVE_RATE: "negative rate",
    OUT_OF_CLAMP: "out of clamp",
}
N_STATUSES = 1 + len(FAILURES)


def cuda_names() -> str:
    """Return the statuses as an enumeration for generated CUDA."""
    names = {OK: "OK"} | {c: name.upper().replace(" ", "_") for c, name in FAILURES.items()}
    return f"enum {{ {', '.join(f'{name} = {code}' for code, name in names.items())} }};"
