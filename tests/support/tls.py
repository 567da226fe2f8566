"""TLS in front of a gateway, ended by somebody else as a load balancer does; with a certificate made here."""

import asyncio
import datetime
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.support.local_server import LocalServer, pump


def make_certificate(directory: Path) -> tuple[Path, Path]:
    """A self-signed certificate for localhost, gateway.test and 127.0.0.1, and its key, as PEM files."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    names: list[x509.GeneralName] = [
        x509.DNSName("localhost"),
        x509.DNSName("gateway.test"),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
    ]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate_path, key_path = directory / "certificate.pem", directory / "key.pem"
    certificate_path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return certificate_path, key_path


class TlsTerminator(LocalServer):
    """Listens with TLS on an ephemeral port of 127.0.0.1 and passes everything on to a plain port."""

    def __init__(self, port: int, certificate: Path, key: Path) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        super().__init__(context)
        self._target_port = port

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward_reader, onward = await asyncio.open_connection("127.0.0.1", self._target_port)
        self._writers |= {writer, onward}
        try:
            await asyncio.gather(pump(reader, onward), pump(onward_reader, writer))
        except OSError:
            pass
        finally:
            self._writers -= {writer, onward}
            onward.close()
            writer.close()
