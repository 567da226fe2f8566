"""Agent certificates: X.509 signed by the gateway's own key (PROTOCOL §8.6)."""

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.utils import CryptographyDeprecationWarning
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, SignatureAlgorithmOID

from shared.identity.keys import GatewayIdentity, fingerprint_of, gateway_id, signature_holds
from shared.protocol.errors import CertificateInvalid, CertificateOutOfDate

CERTIFICATE_LIFE_S = 90 * 86_400
"""How long a certificate lasts: an agent switched off for a season can still come back by itself."""

BACKDATE_S = 300
"""A certificate is valid from a little before its making, for clocks that differ."""

CERTIFICATE_BYTES = 4096
"""No certificate made here has a quarter of this; longer ones are refused before they are parsed."""

NAME_RULE = (
    "a name is 1 to 63 of a-z, 0-9, '.', '_' and '-', and begins with a letter or digit (for example gpu-7)"
)
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
"""At most 63 characters: one label of a host name, which is what most agents are called after."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST_S = 253_402_300_799
"""9999-12-31T23:59:59Z: the last second X.509 can name."""


@dataclass(frozen=True, slots=True)
class AgentCertificate:
    """A certificate whose signature and form were verified. Times are seconds since 1970."""

    name: str
    public_key: bytes
    serial: int
    not_before_s: int
    not_after_s: int
    der: bytes = field(repr=False)
    issuer: bytes = field(default=b"", repr=False)
    """Public key of the gateway that issued it."""

    def needs_renewal(self, wall_s: float) -> bool:
        """True when less than a third of its life is left: time for a fresh one. One that has not begun is
        not worn: a clock is or was wrong, and a fresh one would end sooner."""
        return wall_s > self.not_after_s - (self.not_after_s - self.not_before_s) / 3

    def check_dates(self, wall_s: float, early_s: float = 0.0, late_s: float = 0.0) -> None:
        """Raises CertificateOutOfDate more than ``early_s`` before it is valid or ``late_s`` after."""
        if wall_s < self.not_before_s - early_s:
            why = f"is valid only from {_as_text(self.not_before_s)}: check the clocks"
        elif wall_s > self.not_after_s + late_s:
            why = f"expired {_as_text(self.not_after_s)}: join again with a token, or check the clocks"
        else:
            return
        raise CertificateOutOfDate(f"the certificate {why}", self.name, self.not_before_s, self.not_after_s)


def new_serial() -> int:
    """A random serial number: unique without a counter, and not to be guessed."""
    return x509.random_serial_number()


def is_name(text: str) -> bool:
    """True for an agent's name that can stand in a certificate (PROTOCOL §8.4)."""
    return _NAME.fullmatch(text) is not None


def agent_uri(gateway: str, name: str) -> str:
    """The SPIFFE-style name in a certificate."""
    return f"spiffe://trunkline/{gateway}/agent/{name}"


def issue_certificate(
    gateway: GatewayIdentity,
    name: str,
    public_key: bytes,
    serial: int,
    wall_s: float,
    life_s: float = CERTIFICATE_LIFE_S,
) -> AgentCertificate:
    """Sign a certificate for an agent's raw public key, valid from just before ``wall_s`` on.

    The same arguments give the same bytes (Ed25519 is deterministic). The caller has validated ``name``
    and obtained ``public_key`` from a verified HELLO.
    """
    assert is_name(name), name
    not_before_s = int(wall_s) - BACKDATE_S
    not_after_s = int(wall_s + life_s)
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    uri = x509.UniformResourceIdentifier(agent_uri(gateway.id, name))
    issuer_key = gateway.private_key.public_key()
    certificate = (
        x509.CertificateBuilder()
        .serial_number(serial)
        .issuer_name(_common_name(f"trunkline gateway {gateway.id}"))
        .subject_name(_common_name(name))
        .public_key(Ed25519PublicKey.from_public_bytes(public_key))
        .not_valid_before(datetime.fromtimestamp(not_before_s, UTC))
        .not_valid_after(datetime.fromtimestamp(not_after_s, UTC))
        .add_extension(x509.SubjectAlternativeName([uri]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), critical=False)
        .sign(gateway.private_key, algorithm=None)
    )
    der = certificate.public_bytes(serialization.Encoding.DER)
    return AgentCertificate(name, public_key, serial, not_before_s, not_after_s, der, gateway.public_key)


