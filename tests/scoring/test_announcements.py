"""Long work announces itself to listeners, and appears on a screen that is up."""

import pytest

from channelfit.front.progress import compilations_shown
from channelfit.results.report.terminal import SearchScreen
from channelfit.scoring.machine.announcements import announced, listening


def test_who_listens_is_told_of_the_beginning_and_of_every_end():
    """And who no longer listens nothing but the end of what began."""
    heard, other = Heard(), Heard()
    with listening(other):
        with listening(heard), announced("outer"):
            with pytest.raises(ZeroDivisionError), announced("failing"):
                raise ZeroDivisionError
            work = announced("work")
            work.__enter__()
        with announced("later"):
            pass
        work.__exit__(None, None, None)
    assert heard == ["outer", "failing", "end", "work", "end", "end"]
    assert other == ["outer", "failing", "end", "work", "end", "later", "end", "end"]


class Heard(list):
    """The announcements that a listener received."""

    def begins(self, what: str) -> None:
        self.append(what)

    def ends(self) -> None:
        self.append("end")


def test_an_interrupt_that_comes_out_of_a_compiler_as_an_error_is_an_interrupt():
    import signal

    screen = SearchScreen("a model", quiet=True)

    def compiler() -> None:
        with announced("compiling"):
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                raise RuntimeError("no module was made") from None

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    try:
        with pytest.raises(KeyboardInterrupt), compilations_shown(screen):
            compiler()
    finally:
        signal.signal(signal.SIGINT, before)
    with pytest.raises(RuntimeError), compilations_shown(screen):
        raise RuntimeError("of its own")
