"""Tokens: attack by attack what is refused, and why (RFC 8725)."""

import base64
import contextlib
import hashlib
import hmac
from typing import Any

import orjson
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from gateway.auth.oidc.keyset import ALGORITHMS, BadKeySet, read_keyset
from gateway.auth.oidc.verify import (
    KeyUnknown,
    TokenOutOfDate,
    TokenRefused,
    Unverified,
    Verified,
    read_token,
    verify_token,
)
from tests.gateway.auth.minting import (
    AUDIENCE,
    ISSUER,
    NOW_S,
    claims,
    forged,
    issuer,
    jwk,
    jwks,
    private_key,
    token,
)

KEYS = read_keyset(jwks(jwk("RS256", "r1"), jwk("ES256", "k1"), jwk("EdDSA", "e1")), ALGORITHMS)
KIDS = {"RS256": "r1", "ES256": "k1", "EdDSA": "e1"}


def checked(text: str, wall_s: float = NOW_S, **settings: Any) -> Verified:
    return verify_token(read_token(text), issuer(**settings), KEYS, wall_s)


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def hmac_token(secret: bytes, header: dict[str, Any]) -> str:
    signing = forged(header, claims()).rpartition(".")[0]
    return f"{signing}.{b64(hmac.digest(secret, signing.encode(), hashlib.sha256))}"


def public_pem(kind: str) -> bytes:
    pem: bytes = private_key(kind).public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return pem


@pytest.mark.parametrize("kind", ALGORITHMS)
@pytest.mark.parametrize("kind_said", [None, "JWT", "at+jwt", "application/at+jwt"])
def test_a_good_token_is_verified_with_every_algorithm(kind: str, kind_said: str | None) -> None:
    header = {} if kind_said is None else {"typ": kind_said}
    found = checked(token(kind, KIDS[kind], header=header))
    assert (found.subject, found.expires_s, found.claims["aud"]) == ("alice", NOW_S + 600, AUDIENCE)


ATTACKS: dict[str, tuple[str, str]] = {
    "no signature, alg none": (forged({"alg": "none", "kid": "k1"}, claims()), "algorithm is not taken"),
    "alg None in other case": (forged({"alg": "nOnE"}, claims()), "algorithm is not taken"),
    "no alg": (forged({"kid": "k1"}, claims()), "algorithm is not taken"),
    "alg is no text": (forged({"alg": ["ES256"]}, claims()), "algorithm is not taken"),
    "public key as HMAC secret": (
        hmac_token(public_pem("RS256"), {"alg": "HS256", "kid": "r1"}),
        "algorithm is not taken",
    ),
    "HMAC by the public key, said to be RS256": (
        hmac_token(public_pem("RS256"), {"alg": "RS256", "kid": "r1"}),
        "signature is not",
    ),
    "key of another algorithm": (token("ES256", "r1"), "not known to have"),
    "RS256 said of a key for ES256": (token("RS256", "k1"), "not known to have"),
    "another algorithm of RSA": (forged({"alg": "PS256", "kid": "r1"}, claims()), "algorithm is not taken"),
    "no signature": (forged({"alg": "ES256", "kid": "k1"}, claims()), "signature is not"),
    "zero signature (CVE-2022-21449)": (
        forged({"alg": "ES256", "kid": "k1"}, claims(), bytes(64)),
        "signature is not",
    ),
    "somebody else's key": (token("ES256", "k1", "mallory"), "signature is not"),
    "unknown kid": (token("ES256", "k2"), "not known to have"),
    "kid as a path": (token("ES256", "../../dev/null"), "not known to have"),
    "kid is no text": (forged({"alg": "ES256", "kid": 1}, claims()), "key id"),
    "kid without an end": (forged({"alg": "ES256", "kid": "k" * 257}, claims()), "key id"),
    "key of its own (jwk)": (
        token("ES256", "k3", "mallory", header={"jwk": jwk("ES256", "k3", "mallory")}),
        "not known to have",
    ),
    "key from elsewhere (jku)": (
        token("ES256", "k1", "mallory", header={"jku": "https://mallory.example/keys"}),
        "signature is not",
    ),
    "crit": (token(header={"crit": ["exp"], "exp": 1}), "not done here"),
    "crit, empty": (forged({"alg": "ES256", "kid": "k1", "crit": []}, claims()), "not done here"),
    "b64": (forged({"alg": "ES256", "kid": "k1", "b64": False}, claims()), "not done here"),
    "compressed": (token(header={"zip": "DEF"}), "not done here"),
    "made for signing out": (token(header={"typ": "logout+jwt"}), "gives no access"),
    "typ is no text": (forged({"alg": "ES256", "typ": 5}, claims()), "gives no access"),
    "another issuer": (token(iss="https://id.example.evil"), "another issuer's"),
    "issuer with a slash more": (token(iss=ISSUER + "/"), "another issuer's"),
    "no issuer": (token(iss=None), "does not say who issued"),
    "issuers in a list": (token(iss=[ISSUER]), "does not say who issued"),
    "another audience": (token(aud="other"), "somebody else"),
    "no audience": (token(aud=None), "somebody else"),
    "audience in part": (token(aud=AUDIENCE + "2"), "somebody else"),
    "audience as an object": (token(aud={AUDIENCE: 1}), "somebody else"),
    "no audience in the list": (token(aud=[]), "somebody else"),
    "expired": (token(exp=NOW_S - 60), "has expired"),
    "no end": (token(exp=None), "has no end"),
    "end is no number": (token(exp="9999999999"), "exp is no time"),
    "end is true": (token(exp=True), "exp is no time"),
    "end beyond reason": (token(exp=1e300), "exp is no time"),
    "negative end": (token(exp=-1), "exp is no time"),
    "not yet": (token(nbf=NOW_S + 61), "not valid yet (nbf)"),
    "issued in the future": (token(iat=NOW_S + 61), "not valid yet (iat)"),
    "no subject": (token(sub=None), "whose it is"),
    "empty subject": (token(sub=""), "whose it is"),
    "subject with a line break": (token(sub="a\nb"), "whose it is"),
    "subject without an end": (token(sub="a" * 256), "whose it is"),
    "too long": (token(more="x" * 9000), "longer than 8192"),
    "two parts": ("eyJhbGciOiJFUzI1NiJ9.e30", "neither an API key"),
    "encrypted, five parts": ("a.b.c.d.e", "neither an API key"),
    "padding": (token() + "=", "neither an API key"),
    "a line break at its end": (token() + "\n", "neither an API key"),
    "no JSON": ("e30x.e30x.x", "no JSON object"),
    "an array": (forged([], claims()), "no JSON object"),
    "claims in an array": (forged({"alg": "ES256"}, [claims()]), "no JSON object"),
    "nested without an end": (f"{b64(b'[' * 3000)}.{b64(b'[' * 2000)}.x", "no JSON object"),
    "not ASCII": ("é.é.é", "neither an API key"),
}


