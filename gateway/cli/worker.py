"""``python -m gateway.cli.worker CHANNEL STACKS``: one worker of ``trunkline gateway --workers``. Started by
the supervisor, or a fork of it, and of no use to people. Both are numbers of descriptors that it inherits."""

import faulthandler
import signal
import socket
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from shared.process.startup import without_collection, without_optional

WRONG_USAGE = 2
FAILED = 1


def prepare() -> Callable[[list[str]], int]:
    """Do what every worker begins with and what a fork keeps: imports, the rules for engines' paths. Returns
    what is to be called in the fork."""
    with without_collection(), without_optional("rich"):
        from gateway.domain.engine_paths import EnginePaths
        from shared.process.event_loop import event_loop_factory

        import_module("gateway.app.run")
        event_loop_factory()
        EnginePaths()
    return main


def main(arguments: list[str]) -> int:
    """Serve until told to stop; the exit status."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there are settings that could be read again
    from shared.speedups import use_huge_pages

    use_huge_pages()
    with without_collection(), without_optional("rich"):
        from gateway.cli_support.console import note
        from gateway.runtime.workers.channel import STACKS_SIGNAL, BadRole, SupervisorLink

        try:  # before the imports that take long: whoever is no supervisor is told so at once
            link = SupervisorLink(socket.socket(fileno=int(arguments[0])))
            if len(arguments) > 1:  # a supervisor of an earlier version gives none
                faulthandler.register(STACKS_SIGNAL, file=int(arguments[1]))
        except (BadRole, OSError, ValueError, IndexError) as error:
            note(f"trunkline gateway: {error}")
            return WRONG_USAGE

        from gateway.app.run import run
        from gateway.cli.announcement import announce
        from gateway.observability.logging import configure
        from gateway.runtime.config import ConfigError, Settings, load
        from gateway.runtime.listeners import ListenFailed
        from gateway.runtime.workers.settings import worker_settings
        from gateway.storage import Store
        from gateway.storage.errors import StateError

    role = link.role

    def read() -> Settings:
        config = None if role.config is None else Path(role.config)
        return worker_settings(load(role.flags, config).settings, role)

    def say(url: str, store: Store) -> None:
        if role.announces:
            announce(url, store, settings, role.count)

    try:
        settings = read()
        configure(settings.log.level, settings.log.style, settings.cluster.process)
        run(settings, Path(role.state), say, read, link)
    except ConfigError as error:
        note(f"trunkline gateway: {error}")
        return WRONG_USAGE
    except (StateError, ListenFailed) as error:
        note(f"trunkline: {error}")
        return FAILED
    finally:
        link.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
