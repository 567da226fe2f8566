"""A supervisor whose workers are processes that are no gateways."""

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from gateway.runtime.workers.supervisor import Supervisor
from gateway.runtime.workers.worker_process import WorkerProcess
from tests.gateway.runtime.workers.played_worker import played, role


class Played:
    """Runs a supervisor on this thread, and on another what happens meanwhile."""

    def __init__(
        self, directory: Path, told: str, count: int = 2, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.directory = directory
        self.told = told
        self.workers: list[WorkerProcess] = []
        self.left: list[int] = []
        names = [str(index) for index in range(count)]
        self.listeners = [socket.socket() for _ in names]
        self.supervisor = Supervisor(
            self.start,
            names,
            0.0,
            clock,
            left=self.left.append,
            listening=lambda index: [self.listeners[index].fileno()],
        )

    def start(self, index: int, names: list[str], replaces: bool) -> WorkerProcess:
        own = role(str(self.directory), os.getpid(), index, names, replaces=replaces)
        worker = WorkerProcess(own, [], played(self.told))
        self.workers.append(worker)
        return worker

    def said(self, index: object) -> list[str]:
        path = self.directory / str(index)
        return path.read_text().split() if path.exists() else []

    def covers(self, index: int) -> list[str]:
        """What it was told about others that are away, each with the number of sockets that came along."""
        path = self.directory / f"{index}.covers"
        return path.read_text().splitlines() if path.exists() else []

    def serving(self) -> bool:
        return self.said(0) == self.said(1) == ["started"] and all(each.is_ready for each in self.workers)

    def hurry(self) -> None:
        """The test has failed: nobody is to wait for the workers' ends."""

    def run_alone(self) -> int:
        with contextlib.ExitStack() as held:
            for each in self.listeners:
                held.enter_context(each)
            return self.supervisor.run()

    def run(self, meanwhile: Callable[[], None]) -> int:
        failed: list[BaseException] = []
        over = threading.Event()

        def act() -> None:
            try:
                meanwhile()
            except BaseException as error:
                failed.append(error)
                os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
            while failed and not over.wait(0.1):
                self.hurry()

        thread = threading.Thread(target=act)
        thread.start()
        try:
            return self.run_alone()
        finally:
            over.set()
            thread.join()
            assert not failed, failed
