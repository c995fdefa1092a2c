"""``python -m channelfit``: the command line."""

from channelfit.front.main import main

if __name__ == "__main__":
    main(prog_name="channelfit")
