"""What this process is among those of its gateway, made from the settings and the store."""

import ipaddress
import re
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509

from gateway.cluster.directory import ProcessDirectory, named_peers
from gateway.cluster.knowledge.exchange import KnowledgeExchange
from gateway.cluster.member import ClusterMember
from gateway.cluster.ownership import Ownership, SoleOwner
from gateway.cluster.peer_notices import PeerNotices
from gateway.cluster.peers import BadPeer, StaticPeerDirectory, new_incarnation, read_peers
from gateway.cluster.placement_demands import PlacementDemands
from gateway.cluster.process_client import BadAddress, check_address
from gateway.domain.running_clock import running_s
from gateway.domain.timers import Timers
from gateway.domain.urls import is_own
from gateway.fleet.session import AgentSession
from gateway.quota.pools import ProcessCount, StaticProcessCount
from gateway.runtime.config import ConfigError, Settings
from gateway.storage import Store
from gateway.storage.processes import ProcessRecord
from shared import __version__
from shared.protocol.peers import GatewayPeer, PeerDirectory

Agreed = Callable[[AgentSession, Sequence[str]], None]


@dataclass(frozen=True, slots=True)
class Cluster:
    """What the parts of a gateway get of it."""

    processes: ProcessCount
    """Those that have the shared limits."""
    ownership: Ownership
    peers: PeerDirectory | None = None
    """What agents are told; None: nothing, this is the only process."""
    member: ClusterMember | None = None
    """None: there is no store that all processes have."""
    notices: PeerNotices | None = None
    demands: PlacementDemands | None = None
    """What requests wait for at the others; None: not known."""
    knowledge: KnowledgeExchange | None = None
    """What processes tell each other of what they have learnt; None: there is nobody to tell."""

    def facts(self) -> dict[str, Any]:
        """How old is what this process knows of the others, in seconds, for operators; empty where it reads
        nothing of others. ``told_s``: since each of them told something new of what it has learnt."""
        if self.member is None:
            return {}
        told_s = {} if self.knowledge is None else self.knowledge.ages_s()
        rounded = {name: round(age_s, 1) for name, age_s in told_s.items()}
        return {"others": {"known_s": round(self.member.known_s(), 1), "told_s": rounded}}

    def with_notices(self, agreed: Agreed) -> Agreed:
        """``agreed``, and those who want to hear of other processes are noted as well."""
        notices = self.notices
        if notices is None:
            return agreed

        def both(session: AgentSession, capabilities: Sequence[str]) -> None:
            agreed(session, capabilities)
            notices.agreed(session, capabilities)

        return both


def make_cluster(settings: Settings, store: Store, timers: Timers) -> Cluster:
    """A gateway whose store is its own, and that is given no name, is one process and says nothing of it.
    Raises ConfigError, StateError."""
    table, count = settings.cluster, settings.shared_processes
    fixed = StaticProcessCount(count, count - 1)
    name = table.process or store.process_name
    if name is None:
        return Cluster(fixed, SoleOwner())
    url = table.url if store.address is None else table.url or _listen_url(name, settings)
    own_url = [] if url is None else [f"{name}={url}"]
    others = [each for each in table.peers if not own_url or each.partition("=")[0] != name]
    try:
        urls = read_peers(name, [*own_url, *others])
    except BadPeer as error:
        raise ConfigError(f"cluster.peers: {error}") from error
    if not store.is_shared:
        given = [each if url is None else f"{each}={url}" for each, url in urls.items()]
        return Cluster(fixed, SoleOwner(), StaticPeerDirectory(name, new_incarnation(), given))
    return _join(store, name, urls, settings, timers)


def _listen_url(name: str, settings: Settings) -> str | None:
    """Where this process listens, if agents can dial that as it is written: on this host, or by TLS with a
    certificate for it. None: only the operator knows where agents dial, or has said it in ``cluster.peers``.
    """
    host, port = settings.address
    cert = settings.tls.cert
    said = any(each.startswith(f"{name}=") for each in settings.cluster.peers)
    if said or not port or settings.behind_tls_terminator:
        return None
    if cert is None:
        return f"http://{settings.listen}" if is_own(host) else None
    return f"https://{settings.listen}" if certificate_is_for(cert, host) else None


def certificate_is_for(cert: Path, host: str) -> bool:
    """Whether the first certificate in the PEM file names the address or name, without wildcards."""
    try:
        found = x509.load_pem_x509_certificate(cert.read_bytes())
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, x509.ExtensionNotFound):
        return False
    try:
        return ipaddress.ip_address(host) in names.get_values_for_type(x509.IPAddress)
    except ValueError:
        return host.lower() in (each.lower() for each in names.get_values_for_type(x509.DNSName))


def _address(settings: Settings, url: str | None) -> str | None:
    """Where other processes ask this one, which agents dial at ``url``, as far as that is set or follows from
    where it listens. Raises ConfigError."""
    given = settings.cluster.address
    if given is None and url is not None:
        given = re.sub(r"\Aws(s?)://", r"http\1://", url)
    if given is not None:
        try:
            check_address(given)
        except BadAddress as error:
            raise ConfigError(f"cluster.address: {error}") from error
        return given
    host, port = settings.address
    if not port or host in ("", "0.0.0.0", "::"):  # noqa: S104 (not listened on)
        return None
    return f"http{'s' if settings.tls.cert else ''}://{f'[{host}]' if ':' in host else host}:{port}"


def _join(
    store: Store, name: str, urls: dict[str, str | None], settings: Settings, timers: Timers
) -> Cluster:
    url, least = urls.pop(name), settings.shared_processes
    address = _address(settings, url)
    incarnation = store.processes.next_incarnation(name, new_incarnation())
    own = GatewayPeer(name, incarnation, url)
    directory = ProcessDirectory(own, named_peers(urls), least=least, begins_s=running_s())
    host = socket.gethostname()
    record = ProcessRecord(name, incarnation, url, host, __version__, time.time(), address=address)
    demands = PlacementDemands(timers.time)
    knowledge = KnowledgeExchange(name, incarnation, timers.time)
    member = ClusterMember(record, directory, store.processes, store.ownership, demands, knowledge=knowledge)
    notices = PeerNotices(directory, timers)
    member.begin()
    directory.changed = notices.changed
    return Cluster(directory, member.ownership, directory, member, notices, demands, knowledge)
