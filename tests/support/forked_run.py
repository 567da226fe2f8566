"""A plugin of pytest: with ``-p tests.support.forked_run --forks N`` tests run in N forks of this process.

The processes of pytest-xdist each import and collect every test anew, which takes seconds of CPU time. These
are forked once all is collected. As with ``--dist loadfile`` the tests of a file run in one process, in their
order, and a process that has nothing left takes another file: half of the processes take them from the
beginning, half from the end, so that tests which wait may run beside tests which compute. A process that dies
fails the test that it ran, and a new one goes on behind that test. Each has temporary directories of its own,
and its name in ``PYTEST_XDIST_WORKER``. What is imported at collection may start no thread that a fork would
need.
"""

import gc
import os
import warnings
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.forks import share_forks

_OPTION = "forks"

gc.disable()
"""Until all is imported and collected: that makes objects that stay, and no garbage."""


def pytest_addoption(parser: pytest.Parser) -> None:
    help_text = "run the tests in so many processes, forked once they are collected; 0: in this one"
    parser.addoption("--forks", dest=_OPTION, type=int, default=0, metavar="N", help=help_text)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """True once all tests ran; None where this plugin does not run them."""
    gc.freeze()  # nor need anything be looked for among those
    gc.enable()
    number = session.config.getoption(_OPTION)
    if not number or session.config.option.collectonly or session.testsfailed:
        return None
    reporter = session.config.pluginmanager.getplugin("terminalreporter")
    if reporter is not None:
        reporter.showfspath = False  # results of several files come by turns
    ForkedRun(session, number).run()
    return True


@dataclass(slots=True)
class _Process:
    name: str
    pid: int
    connection: "Connection[Any, Any]"
    pending: deque[int] = field(default_factory=deque)
    """Tests that it was given and did not begin."""
    running: int | None = None
    """The last one that it began."""
    done: bool = False
    """It was told that there are no more."""

    @property
    def from_end(self) -> bool:
        """It takes files from the end of all."""
        return int(self.name.removeprefix("gw")) % 2 == 1


class ForkedRun:
    """Gives the files of a session to the processes that it forks, and hears what came of their tests."""

    def __init__(self, session: pytest.Session, number: int) -> None:
        self._session = session
        self._config = session.config
        self._number = number
        self._files = deque(_by_file(session.items))
        self._processes: dict[Connection[Any, Any], _Process] = {}
        self._started = 0

    def run(self) -> None:
        """Returns when all tests ran; in a fork, when it has nothing left to run."""
        self._config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        share_forks()
        try:
            for _ in range(min(self._number, len(self._files))):
                if self._fork():
                    return
            while self._processes:
                for ready in wait(list(self._processes)):
                    if self._hear(self._processes[ready]):  # type: ignore[index]
                        return
        finally:
            while self._processes:
                self._end(next(iter(self._processes.values())))
        self._raise_if_stopped()

    def _fork(self) -> bool:
        """Start a process. In that process: run tests and return True."""
        name = f"gw{self._started}"
        self._started += 1
        ours, theirs = Pipe()
        pid = os.fork()
        if pid == 0:
            ours.close()
            for connection in self._processes:
                connection.close()
            self._processes.clear()
            _ForkedTests(self._session, name, theirs).run()
            return True
        theirs.close()
        self._processes[ours] = _Process(name, pid, ours)
        return False

    def _hear(self, process: _Process) -> bool:
        """Take one message of a process. True in a new fork, which did what the process left undone."""
        try:
            kind, content = process.connection.recv()
        except (EOFError, ConnectionResetError):
            return self._ended(process)
        if kind == "next":
            process.done = not self._files or self._stopping
            given = [] if process.done else self.take(from_end=process.from_end)
            process.pending.extend(given)
            process.connection.send(given)
        elif kind == "began":
            process.running = process.pending.popleft()
        elif kind == "report":
            self._report(process, content)
        elif kind == "warning":
            text, category, at, facts = content
            warning = warnings.WarningMessage(text, category, *at)
            self._config.hook.pytest_warning_recorded.call_historic(
                kwargs={"warning_message": warning, **facts}
            )
        return False

    def take(self, *, from_end: bool) -> list[int]:
        """The numbers of the tests of the next file. There is one; long ones are the first for all."""
        long = _is_long(self._session.items[self._files[0][0]])
        return self._files.pop() if from_end and not long else self._files.popleft()

    def _report(self, process: _Process, data: dict[str, Any]) -> None:
        report = self._config.hook.pytest_report_from_serializable(config=self._config, data=data)
        # Where it ran, as xdist says it.
        place = {"gateway": SimpleNamespace(id=process.name), "_workerinfocache": f"[{process.name}]"}
        report.node = SimpleNamespace(**place)
        self._config.hook.pytest_runtest_logreport(report=report)

    def _ended(self, process: _Process) -> bool:
        """A process closed its connection: it is done, or it died. True as of :meth:`_hear`."""
        code = self._end(process)
        if (process.done or self._stopping) and code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            return False
        if process.running is None:
            raise RuntimeError(f"{process.name} ended with exit code {code} before its first test")
        item = self._session.items[process.running]
        report = pytest.TestReport(
            item.nodeid,
            item.location,
            {},
            "failed",
            f"process {process.name} ended with exit code {code} in this test or behind it",
            "call",
        )
        self._config.hook.pytest_runtest_logreport(report=report)
        if process.pending:
            self._files.appendleft(list(process.pending))
        return bool(self._files) and self._fork()

    def _end(self, process: _Process) -> int:
        """Its exit code, negative for a signal, once it has ended."""
        del self._processes[process.connection]
        process.connection.close()
        return os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1])

    @property
    def _stopping(self) -> bool:
        return bool(self._session.shouldfail or self._session.shouldstop)

    def _raise_if_stopped(self) -> None:
        if self._session.shouldfail:
            raise self._session.Failed(self._session.shouldfail)
        if self._session.shouldstop:
            raise self._session.Interrupted(self._session.shouldstop)


