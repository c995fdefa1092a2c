"""``python -m channelfit``: the command line."""

import atexit
import gc

from channelfit.front import interrupts


def program() -> None:
    """Run the command that this process was started with."""
    interrupts.begin()
    from channelfit.front.main import main  # takes long enough to be interrupted

    # what ends with the process is not searched for cycles: for SymPy alone that takes 0.1 s
    atexit.register(gc.freeze)
    main(prog_name="channelfit")


if __name__ == "__main__":
    program()
