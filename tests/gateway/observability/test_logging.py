import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import orjson
import pytest
import structlog
from sqlalchemy import QueuePool, create_engine

from gateway.cli_support.console import note
from gateway.observability.logging import configure


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def test_lines_are_json_off_a_terminal(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    configure("info", "json")
    structlog.get_logger().info("request", status=200, key="größe")
    line = orjson.loads(capfdbinary.readouterr().err)
    assert (line["event"], line["status"], line["level"], line["key"]) == ("request", 200, "info", "größe")
    assert line["timestamp"].endswith("Z")


@pytest.mark.parametrize("style", ["json", "text"])
def test_a_full_disk_under_the_log_stops_nobody(style: str, monkeypatch: pytest.MonkeyPatch) -> None:
    full = Path("/dev/full").open("w")  # noqa: SIM115
    monkeypatch.setattr("sys.stderr", full)
    configure("info", style)
    for _ in range(3):
        structlog.get_logger().info("request", text="x" * 9000)
    note("a note")
    with contextlib.suppress(OSError):
        full.close()


def test_the_pool_of_a_database_that_went_away_writes_no_traceback(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    configure("info", "json")
    pool = create_engine("sqlite://", poolclass=QueuePool).pool
    try:
        raise OSError("the connection is closed")
    except OSError:
        pool.logger.error("Error closing cursor", exc_info=True)
    assert capfdbinary.readouterr().err == b""


def test_lines_below_the_level_are_not_written(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    configure("warning", "json")
    structlog.get_logger().info("quiet")
    assert capfdbinary.readouterr().err == b""


def test_a_traceback_goes_along_without_the_values_of_variables(
    capfd: pytest.CaptureFixture[str],
) -> None:
    for style in ("json", "text"):
        configure("info", style)
        prompt = "".join(["swor", "dfish"])
        try:
            raise ValueError(len(prompt))
        except ValueError:
            structlog.get_logger().exception("request_failed")
        written = capfd.readouterr().err
        assert "ValueError" in written
        assert "swordfish" not in written


def test_what_libraries_warn_of_goes_the_same_way(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    configure("info", "json")
    logging.getLogger("some.package").warning("careful with %s", "this")
    line = orjson.loads(capfdbinary.readouterr().err)
    assert (line["event"], line["logger"], line["level"]) == ("careful with this", "some.package", "warning")


def test_parsers_that_quote_requests_stay_silent(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    configure("debug", "json")
    logging.getLogger("python_multipart.multipart").warning("Found invalid character 'p'")
    logging.getLogger("uvicorn.error").error("ASGI callable returned without completing response.")
    logging.getLogger("uvicorn.error").error("something real")
    lines = capfdbinary.readouterr().err.splitlines()
    assert [orjson.loads(line)["event"] for line in lines] == ["something real"]


@pytest.mark.parametrize("style", ["json", "text"])
@pytest.mark.parametrize(
    "secret", ["sk-tl-" + "a1B2" * 8, "tlj_" + "abc2" * 19, "eyJhbGciOiJFUzI1NiJ9.eyJzdWIi.c2ln"]
)
def test_a_secret_is_masked_wherever_it_stands(
    style: str, secret: str, capfd: pytest.CaptureFixture[str]
) -> None:
    configure("info", style)
    structlog.get_logger().info("request", path=f"/v1/models/{secret}", id=secret, nested={"x": [secret]})
    written = capfd.readouterr().err
    assert secret[4:] not in written
    assert written.count("***") == 3


def test_a_note_and_the_end_of_its_line_are_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[str] = []
    monkeypatch.setattr("sys.stderr", SimpleNamespace(write=writes.append))
    note("trunkline gateway\x1b[2J 0.1.0")
    assert writes == ["trunkline gateway?[2J 0.1.0\n"]
