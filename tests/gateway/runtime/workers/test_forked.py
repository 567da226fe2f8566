"""A process that is forked. In each test a process of its own is: this one has threads."""

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")

_BEGIN = """
import atexit, json, os, signal, sys, threading, time
from gateway.runtime.workers.forked import ForkedProcess, can_fork

def over(process):
    while process.poll() is None:
        time.sleep(0.01)
    return process.returncode

def tell(**facts):
    os.write(1, json.dumps(facts).encode() + b"\\n")
"""


def run(program: str, *arguments: str, pass_fds: tuple[int, ...] = ()) -> tuple[list[dict[str, Any]], str]:
    """What the program tells, and its standard error."""
    done = subprocess.run(
        [sys.executable, "-c", _BEGIN + textwrap.dedent(program), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        pass_fds=pass_fds,
    )
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def test_it_ends_with_what_is_returned_exited_with_or_raised() -> None:
    told, said = run(
        """
        def stopped():
            sys.exit("why it stopped")
        def failed():
            raise ValueError("what is wrong")
        def killed():
            os.kill(os.getpid(), signal.SIGKILL)
        runs = [lambda: 0, lambda: 7, lambda: sys.exit(3), sys.exit, stopped, failed, killed]
        tell(codes=[over(ForkedProcess(run, [])) for run in runs])
        """
    )
    assert told == [{"codes": [0, 7, 3, 0, 1, 1, -signal.SIGKILL]}]
    assert said.startswith("why it stopped\nTraceback")
    assert said.endswith("ValueError: what is wrong\n")


def test_it_leads_a_group_and_has_the_files_it_is_given_and_an_input_that_is_at_its_end() -> None:
    with socket.socket() as given, socket.socket() as kept:
        told, _ = run(
            """
            given, kept = map(int, sys.argv[1:])
            def look():
                files = [os.readlink(f"/proc/self/fd/{number}") for number in (0, given)]
                listed = os.listdir("/proc/self/fd")  # with what it is listed by
                held = sorted(int(number) for number in listed if os.path.exists(f"/proc/self/fd/{number}"))
                tell(files=files, held=held, inheritable=os.get_inheritable(given), input=len(os.read(0, 9)),
                     leads=os.getpgrp() == os.getpid())
                return 0
            tell(code=over(ForkedProcess(look, [given])), kept=os.readlink(f"/proc/self/fd/{kept}"))
            """,
            str(given.fileno()),
            str(kept.fileno()),
            pass_fds=(given.fileno(), kept.fileno()),
        )
        seen, parent = told
        assert seen["held"] == [0, 1, 2, given.fileno()]
        assert seen["files"] == ["/dev/null", os.readlink(f"/proc/self/fd/{given.fileno()}")]
        assert (seen["inheritable"], seen["input"], seen["leads"]) == (False, 0, True)
        assert parent == {"code": 0, "kept": os.readlink(f"/proc/self/fd/{kept.fileno()}")}


def test_signals_do_what_they_do_by_default_and_reach_this_process_no_more() -> None:
    told, _ = run(
        """
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        received = []  # shells have what they start in the background ignore SIGINT:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in (signal.SIGTERM, signal.SIGUSR2, signal.SIGCHLD):
            signal.signal(number, lambda number, frame: received.append(number))
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        read, write = os.pipe()
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write)
        process = ForkedProcess(lambda: time.sleep(60) or 0, [])
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        code = over(process)
        process.send_signal(signal.SIGTERM)  # which reaches nobody
        os.kill(os.getpid(), signal.SIGUSR2)
        signal.set_wakeup_fd(-1)
        os.close(write)
        woken, received_then = list(os.read(read, 99)), list(received)
        interrupted = ForkedProcess(lambda: time.sleep(60) or 0, [])
        interrupted.send_signal(signal.SIGINT)
        tell(code=code, received=received_then, woken=woken, interrupted=over(interrupted),
             same_mask=signal.pthread_sigmask(signal.SIG_BLOCK, []) == before)
        """
    )
    (facts,) = told
    assert facts["code"] == -signal.SIGTERM
    assert facts["received"] == facts["woken"] == [signal.SIGCHLD, signal.SIGUSR2]
    assert facts["interrupted"] == 1  # KeyboardInterrupt, as everywhere in Python
    assert facts["same_mask"]


def test_at_its_end_it_waits_for_threads_and_does_what_was_registered_in_it_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(
        """
        out = open(sys.argv[1], "a")
        atexit.register(out.write, "parent ")
        def end():
            mine = open(sys.argv[1], "a", buffering=1)
            atexit.register(mine.write, "registered ")
            threading.Thread(target=lambda: (time.sleep(0.2), mine.write("thread "))).start()
            mine.write("returned ")
            return 0
        sys.stdout = sys.stderr
        over(ForkedProcess(end, []))
        """,
        str(out),
    )
    assert out.read_text() == "returned thread registered parent "


def test_what_waits_to_be_written_is_written_once() -> None:
    _, said = run(
        """
        sys.stdout = sys.stderr = open(2, "w", buffering=1000, closefd=False)
        sys.stderr.write("before ")
        over(ForkedProcess(lambda: sys.stderr.write("in the fork ") and 0, []))
        sys.stderr.write("after")
        """
    )
    assert said == "before in the fork after"


def test_a_process_with_several_threads_is_not_to_be_forked() -> None:
    told, _ = run(
        """
        ends = threading.Event()
        before = can_fork()
        thread = threading.Thread(target=ends.wait)
        thread.start()
        meanwhile = can_fork()
        ends.set()
        thread.join()
        while len(os.listdir("/proc/self/task")) > 1:
            time.sleep(0.01)  # the kernel takes a moment
        tell(can_fork=[before, meanwhile, can_fork()])
        """
    )
    assert told == [{"can_fork": [True, False, True]}]


def test_a_process_may_have_no_standard_files() -> None:
    told, _ = run(
        """
        kept = os.dup(1)
        sys.stdout = sys.stderr = None
        for number in (0, 2):
            os.close(number)
        code = over(ForkedProcess(lambda: len(os.read(0, 9)), []))
        os.write(kept, json.dumps({"code": code}).encode())
        """
    )
    assert told == [{"code": 0}]


def test_one_that_somebody_else_has_waited_for_has_ended() -> None:
    told, _ = run(
        """
        process = ForkedProcess(lambda: 0, [])
        os.waitpid(process.pid, 0)
        tell(code=process.poll(), again=process.poll())
        """
    )
    assert told == [{"code": 1, "again": 1}]