@pytest.mark.parametrize(("text", "answer"), ATTACKS.values(), ids=list(ATTACKS))
def test_an_attack_is_refused_for_its_reason(text: str, answer: str) -> None:
    with pytest.raises(TokenRefused) as caught:
        checked(text)
    assert answer in str(caught.value)
    assert caught.value.__cause__ is None
    assert text[:40] not in str(caught.value)


def test_what_was_said_of_the_algorithm_beforehand_is_not_believed() -> None:
    text = hmac_token(public_pem("ES256"), {"alg": "HS256", "kid": "k1"})
    with pytest.raises(TokenRefused, match="signature is not"):
        verify_token(Unverified(text, ISSUER, "ES256", "k1"), issuer(), KEYS, NOW_S)


def test_an_issuer_may_be_held_to_fewer_algorithms() -> None:
    with pytest.raises(TokenRefused, match="signs with EdDSA only"):
        checked(token(), algorithms=("EdDSA",))


@pytest.mark.parametrize(("aud"), [AUDIENCE, [AUDIENCE], ["other", AUDIENCE]])
def test_one_audience_of_several_will_do(aud: object) -> None:
    assert checked(token(aud=aud)).subject == "alice"


def test_an_id_of_any_kind_is_no_reason_to_refuse_a_token() -> None:
    assert checked(token(jti=7)).claims["jti"] == 7


def test_clocks_may_be_apart_by_the_skew_and_no_further() -> None:
    text = token(exp=NOW_S, nbf=NOW_S, iat=NOW_S)
    for wall_s in (NOW_S - 60, NOW_S + 59.9):
        assert checked(text, wall_s)
    with pytest.raises(TokenOutOfDate):
        checked(text, NOW_S + 60)
    with pytest.raises(TokenRefused, match="not valid yet"):
        checked(text, NOW_S - 60.1)
    with pytest.raises(TokenOutOfDate):
        checked(text, NOW_S, skew_s=0.0)


