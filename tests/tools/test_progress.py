"""What a long command does and how far it is: on a terminal, through a pipe, and where nobody listens."""

from __future__ import annotations

import io
import threading

import pytest

from strata.tools.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_terminals_line_is_written_over(clock: Clock) -> None:
    terminal = Terminal()
    progress = Progress(terminal, clock)
    progress("checking: 10")
    progress("checking: 11")  # a moment later: not shown
    progress("timing")
    progress.clear()
    progress.clear()
    assert terminal.getvalue() == "\rchecking: 10\rtiming      \r      \r"


def test_a_terminal_says_at_once_what_is_done_and_each_second_for_how_long(clock: Clock) -> None:
    terminal = Terminal()
    progress = Progress(terminal, clock)
    progress("filling the pools")
    assert terminal.getvalue() == "\rfilling the pools"
    clock.now += 0.5
    progress.tick()
    assert terminal.getvalue() == "\rfilling the pools"
    clock.now += 0.6
    progress.tick()
    assert terminal.getvalue().endswith("\rfilling the pools (1 s)")


def test_a_text_that_came_too_soon_is_shown_a_second_later(clock: Clock) -> None:
    terminal = Terminal()
    progress = Progress(terminal, clock)
    progress("checking: 1")
    progress("checking: 2")
    clock.now += 1.0
    progress.tick()
    assert terminal.getvalue().endswith("\rchecking: 2 (1 s)")


def test_a_pipe_gets_a_line_every_ten_seconds(clock: Clock) -> None:
    pipe = io.StringIO()
    progress = Progress(pipe, clock)
    for second in range(36):
        clock.now = 100.0 + second
        progress(f"checking: {second}")
        progress.tick()
    assert pipe.getvalue() == "10 s: checking: 10\n20 s: checking: 20\n30 s: checking: 30\n"
    for second in range(36, 55):  # one long step, of which nothing is said
        clock.now = 100.0 + second
        progress.tick()
    assert pipe.getvalue().splitlines()[3:] == ["40 s: checking: 35", "50 s: checking: 35"]


def test_a_quick_command_says_nothing_to_a_pipe(clock: Clock) -> None:
    pipe = io.StringIO()
    progress = Progress(pipe, clock)
    progress("checking")
    clock.now += 9.9
    progress.tick()
    progress.clear()
    clock.now += 10
    progress.tick()
    assert pipe.getvalue() == ""


def test_the_thread_ends_with_the_command() -> None:
    progress = Progress(io.StringIO())
    progress("checking")
    (thread,) = [t for t in threading.enumerate() if t.name == "progress"]
    assert thread.daemon
    progress.clear()
    thread.join(60)
    assert not thread.is_alive()


class Full(Terminal):
    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("stream", [None, Full()])
def test_where_nobody_listens(stream: io.StringIO | None) -> None:
    progress = Progress(stream)
    progress("checking")
    progress("timing")
    progress.clear()
