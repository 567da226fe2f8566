"""Who is who: gateway and agent keys, join tokens, agent certificates (PROTOCOL §8).

Pure functions and plain data. Wall-clock time, randomness and paths are arguments; only the two helpers
that make something new from chance (``generate_key``, ``JoinToken.new``) draw random bytes themselves.
"""

from shared.identity.certificates import (
    CERTIFICATE_LIFE_S,
    NAME_RULE,
    AgentCertificate,
    is_name,
    issue_certificate,
    new_serial,
    read_certificate,
    verify_certificate,
)
from shared.identity.keys import (
    GatewayIdentity,
    KeyFileError,
    create_key_file,
    fingerprint_of,
    generate_key,
    load_key,
    public_bytes,
    save_key,
)
from shared.identity.succession import GatewayKeys, Succession
from shared.identity.tokens import JoinToken

__all__ = [
    "CERTIFICATE_LIFE_S",
    "NAME_RULE",
    "AgentCertificate",
    "GatewayIdentity",
    "GatewayKeys",
    "JoinToken",
    "KeyFileError",
    "Succession",
    "create_key_file",
    "fingerprint_of",
    "generate_key",
    "is_name",
    "issue_certificate",
    "load_key",
    "new_serial",
    "public_bytes",
    "read_certificate",
    "save_key",
    "verify_certificate",
]
