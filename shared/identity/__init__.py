"""Who is who: gateway and agent keys, join tokens, agent certificates (PROTOCOL §8).

Pure functions and plain data. Wall-clock time, randomness and paths are arguments; only the two helpers
that make something new from chance (``generate_key``, ``JoinToken.new``) draw random bytes themselves.
"""

from shared.identity.certificates import CERTIFICATE_LIFE_S as CERTIFICATE_LIFE_S
from shared.identity.certificates import NAME_RULE as NAME_RULE
from shared.identity.certificates import AgentCertificate as AgentCertificate
from shared.identity.certificates import is_name as is_name
from shared.identity.certificates import issue_certificate as issue_certificate
from shared.identity.certificates import new_serial as new_serial
from shared.identity.certificates import read_certificate as read_certificate
from shared.identity.certificates import verify_certificate as verify_certificate
from shared.identity.keys import GatewayIdentity as GatewayIdentity
from shared.identity.keys import KeyFileError as KeyFileError
from shared.identity.keys import create_key_file as create_key_file
from shared.identity.keys import fingerprint_of as fingerprint_of
from shared.identity.keys import generate_key as generate_key
from shared.identity.keys import load_key as load_key
from shared.identity.keys import public_bytes as public_bytes
from shared.identity.keys import save_key as save_key
from shared.identity.succession import GatewayKeys as GatewayKeys
from shared.identity.succession import KeySuccession as KeySuccession
from shared.identity.tokens import JoinToken as JoinToken
