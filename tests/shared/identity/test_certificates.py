"""Agent certificates: issued, read back, refused."""

from dataclasses import replace
from typing import Any

import pytest
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st

from shared.identity import (
    CERTIFICATE_LIFE_S,
    AgentCertificate,
    is_name,
    public_bytes,
    verify_certificate,
)
from shared.identity.certificates import read_kept
from shared.protocol.errors import CertificateInvalid, CertificateOutOfDate
from tests.support.identities import (
    AGENT_KEY,
    GATEWAY,
    NAME,
    OTHER_GATEWAY,
    SERIAL,
    WALL_S,
    certificate_of,
    key_of,
)

AGENT_PUBLIC = public_bytes(AGENT_KEY)


def verify(der: bytes, **changes: Any) -> AgentCertificate:
    arguments: dict[str, Any] = {
        "gateway_key": GATEWAY.public_key,
        "name": NAME,
        "public_key": AGENT_PUBLIC,
    }
    return verify_certificate(der=der, **(arguments | changes))


def test_a_certificate_verifies_as_what_was_issued() -> None:
    issued = certificate_of()
    assert verify(issued.der) == issued
    assert issued.serial == SERIAL
    assert issued.not_after_s == WALL_S + CERTIFICATE_LIFE_S


def test_issuing_twice_gives_the_same_bytes() -> None:
    assert certificate_of().der == certificate_of().der


def test_a_certificate_names_its_agent_in_a_spiffe_uri() -> None:
    parsed = x509.load_der_x509_certificate(certificate_of().der)
    names = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    assert uris == [f"spiffe://trunkline/{GATEWAY.id}/agent/{NAME}"]
    assert not parsed.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"gateway_key": OTHER_GATEWAY.public_key}, "not issued by this gateway"),
        ({"gateway_key": bytes(31)}, "not issued by this gateway"),
        ({"name": "gpu-8"}, "for agent 'gpu-7', not for 'gpu-8'"),
        ({"public_key": public_bytes(key_of("other"))}, "another key"),
    ],
)
def test_a_certificate_of_somebody_else_is_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(CertificateInvalid, match=complaint):
        verify(certificate_of().der, **changes)


def test_a_certificate_is_valid_to_its_last_second_and_no_longer() -> None:
    issued = certificate_of()
    issued.check_dates(issued.not_after_s)
    with pytest.raises(CertificateOutOfDate, match="expired 2027-04-15 08:00 UTC: join again") as caught:
        issued.check_dates(issued.not_after_s + 1)
    assert caught.value.retry_after_s == 60
    assert (caught.value.name, caught.value.not_after_s) == (NAME, issued.not_after_s)


def test_a_certificate_of_the_future_is_refused_with_a_word_about_clocks() -> None:
    issued = certificate_of()
    issued.check_dates(issued.not_before_s)
    with pytest.raises(CertificateOutOfDate, match="valid only from 2027-01-15 07:55 UTC: check the clocks"):
        issued.check_dates(issued.not_before_s - 1)


def test_tolerance_widens_validity_on_both_sides() -> None:
    issued = certificate_of()
    issued.check_dates(issued.not_before_s - 60, early_s=60)
    issued.check_dates(issued.not_after_s + 60, late_s=60)
    with pytest.raises(CertificateOutOfDate):
        issued.check_dates(issued.not_after_s + 60, early_s=60)


def test_a_certificate_is_worn_in_the_last_third_of_its_life() -> None:
    issued = certificate_of()
    worn_from_s = issued.not_after_s - (issued.not_after_s - issued.not_before_s) / 3
    assert not issued.needs_renewal(worn_from_s - 1)
    assert issued.needs_renewal(worn_from_s + 1)


@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_a_certificate_with_any_byte_changed_is_refused(flip: int) -> None:
    """Flips that reach the parser's own complaints: a strange version, a negative serial number."""
    original = certificate_of().der
    for index in range(len(original)):
        der = bytearray(original)
        der[index] ^= flip
        with pytest.raises(CertificateInvalid):
            verify(bytes(der))


@given(st.integers(min_value=0, max_value=len(certificate_of().der) - 1))
def test_a_certificate_cut_off_anywhere_is_refused(length: int) -> None:
    with pytest.raises(CertificateInvalid):
        verify(certificate_of().der[:length])


@given(st.binary(max_size=5000))
def test_no_bytes_make_verification_fail_otherwise(der: bytes) -> None:
    with pytest.raises(CertificateInvalid):
        verify(der)


@pytest.mark.parametrize("name", ["a", "gpu-7", "0", "rack1.gpu_2", "a" * 63])
def test_names_of_hosts_can_name_agents(name: str) -> None:
    assert is_name(name)
    assert verify(certificate_of(name).der, name=name).name == name


@pytest.mark.parametrize("name", ["", "-a", ".a", "_a", "A", "a b", "a/b", "a\n", "é", "a" * 64, "a%2f"])
def test_other_names_cannot(name: str) -> None:
    assert not is_name(name)


def test_a_certificate_that_was_taken_is_read_without_its_issuer() -> None:
    made = certificate_of()
    assert replace(read_kept(made.der), issuer=made.issuer) == made
    for junk in (b"", b"x", made.der[:-1], made.der + b"x"):
        with pytest.raises(CertificateInvalid):
            read_kept(junk)
