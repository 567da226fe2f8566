"""What tests start in place of a worker: Python that begins as a real one does, and then does as told."""

import sys
from collections.abc import Sequence

from gateway.runtime.workers.role import WorkerRole

_BEGIN = """
import asyncio, faulthandler, os, signal, socket, sys, time
from gateway.runtime.workers.channel import BEAT, COVER, PEERS, READY, RELEASE, SETTLED
from gateway.runtime.workers.channel import STACKS_SIGNAL, SupervisorLink
told = sys.argv[1]
faulthandler.register(STACKS_SIGNAL, file=int(sys.argv[3]))
link = SupervisorLink(socket.socket(fileno=int(sys.argv[2])))
log = open(f"{link.role.state}/{link.role.process}", "a", buffering=1)
if told == "fails in its place":
    told = "1" if link.role.replaces else "serves"
if told == "hangs once" and link.role.index == 1 and not os.path.exists(f"{link.role.state}/hung"):
    open(f"{link.role.state}/hung", "x").close()
    told = "hangs"
if told == "hangs":
    def never_serve():
        time.sleep(1000)
    log.write("hangs" + chr(10))
    never_serve()
if told.isdigit():
    sys.exit(int(told))
if told == "crashes":
    os.kill(os.getpid(), signal.SIGKILL)

async def main():
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    def hear(what):
        if what.startswith(PEERS):
            return
        if what.startswith((COVER, RELEASE)):
            sockets = link.take_sockets(8)
            with open(f"{link.role.state}/{link.role.process}.covers", "a") as covers:
                covers.write(f"{what.decode().strip()} {len(sockets)}" + chr(10))
            return
        log.write(what.decode())
        if not what or told != "stays":
            over.set()
    def beat():
        link.report(BEAT)
        loop.call_later(0.05, beat)
    def reload():
        log.write("SIGHUP" + chr(10))
        if told == "blocks":
            time.sleep(1000)
    loop.add_signal_handler(signal.SIGHUP, reload)
    loop.add_signal_handler(signal.SIGTERM, over.set)
    link.watch(loop, hear)
    log.write("started" + chr(10))
    link.report(READY + BEAT)
    beat()
    if link.role.replaces:
        link.report(SETTLED)
    await over.wait()

asyncio.run(main())
"""


def played(told: str) -> list[str]:
    """A command: ``serves``, ``stays`` when it is asked to end, ``blocks`` its event loop at SIGHUP,
    ``hangs`` before it serves, ``hangs once`` does so as the first one of the second place, ``crashes``,
    ends with a status, or ``fails in its place`` where it is to replace another one."""
    return [sys.executable, "-c", _BEGIN, told]


def role(
    state: str,
    supervisor: int,
    index: int = 0,
    names: Sequence[str] = ("0", "1"),
    *,
    replaces: bool = False,
) -> WorkerRole:
    return WorkerRole(
        index=index,
        count=len(names),
        process=names[index],
        processes=list(names),
        replaces=replaces,
        supervisor=supervisor,
        listener=-1,
        redirect=None,
        state=state,
        announces=False,
        flags={},
        config=None,
    )
