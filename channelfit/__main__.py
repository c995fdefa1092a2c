"""``python -m channelfit``: the command line."""

from channelfit.front import interrupts


def program() -> None:
    """Run the command that this process was started with."""
    interrupts.begin()
    from channelfit.front.main import main  # takes long enough to be interrupted

    main(prog_name="channelfit")


if __name__ == "__main__":
    program()
