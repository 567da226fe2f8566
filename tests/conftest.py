"""Fixtures every test may use."""

import gc
import logging
import os
from collections.abc import AsyncIterator, Generator, Iterator
from typing import TYPE_CHECKING

import pytest
import structlog
from hypothesis import HealthCheck, settings

from tests.support.clock import ManualClock
from tests.support.leaks import Snapshot, assert_nothing_leaked

if TYPE_CHECKING:
    from gateway.domain.store_address import StoreAddress
    from tests.support.postgres import PostgresServer

settings.register_profile("default", deadline=None, max_examples=40, derandomize=True)
settings.register_profile(
    "long", deadline=None, max_examples=2000, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


os.environ.setdefault("TRUNKLINE_AGENT_LOG_FORMAT", "text")  # agents' logs are read as text, in files too
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    # Where other tests have the processors too, threads of one computation wait for each other in loops: some
    # take twice the time of all processors.
    os.environ.setdefault(_name, "1")
# gRPC's handlers of forks may abort a fork that is about to become another program (2 of 150).
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")


# Where a test has nothing else, exceptions are logged as programs log them: in colours and with the values of
# variables each would take half a second.
_default_logger = structlog.get_config()["processors"][-1]
if isinstance(_default_logger, structlog.dev.ConsoleRenderer):
    _default_logger.exception_formatter = structlog.dev.plain_traceback


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays: it is not looked at for garbage, neither meanwhile nor later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _run_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What all processes of one run of tests have together lies there."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRUNKLINE_TEST_RUN", str(shared / "run"))
        yield


@pytest.fixture(scope="session", autouse=True)
def _environment() -> Iterator[None]:
    """Fails the last test where one before it left variables behind: processes with them are not forked."""
    from tests.support.forks import same_imports

    before = dict(os.environ)
    yield
    assert same_imports(before, os.environ), {*before.items()} ^ {*os.environ.items()}


class _KeptRecords(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def log_records() -> Iterator[list[logging.LogRecord]]:
    """What is logged by ``logging`` meanwhile. pytest's own plugin for it is off: it goes through all loggers
    there are six times for each test, a millisecond."""
    kept = _KeptRecords()
    named = [each for each in logging.root.manager.loggerDict.values() if isinstance(each, logging.Logger)]
    loggers = [logging.root, *(each for each in named if not each.propagate)]
    for logger in loggers:
        logger.addHandler(kept)
    yield kept.records
    for logger in loggers:
        logger.removeHandler(kept)


@pytest.fixture
def clock() -> ManualClock:
    """Time that moves only when the test says so."""
    return ManualClock()


@pytest.fixture
async def no_leaks() -> AsyncIterator[None]:
    """Fails the test if it leaves file descriptors or tasks behind. Name it first among the fixtures."""
    before = Snapshot.take()
    yield
    await assert_nothing_leaked(before)


@pytest.fixture(scope="session")
def postgres_server() -> "Iterator[PostgresServer]":
    """A PostgreSQL server; without one the test is skipped."""
    from tests.support.postgres import any_postgres

    with any_postgres() as server:
        yield server


@pytest.fixture
def postgres_address(postgres_server: "PostgresServer") -> "Iterator[StoreAddress]":
    """An empty schema on a server, which is dropped afterwards."""
    from gateway.domain.store_address import StoreAddress

    with postgres_server.schema() as url:
        yield StoreAddress(url)
