"""Checks of a connection to a gateway, from its name to its clock. None of them needs a key."""

import errno
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from http.client import HTTPException

import orjson
from cryptography import x509

from gateway.tools.doctor.way import NoWay, Way, connect
from shared.link.addresses import is_loopback
from shared.process.checks import Check, CheckOutcome, failed, passed, skipped, warned
from shared.process.connection_errors import explain_http_error, host_of

DAY_S = 86_400.0
SOON_S = 14 * DAY_S
"""A certificate that lasts no longer is to be renewed."""
SKEW_S = 5.0
"""Clocks may be so far apart, besides the second that a Date is rounded to."""
WRONG_S = 60.0
"""Beyond, tokens and signed URLs that are valid are refused."""

NO_TLS = "There is no TLS at this URL."
_NO_NETWORK = (errno.ENETUNREACH, errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
"""This host has no way to such an address, as to one of IPv6 where it has IPv4 only."""
_VARIABLES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY")


@dataclass(frozen=True)
class ConnectionChecks:
    """Looks at one way."""

    way: Way
    wall: Callable[[], float] = time.time
    """Gives seconds since 1970."""

    def all(self) -> list[Check]:
        """In the order of the hops."""
        return [
            Check("proxy-environment", self.proxy_environment),
            Check("dns", self.dns, after=("proxy-environment",), limit_s=20.0),
            Check("connect", self.connect, after=("dns",), limit_s=30.0),
            Check("tls-chain", self.tls_chain, after=("connect",), limit_s=30.0),
            Check("tls-expiry", self.tls_expiry, after=("connect",), limit_s=30.0),
            Check("http2", self.http2, after=("tls-chain",), limit_s=30.0),
            Check("gateway-answers", self.gateway_answers, after=("tls-chain",), limit_s=30.0),
            Check("clock", self.clock, after=("gateway-answers",), limit_s=30.0),
        ]

    def proxy_environment(self) -> CheckOutcome:
        environ = self.way.environ
        set_here = [name for name in _VARIABLES if environ.get(name) or environ.get(name.lower())]
        if self.way.proxy is None:
            why = f", though {', '.join(set_here)} are set" if set_here else ""
            return passed(f"No proxy of the environment is used for this URL{why}.", proxy=None)
        try:
            found = self.way.addresses()
        except NoWay as error:
            return failed(
                f"The environment names a proxy for this URL, and {error}.",
                "Correct HTTPS_PROXY, or name the gateway's host in NO_PROXY.",
            )
        for address in found:
            with suppress(OSError):
                connect(address, self.way.timeout_s).close()
                return passed(f"The environment's proxy {host_of(self.way.proxy)} is used.", proxy=True)
        return failed(
            f"The environment names the proxy {host_of(self.way.proxy)} for this URL, which takes no "
            "connection.",
            "Start that proxy, correct HTTPS_PROXY, or name the gateway's host in NO_PROXY.",
        )

    def dns(self) -> CheckOutcome:
        if not self.way.target.named:
            return skipped("The URL has an address and no name.")
        if self.way.proxy is not None:
            return skipped("The proxy looks the name up.")
        try:
            found = self.way.addresses()
        except NoWay as error:
            return failed(
                f"Looking up the gateway: {error}.",
                "Correct the name in the URL, or add its record to the DNS that this host asks.",
            )
        addresses = [address for _, address, _ in found]
        if not is_loopback(self.way.target.host) and all(map(is_loopback, addresses)):
            return warned(
                f"The name {self.way.target.host} stands for this host itself ({', '.join(addresses)}).",
                "Look for it in /etc/hosts, unless the gateway does run here.",
                addresses=addresses,
            )
        return passed(f"{self.way.target.host} has {_count(len(found), 'address')}.", addresses=addresses)

    def connect(self) -> CheckOutcome:
        if self.way.proxy is not None:
            return skipped("The proxy connects.")
        reached, failures, without_network = [], [], []
        for address in self.way.addresses():
            began_s = time.monotonic()
            try:
                connect(address, self.way.timeout_s).close()
            except OSError as error:
                failures.append(f"{address[1]}: {explain_http_error(self.way.target.url, error)}")
                if error.errno in _NO_NETWORK:
                    without_network.append(address[1])
            else:
                reached.append((address[1], round(time.monotonic() - began_s, 4)))
        port, facts = self.way.target.port, {"reached": dict(reached), "failures": failures}
        if not reached:
            return failed(
                f"No address takes a connection at port {port} ({'; '.join(failures)}).",
                "Start the gateway, or what is before it; correct host and port; open the port in "
                "firewalls. If "
                "the address itself is wrong, correct the DNS record.",
                **facts,
            )
        if len(failures) > len(without_network):
            return warned(
                f"Only {len(reached)} of {len(reached) + len(failures)} addresses take a connection at port "
                f"{port} ({'; '.join(failures)}).",
                "Remove the addresses from the DNS that do not work: programs try them first, or at random.",
                **facts,
            )
        fastest_ms = min(took_s for _, took_s in reached) * 1000
        words = f"Port {port} takes connections, within {fastest_ms:.1f} ms"
        if without_network:
            words += f"; this host has no network that leads to {', '.join(without_network)}"
        return passed(f"{words}.", **facts)

    def tls_chain(self) -> CheckOutcome:
        if not self.way.target.secure:
            return skipped(NO_TLS)
        try:
            line = self.way.open()
        except NoWay as error:
            return failed(
                f"TLS: {error}.",
                "If the certificate is from an authority of your own, give its certificate with --ca-file "
                "(for "
                "agents ca_file); else install a certificate for this name, with its intermediate "
                "certificates.",
            )
        with line.socket as sock:
            version = sock.version() if isinstance(sock, ssl.SSLSocket) else None
        return passed(f"The certificate is trusted here and is for this name ({version}).", tls=version)

    def tls_expiry(self) -> CheckOutcome:
        if not self.way.target.secure:
            return skipped(NO_TLS)
        try:
            line = self.way.open(verify=False)
        except NoWay as error:
            return skipped(f"No certificate was shown: {error}.")
        with line.socket as sock:
            der = sock.getpeercert(binary_form=True) if isinstance(sock, ssl.SSLSocket) else None
        if not der:
            return failed("No certificate was shown.", "Look at what ends TLS at this port.")
        certificate = x509.load_der_x509_certificate(der)
        return certificate_outcome(
            certificate.not_valid_before_utc.timestamp(),
            certificate.not_valid_after_utc.timestamp(),
            self.wall(),
        )

    def http2(self) -> CheckOutcome:
        if not self.way.target.secure:
            return skipped("Without TLS HTTP/1.1 is spoken.")
        try:
            with self.way.open().socket:
                pass
        except NoWay as error:
            return failed(
                f"A client that speaks HTTP/1.1 only gets no connection ({error}).",
                "Allow HTTP/1.1 as well: agents and WebSockets use it.",
            )
        with suppress(NoWay):
            line = self.way.open(("h2", "http/1.1"))
            line.socket.close()
            if line.protocol == "h2":
                return passed("HTTP/2 and HTTP/1.1 are spoken.", http2=True)
        return passed("HTTP/1.1 is spoken, as the gateway does itself.", http2=False)

    def gateway_answers(self) -> CheckOutcome:
        try:
            with self.way.request("GET", "/readyz", {"accept": "application/json"}) as response:
                status, server, text = response.status, response.header("server"), response.body()
        except (NoWay, OSError, HTTPException) as error:
            said = str(error) if isinstance(error, NoWay) else explain_http_error(self.way.target.url, error)
            return failed(f"No answer came: {said}.", "Look at the gateway's log, and at what is before it.")
        with suppress(ValueError, TypeError, KeyError):
            found = orjson.loads(text)
            ready, agents = found["status"], found["agents"]
            if status == 200:
                return passed(f"A gateway answers; {_count(int(agents), 'agent')} connected.", agents=agents)
            return failed(
                f"A gateway answers, and takes no requests ({ready}).",
                "It starts or stops: wait, then look at its log.",
            )
        what = f" by {server}" if server else ""
        return failed(
            f"What answers{what} with status {status} is no Trunkline gateway.",
            "Correct the URL, or have the proxy pass all paths on to the gateway: /v1, /tunnel, /readyz, "
            "/admin.",
            status=status,
        )

    def clock(self) -> CheckOutcome:
        before_s = self.wall()
        try:
            with self.way.request("GET", "/healthz", {}) as response:
                date = response.header("date")
        except (NoWay, OSError, HTTPException) as error:
            return failed(f"The gateway's time cannot be asked ({error}).", "Run this again.")
        after_s = self.wall()
        try:
            there_s = parsedate_to_datetime(date).replace(tzinfo=UTC).timestamp()
        except (TypeError, ValueError):
            return skipped("The answer has no header Date.")
        return clock_outcome(max(there_s - after_s, before_s - there_s - 1.0, 0.0), there_s > after_s)


def clock_outcome(skew_s: float, behind: bool) -> CheckOutcome:
    """What is said of clocks that are at least ``skew_s`` apart. ``behind``: this host's is behind."""
    skew_s = round(skew_s, 1)
    if skew_s <= SKEW_S:
        return passed(
            f"The clocks of this host and of the gateway agree (within {SKEW_S:g} s).", skew_s=skew_s
        )
    words = f"This host's clock is {skew_s:g} s {'behind' if behind else 'ahead of'} the gateway's."
    remedy = "Set both clocks by NTP (timedatectl set-ntp true)."
    return (failed if skew_s > WRONG_S else warned)(words, remedy, skew_s=skew_s)


def certificate_outcome(from_s: float, to_s: float, now_s: float) -> CheckOutcome:
    """What is said of a certificate that is valid from one time to another, in seconds since 1970."""
    left_days = (to_s - now_s) / DAY_S
    facts = {"days_left": round(left_days, 1)}
    renew = "Renew the certificate, and have it renewed by itself from then on."
    if now_s > to_s:
        return failed(f"The certificate ended {-left_days:.1f} days ago.", renew, **facts)
    if now_s < from_s:
        return failed(
            f"The certificate is valid only in {(from_s - now_s) / DAY_S:.1f} days.",
            "Set this host's clock if it is wrong, else install a certificate that is valid now.",
            **facts,
        )
    if to_s - now_s < SOON_S:
        return warned(f"The certificate ends in {left_days:.1f} days.", renew, **facts)
    return passed(f"The certificate lasts {left_days:.0f} more days.", **facts)


def _count(count: int, what: str) -> str:
    plural = what if count == 1 else f"{what}es" if what.endswith("s") else f"{what}s"
    return f"{count} {plural}"
