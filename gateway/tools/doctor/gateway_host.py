"""Checks of a gateway's host. Registered as :class:`shared.process.checks.HostChecks`."""

import errno
import os
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from http.client import HTTPException
from pathlib import Path

from cryptography import x509

from gateway.domain.state_dir import ADDRESS_NAME, DATABASE_NAME, own_state_dir
from gateway.runtime.config import CONFIG_VARIABLE, ConfigError, Loaded, Settings, load
from gateway.runtime.disks import disk_room, existing_places, written_places
from gateway.tools.doctor.connection import certificate_outcome
from gateway.tools.doctor.options import MIB
from gateway.tools.doctor.way import NoWay, Target, Way
from shared.process.checks import Check, CheckedHost, CheckOutcome, failed, passed, skipped, warned
from shared.process.descriptors import descriptors_outcome
from shared.process.shown_settings import ShownSetting, shown_settings

WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 (nothing is bound)


def is_here(host: CheckedHost) -> bool:
    """A gateway keeps, or is to keep, its state on this host."""
    if host.wanted or host.config is not None or host.state is not None:
        return True
    found = GatewayHost(host)
    try:
        return any((found.state / name).exists() for name in (DATABASE_NAME, ADDRESS_NAME))
    except OSError:
        return True


def checks(host: CheckedHost) -> Sequence[Check]:
    """What is looked at on a gateway's host."""
    found = GatewayHost(host)
    after = ("configuration",)
    return [
        Check("configuration", found.configuration),
        Check("state", found.state_directory, after=after),
        Check("database", found.database, after=(*after, "state"), limit_s=60.0),
        Check("disk", found.disk, after=after),
        Check("descriptors", lambda: descriptors_outcome("gateway")),
        Check("ports", found.ports, after=after),
        Check("tls-files", found.tls_files, after=after),
    ]


def gateway_url(host: CheckedHost) -> str | None:
    """Where this host's gateway is asked; not known where it ends TLS, as its name is in the certificate."""
    try:
        settings = GatewayHost(host).settings
    except ConfigError:
        return None
    if settings.tls.cert is not None:
        return None
    address, port = settings.address
    address = WILDCARDS.get(address, address)
    return f"http://{f'[{address}]' if ':' in address else address}:{port}"


def gateway_ca_file(host: CheckedHost) -> None:
    """None are needed: over TLS the gateway is not asked by way of its settings."""


def settings_shown(host: CheckedHost) -> Sequence[ShownSetting]:
    """The gateway's effective settings. Raises ConfigError."""
    loaded = GatewayHost(host).loaded
    address = loaded.settings.store_address
    instead = {} if address is None else {"store.url": address.url_without_password}
    return list(shown_settings(loaded.settings, loaded.sources, instead=instead))


