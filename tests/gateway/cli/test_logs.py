"""``trunkline logs`` against a server that sends what a gateway sends."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
import typer
from typer.testing import CliRunner, Result

from gateway.cli import logs as module
from gateway.cli.logs import LinePrinter, register
from tests.support.threaded_server import served_in_thread

REQUEST = {
    **{
        "id": "r1",
        "path": "/v1/chat completions",
        "status": 200,
        "event": "request",
        "logger": "gateway.request",
    },
    **{"level": "info", "timestamp": "2020-05-01T12:00:00.123456Z", "process": "w1"},
}


def event(name: str, data: Any, id_: str = "w1=a1.1") -> bytes:
    return f"id: {id_}\nevent: {name}\ndata: {json.dumps(data)}\n\n".encode()


class Streams:
    """Answers each request with the next stream; an int is a status that refuses."""

    def __init__(self, *answers: bytes | int) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[dict[str, str], str | None]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                assert parts.path == "/admin/logs"
                outer.asked.append((dict(parse_qsl(parts.query)), self.headers.get("last-event-id")))
                answer = outer.answers.pop(0)
                self.send_response(answer if isinstance(answer, int) else 200)
                self.send_header("content-type", "text/event-stream")
                self.end_headers()
                said = b'{"error": {"message": "This takes the role \'operator\'."}}'
                self.wfile.write(said if isinstance(answer, int) else answer)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def run(self, *arguments: str) -> Result:
        app = typer.Typer()
        app.callback()(lambda: None)
        register(app)
        environment = {"TRUNKLINE_URL": self.url, "TRUNKLINE_KEY": "k", "TERM": "dumb", "COLUMNS": "200"}
        return CliRunner().invoke(app, ["logs", *arguments], env=environment)


@pytest.fixture
def streams() -> Iterator[Streams]:
    made = Streams()
    with served_in_thread(made.server):
        yield made


def test_lines_are_for_people_or_for_programs(streams: Streams) -> None:
    streams.answers = [event("lines", [REQUEST])] * 2
    text = streams.run("-n", "5", "--level", "warning", "--agent", "gpu-1", "--request", "r1").stdout
    assert text.split(" ", 1)[1].split()[1:] == [
        *("info", "w1", "request", "id=r1", 'path="/v1/chat', 'completions"', "status=200")
    ]
    assert streams.asked[0][0] == {
        **{"lines": "5", "follow": "false", "level": "warning", "agent": "gpu-1", "id": "r1"},
    }
    assert [json.loads(line) for line in streams.run("--json").stdout.splitlines()] == [REQUEST]


def test_what_is_missing_is_noted_beside_the_lines(streams: Streams) -> None:
    streams.answers = [
        event("missing", {"w2": "it hangs"})
        + event("missing", {"w2": "it hangs"})
        + event("dropped", {"process": "w1", "lines": 7})
        + event("lines", [])
        + event("missing", {})
    ]
    result = streams.run()
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.splitlines() == [
        "-- the lines of the process w2 are missing: it hangs",
        "-- 7 lines of w1 are missing here: they are kept no more",
        "-- the process w2 answers again",
    ]


def test_a_stream_that_broke_off_goes_on_behind_its_last_line(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pause(seconds: float) -> bool:
        if not streams.answers:
            raise KeyboardInterrupt
        return False

    monkeypatch.setattr(module, "_pause", pause)
    one, two = ({**REQUEST, "event": name} for name in ("one", "two"))
    streams.answers = [event("lines", [one]), 503, event("lines", [two], "w1=a1.2")]
    result = streams.run("-f", "--json")
    assert result.exit_code == 130
    assert [json.loads(line)["event"] for line in result.stdout.splitlines()] == ["one", "two"]
    assert [last_id for _, last_id in streams.asked] == [None, "w1=a1.1", "w1=a1.1"]
    assert result.stderr.splitlines()[:2] == [
        "-- the stream ended; it is asked for again",
        "-- the gateway answers again",
    ]


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (403, "trunkline: This takes the role 'operator'"),
        (404, "is of a version whose log cannot be asked for"),
    ],
)
@pytest.mark.parametrize("follow", [(), ("-f",)])
def test_what_the_gateway_refuses_is_told(
    streams: Streams, status: int, said: str, follow: tuple[str, ...]
) -> None:
    streams.answers = [status]
    result = streams.run(*follow)
    assert result.exit_code == 1
    assert said in result.stderr


@pytest.mark.parametrize(
    ("text", "ago_s"), [("30s", 30), ("10m", 600), ("1.5h", 5400), ("2d", 172800), ("2020-05-01T12:00", None)]
)
def test_a_time_is_so_long_ago_or_a_date(
    streams: Streams, monkeypatch: pytest.MonkeyPatch, text: str, ago_s: float | None
) -> None:
    monkeypatch.setattr("gateway.cli.logs.time.time", lambda: 1_790_000_000.0)
    streams.answers = [b""]
    streams.run("--since", text)
    since = float(streams.asked[0][0]["since"])
    assert since == (1_790_000_000.0 - ago_s if ago_s is not None else pytest.approx(1588334400, abs=86400))


def test_what_is_no_time_is_refused(streams: Streams) -> None:
    result = streams.run("--since", "soon")
    assert result.exit_code == 2
    assert "'soon' is no time" in result.stderr


def test_a_terminal_gets_colours_and_nothing_that_steers_it() -> None:
    line = {
        "level": "error",
        "event": "fai\x1b[2Jled",
        "odd": "a\x07",
        "exception": "Traceback:\n  x\x1b[m\n",
    }
    shown = LinePrinter(as_json=False, colours=True).line(line)
    assert "\x1b[31;1merror" in shown
    plain = LinePrinter(as_json=False, colours=False).line(line)
    assert "\x1b" not in plain
    assert plain.splitlines()[1:] == ["Traceback:", "  x?[m"]
    assert "fai?[2Jled" in plain
    assert "odd=a?" in plain