def test_a_token_without_a_key_id_needs_the_only_key_of_its_algorithm() -> None:
    assert checked(token("ES256", None)).subject == "alice"
    two = read_keyset(jwks(jwk("ES256", "k1"), jwk("ES256", "k2", "b")), ALGORITHMS)
    with pytest.raises(KeyUnknown):
        verify_token(read_token(token("ES256", None)), issuer(), two, NOW_S)


@given(st.binary(max_size=60), st.integers(0, 400), st.integers(1, 255))
def test_whatever_is_shown_is_refused_in_order(noise: bytes, place: int, change: int) -> None:
    good = token(exp=NOW_S + 601).encode()
    broken = bytearray(good)
    broken[place % len(good)] ^= change
    for text in (
        noise.decode("latin-1"),
        f"{b64(noise)}.{b64(noise)}.{b64(noise)}",
        broken.decode("latin-1"),
    ):
        with contextlib.suppress(TokenRefused):
            # what differs only in bits that base64 ignores is the same token
            assert dict(checked(text).claims) == claims(exp=NOW_S + 601)


# --- key sets ---


def test_private_parts_that_an_issuer_publishes_are_not_kept() -> None:
    numbers = private_key("ES256").private_numbers()
    leaked = jwk("ES256", "k1", d=b64(numbers.private_value.to_bytes(32, "big")))
    key = read_keyset(jwks(leaked), ALGORITHMS).find("k1", "ES256")
    assert key is not None
    assert not hasattr(key.key, "sign")
    assert b'"d"' not in b"".join(part for *_, part in read_keyset(jwks(leaked), ALGORITHMS).fingerprint)


@pytest.mark.parametrize(
    "bad",
    [
        jwk("RS1024", "short"),
        jwk("ES384", "k"),
        jwk("Ed448", "k"),
        {"kty": "oct", "kid": "k", "k": "c2VjcmV0", "alg": "HS256"},
        {"kty": "oct", "kid": "k", "k": "c2VjcmV0"},
        jwk("RS256", "k", alg="HS256"),
        jwk("RS256", "k", alg="PS256"),
        jwk("RS256", "k", alg=["RS256"]),
        jwk("ES256", "k", use="enc"),
        jwk("ES256", "k", key_ops=["sign"]),
        jwk("ES256", "k", key_ops="verify"),
        jwk("ES256", "k", x="AAAA"),
        {"kty": "EC", "crv": "P-256", "kid": "k"},
        {"kty": ["EC"], "crv": {"P-256": 1}},
        jwk("ES256", "k" * 257),
        {**jwk("ES256", None), "kid": 7},
        "key",
        None,
    ],
)
def test_keys_that_must_not_verify_are_left_out(bad: Any) -> None:
    good = jwk("EdDSA", "e1")
    assert set(read_keyset(jwks(bad, good), ALGORITHMS).keys) == {("e1", "EdDSA")}
    with pytest.raises(BadKeySet, match="can be used with"):
        read_keyset(jwks(bad), ALGORITHMS)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"keys":{}}', b'{"keys":[]}', b"[" * 999, jwks(*[{}] * 65)]
)
def test_what_is_no_key_set_is_said(body: bytes) -> None:
    with pytest.raises(BadKeySet):
        read_keyset(body, ALGORITHMS)


def test_a_key_id_used_twice_keeps_its_first_key_of_each_algorithm() -> None:
    found = read_keyset(jwks(jwk("ES256", "k", "a"), jwk("ES256", "k", "b"), jwk("EdDSA", "k")), ALGORITHMS)
    assert set(found.keys) == {("k", "ES256"), ("k", "EdDSA")}
    assert verify_token(read_token(token("ES256", "k", "a")), issuer(), found, NOW_S).subject == "alice"


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda e: (
            st.lists(e)
            | st.dictionaries(
                st.sampled_from(["keys", "kty", "kid", "crv", "x", "y", "n", "e", "alg", "use", "key_ops"]), e
            )
        ),
    )
)
def test_any_document_is_a_key_set_or_is_refused(document: Any) -> None:
    for body in (orjson.dumps(document), orjson.dumps({"keys": [document]})) if _small(document) else ():
        with contextlib.suppress(BadKeySet):
            assert read_keyset(body, ALGORITHMS).keys


def _small(value: Any) -> bool:
    """Whether orjson takes its integers."""
    if isinstance(value, int):
        return abs(value) < 2**63
    if isinstance(value, dict):
        return all(map(_small, value.values()))
    return all(map(_small, value)) if isinstance(value, list) else True