@dataclass
class GatewayHost:
    """Looks at one gateway's settings and state."""

    host: CheckedHost = field(default_factory=CheckedHost)
    wall: Callable[[], float] = time.time

    @property
    def settings(self) -> Settings:
        """Raises ConfigError."""
        return self.loaded.settings

    @cached_property
    def loaded(self) -> Loaded:
        """Raises ConfigError."""
        config = self.host.config
        if config is None and os.environ.get(CONFIG_VARIABLE):
            config = Path(os.environ[CONFIG_VARIABLE])
        flags = {} if self.host.state is None else {"state": self.host.state}
        return load(flags, config)

    @property
    def state(self) -> Path:
        """Its state directory."""
        try:
            known = self.settings.state
        except ConfigError:
            known = self.host.state
        named = os.environ.get("TRUNKLINE_STATE")
        return known or (Path(named) if named else own_state_dir())

    def configuration(self) -> CheckOutcome:
        try:
            listen = self.settings.listen
        except ConfigError as error:
            return failed(
                f"The gateway's settings cannot be used: {error}.",
                "Correct what is named; `trunkline gateway config --show` prints where each value comes "
                "from.",
            )
        return passed(f"The gateway's settings are valid; it listens at {listen}.", listen=listen)

    def state_directory(self) -> CheckOutcome:
        state = self.state
        try:
            if not state.is_dir():
                above = next((each for each in state.parents if each.is_dir()), None)
                if above is not None and os.access(above, os.W_OK | os.X_OK):
                    return passed(f"{state} is not there yet: the gateway makes it.", state=str(state))
                return failed(
                    f"The state directory {state} is not there, and this user cannot make it.",
                    f"Make it for the gateway's user: install -d -m 700 -o USER {state}",
                )
            usable = os.access(state, os.R_OK | os.W_OK | os.X_OK)
            mounted_to_read = bool(os.statvfs(state).f_flag & os.ST_RDONLY)
        except OSError as error:
            return failed(f"The state directory {state} cannot be looked at ({error.strerror}).", _OWNER)
        if mounted_to_read:
            return failed(
                f"The disk of {state} is mounted read-only.", "Mount it for writing; look at its health."
            )
        if not usable:
            return failed(f"This user may not write to the state directory {state}.", _OWNER)
        if state.stat().st_mode & 0o077:
            return warned(
                f"Others on this host may look into the state directory {state}.", f"chmod 700 {state}"
            )
        return passed(f"The state directory {state} can be written to.", state=str(state))

    def database(self) -> CheckOutcome:
        from gateway.storage.address_file import noted_address
        from gateway.storage.errors import StateError

        try:
            address = self.settings.store_address or noted_address(self.state)
            if address is not None:
                return self._server(address)
            path = self.state / DATABASE_NAME
            if not path.exists():
                return passed("There is no database yet: the gateway makes it.")
            from gateway.storage.sqlite import damage_of

            in_use = path.with_name(f"{path.name}-wal").exists()
            damage = damage_of(path, still=not in_use, only_read=True)
        except ImportError as error:
            return failed(f"PostgreSQL needs its driver ({error}).", "pip install 'trunkline[postgres]'")
        except StateError as error:
            return failed(
                f"The database cannot be used: {str(error).rstrip('.')}.",
                "docs/postgresql.md and docs/running.md (backups) say what to do.",
            )
        if damage:
            return failed(
                f"The database {path} is damaged: {damage}.",
                "Stop the gateway and start it again: it restores its backup, and says what is lost.",
            )
        return passed(f"The database {path} is sound.", bytes=path.stat().st_size)

    def _server(self, address: object) -> CheckOutcome:
        """Raises StateError."""
        from gateway.domain.store_address import StoreAddress
        from gateway.storage.administration import check_store

        assert isinstance(address, StoreAddress)
        report = check_store(self.state, address, self.wall)
        if not report.sound:
            return failed(f"The store {address}: {'; '.join(report.findings)}.", "Run trunkline store check.")
        return passed(f"The store {address} is sound.", facts=report.facts)

    def disk(self) -> CheckOutcome:
        worst: CheckOutcome | None = None
        free: dict[str, int] = {}
        for place in existing_places(written_places(self.settings, self.state)):
            room = disk_room(place)
            if room is None:
                continue
            free[str(place)] = room.free_bytes
            if room.full:
                return failed(f"The disk of {place} is full.", _ROOM, free_bytes=free)
            if room.is_short():
                left = f"{room.free_bytes / MIB:.0f} MiB"
                worst = warned(f"The disk of {place} has only {left} left.", _ROOM, free_bytes=free)
        if worst is not None:
            return worst
        if not free:
            return skipped("None of its directories is there yet.")
        least = min(free.values())
        return passed(f"There is room on its disks, {least / 1024 / MIB:.1f} GiB or more.", free_bytes=free)

    def ports(self) -> CheckOutcome:
        addresses = [self.settings.address]
        if self.settings.tls.redirect is not None:
            addresses.append(self.settings.tls.redirect)
        said = []
        for address, port in addresses:
            trouble = _listening_trouble(address, port)
            if trouble is None:
                said.append(f"{address}:{port} is free, no gateway runs there")
            elif trouble == errno.EADDRINUSE:
                if (address, port) == self.settings.address and not self._gateway_is_at(address, port):
                    return failed(
                        f"Another program listens at {address}:{port}.",
                        f"Find it with `ss -ltnp 'sport = :{port}'`; stop it, or choose another port with "
                        "--listen.",
                    )
                said.append(f"a gateway listens at {address}:{port}")
            else:
                return failed(
                    f"The gateway cannot listen at {address}:{port} ({os.strerror(trouble)}).",
                    "Choose an address of this host, and a port above 1023 or the right for lower ones "
                    "(AmbientCapabilities=CAP_NET_BIND_SERVICE).",
                )
        return passed(f"{'; '.join(said)}.".capitalize())

    def _gateway_is_at(self, address: str, port: int) -> bool:
        address = WILDCARDS.get(address, address)
        scheme = "http" if self.settings.tls.cert is None else "https"
        way = Way(
            Target.of(f"{scheme}://{f'[{address}]' if ':' in address else address}:{port}"), timeout_s=5.0
        )
        try:
            with way.request("GET", "/readyz", {}, verify=False) as response:
                return b'"agents"' in response.body()
        except (NoWay, OSError, HTTPException):
            return False

    def tls_files(self) -> CheckOutcome:
        table = self.settings.tls
        if table.cert is None or table.key is None:
            return skipped("This gateway does not end TLS itself.")
        try:
            pem = table.cert.read_bytes()
            certificates = x509.load_pem_x509_certificates(pem)
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
                table.cert, table.key, password=lambda: ""
            )
        except (OSError, ValueError) as error:
            return failed(
                f"The certificate {table.cert} and the key {table.key} cannot be used together ({error}).",
                "Give a PEM file with the whole chain, the gateway's own certificate first, and its own key.",
            )
        ends = [each.not_valid_after_utc.timestamp() for each in certificates]
        begins = [each.not_valid_before_utc.timestamp() for each in certificates]
        return certificate_outcome(max(begins), min(ends), self.wall())


def _listening_trouble(address: str, port: int) -> int | None:
    """The error's number with which the address cannot be listened at now; None: it can be."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        socket.create_server((address, port), family=family).close()
    except OSError as error:
        return error.errno or errno.EADDRNOTAVAIL
    return None


_OWNER = "Run this as the gateway's user; else give the directory to that user: chown -R USER DIRECTORY"
_ROOM = (
    "Make room; audit.keep_bytes, dispatch.unread_disk_bytes and the time that jobs' files are kept bound "
    "what the "
    "gateway writes."
)
