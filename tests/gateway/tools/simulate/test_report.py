"""What a long simulation tells meanwhile."""

import io
import itertools

from gateway.tools.simulate.mix import Mix
from gateway.tools.simulate.report import ReportedTraffic

MIX = Mix("rate=10,requests=1500;a:input=1,output=1", 0)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_one_line_again_and_again() -> None:
    stream, clock = Terminal(), itertools.count(0.0, 1.0)
    watched = ReportedTraffic(MIX, "cost", stream, lambda: next(clock))
    assert list(watched.jobs()) == list(MIX.jobs())
    lines = stream.getvalue().split("\r\x1b[K")
    assert lines[1].startswith("cost: 256 requests came by ")
    assert lines[1].endswith("256 a second")
    assert len(lines) == 7
    assert lines[-1] == ""


def test_a_file_gets_a_line_now_and_then() -> None:
    stream, clock = io.StringIO(), itertools.count(0.0, 2.0)
    list(ReportedTraffic(MIX, "cost", stream, lambda: next(clock)).jobs())
    assert stream.getvalue().count("\n") == 1
    assert "cost: 768 requests" in stream.getvalue()


def test_a_stream_that_is_gone_stops_nothing() -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    clock = itertools.count(0.0, 100.0)
    assert len(list(ReportedTraffic(MIX, "cost", Broken(), lambda: next(clock)).jobs())) == 1500
