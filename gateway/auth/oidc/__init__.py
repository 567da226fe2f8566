"""Clients that show a JSON Web Token of an issuer we trust, in place of an API key (RFC 7519, RFC 8725).

``keyset`` an issuer's keys · ``fetch`` and ``source`` get them, outside any request ·
``verify`` a token against keys and times, pure · ``tokens`` what it grants, and who is let in.
"""

from gateway.auth.oidc.source import KeySource
from gateway.auth.oidc.tokens import TokenAuthenticator

__all__ = ["KeySource", "TokenAuthenticator"]