class _ForkedTests:
    """In a fork: runs what it is given, and tells what came of it. Plugins take it for a process of xdist."""

    def __init__(self, session: pytest.Session, name: str, connection: "Connection[Any, Any]") -> None:
        self._session = session
        self._config = session.config
        self._connection = connection
        os.environ["PYTEST_XDIST_WORKER"] = name
        self._config.workerinput = {"workerid": name}  # type: ignore[attr-defined]
        directories = self._config._tmp_path_factory  # type: ignore[attr-defined]
        directories._given_basetemp = directories.getbasetemp() / f"popen-{name}"
        directories._basetemp = None
        plugins = self._config.pluginmanager
        plugins.unregister(name="terminalreporter")
        capture = plugins.getplugin("capturemanager")
        if capture is not None:  # its files are those of all forks
            capture.stop_global_capturing()
            capture.start_global_capturing()
            capture.suspend_global_capture()
        self._timed = self._config.option.durations is not None
        self._begun = False
        plugins.register(self, "forked-tests")  # hears of earlier warnings once more, which are known
        self._begun = True

    def run(self) -> None:
        """Until there is nothing left."""
        indices = self._next()
        while indices and not (self._session.shouldfail or self._session.shouldstop):
            item = self._session.items[indices.popleft()]
            indices = indices or self._next()  # what the test behind it needs stays there
            following = self._session.items[indices[0]] if indices else None
            self._connection.send(("began", None))
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.passed and report.when != "call" and not report.sections and not self._timed:
            return  # nobody looks at it
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._connection.send(("report", data))

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: Any
    ) -> None:
        if not self._begun:
            return
        facts = {"when": when, "nodeid": nodeid, "location": location}
        at = (warning_message.filename, warning_message.lineno)
        self._connection.send(
            ("warning", (str(warning_message.message), warning_message.category, at, facts))
        )

    def _next(self) -> deque[int]:
        self._connection.send(("next", None))
        return deque(self._connection.recv())


def _by_file(items: Sequence[pytest.Item]) -> list[list[int]]:
    """The numbers of the tests of each file. Those of long files come first: begun at the end, one of them
    would leave the other processes without work."""
    files = [
        [number for number, _ in group]
        for _, group in groupby(enumerate(items), lambda numbered: numbered[1].path)
    ]
    files.sort(key=lambda numbers: not _is_long(items[numbers[0]]))
    return files


def _is_long(item: pytest.Item) -> bool:
    return item.get_closest_marker("long") is not None