def _common_name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def verify_certificate(
    der: bytes, gateway_key: bytes, name: str, public_key: bytes, *, also_issued_by: Sequence[bytes] = ()
) -> AgentCertificate:
    """Check that the holder of ``gateway_key`` (raw) issued ``der`` for this name and key; a holder of one
    of ``also_issued_by`` will do, too.

    Raises CertificateInvalid, whatever the bytes are. Says nothing of dates and of revocation.
    """
    certificate = read_certificate(der, tuple(dict.fromkeys((gateway_key, *also_issued_by))))
    if certificate.name != name:
        raise CertificateInvalid(
            f"the certificate is for agent {certificate.name!r}, not for {name!r}: "
            "use that name, or join again with a token"
        )
    if certificate.public_key != public_key:
        raise CertificateInvalid("the certificate belongs to another key: join again with a token")
    return certificate


def read_certificate(der: bytes, gateway_keys: Sequence[bytes]) -> AgentCertificate:
    """A certificate that the holder of one of ``gateway_keys`` (raw) issued, whoever it is for.

    Raises CertificateInvalid, whatever the bytes are. Says nothing of dates and of revocation.
    """
    parsed = _parse(der)
    return _read(parsed, der, _issuer_of(parsed, gateway_keys))


def read_kept(der: bytes) -> AgentCertificate:
    """A certificate that was verified when it was taken; who issued it is not looked at.

    Raises CertificateInvalid for what is none.
    """
    return _read(_parse(der), der, b"")


def _parse(der: bytes) -> x509.Certificate:
    if len(der) > CERTIFICATE_BYTES:
        raise CertificateInvalid(f"a certificate of {len(der)} bytes, limit {CERTIFICATE_BYTES}")
    try:
        with warnings.catch_warnings():
            # Strangers choose these bytes: what the library merely frowns upon is refused, not logged.
            warnings.simplefilter("error", CryptographyDeprecationWarning)
            return x509.load_der_x509_certificate(der)
    except (ValueError, x509.InvalidVersion, CryptographyDeprecationWarning) as error:
        raise CertificateInvalid("the certificate is no X.509") from error


def _issuer_of(certificate: x509.Certificate, gateway_keys: Sequence[bytes]) -> bytes:
    """Which of the keys signed it. Raises CertificateInvalid when none did."""
    try:
        if certificate.signature_algorithm_oid != SignatureAlgorithmOID.ED25519:
            raise CertificateInvalid("the certificate is not signed with Ed25519")
        signature, signed = certificate.signature, certificate.tbs_certificate_bytes
    except ValueError as error:
        raise CertificateInvalid("the certificate is no X.509") from error
    for key in gateway_keys:
        if signature_holds(key, signature, signed):
            return key
    raise CertificateInvalid(
        "the certificate was not issued by this gateway: join again with one of its tokens"
    )


def _read(certificate: x509.Certificate, der: bytes, issuer: bytes) -> AgentCertificate:
    """The facts of a certificate whose signature was verified, now by ``issuer`` or when it was taken."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
        uris = [name.value for name in names]
        key = certificate.public_key()
        not_before = certificate.not_valid_before_utc
        not_after = certificate.not_valid_after_utc
        serial = certificate.serial_number
    except (ValueError, x509.ExtensionNotFound, x509.DuplicateExtension, UnsupportedAlgorithm) as error:
        raise CertificateInvalid("the certificate lacks what an agent's has") from error
    prefix = agent_uri(gateway_id(fingerprint_of(issuer)), "")
    if not issuer and len(uris) == 1 and isinstance(uris[0], str):
        prefix = uris[0][: len(prefix)]  # an id is as long as any other
    if len(uris) != 1 or not isinstance(uris[0], str) or not uris[0].startswith(prefix):
        raise CertificateInvalid("the certificate does not name one agent of this gateway")
    name = uris[0].removeprefix(prefix)
    if not is_name(name) or constraints.ca or not isinstance(key, Ed25519PublicKey):
        raise CertificateInvalid("the certificate is not an agent's")
    return AgentCertificate(
        name=name,
        public_key=key.public_bytes_raw(),
        serial=serial,
        not_before_s=int((not_before - _EPOCH).total_seconds()),
        not_after_s=int((not_after - _EPOCH).total_seconds()),
        der=der,
        issuer=issuer,
    )


def _as_text(wall_s: float) -> str:
    bounded_s = min(max(wall_s, 0), _LATEST_S)
    return datetime.fromtimestamp(bounded_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
