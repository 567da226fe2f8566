"""Operations on the audit log: it is verified and read."""

from gateway.api.admin.resources.request import AdminRequest, Json
from gateway.observability.audit import Anchor, trusted_keys, verify
from gateway.observability.audit.reading import read_page
from gateway.observability.audit.segments import DIRECTORY
from gateway.storage import Store


def verify_audit(store: Store, asked: AdminRequest) -> Json:
    """Whether the log is whole, what is wrong with it, and its end, to be kept elsewhere. Reads all of it."""
    expect = asked.body.get("expect")
    seq, _, digest = (expect or "").partition(":")
    anchor = None if expect is None else Anchor(int(seq), digest.lower())
    report = verify(store.state_dir / DIRECTORY, trusted_keys(store), anchor)
    return {
        "sound": report.sound,
        "findings": report.findings,
        "notes": report.notes,
        "lines": report.lines,
        "segments": report.segments,
        "first": report.first_seq,
        "last": report.last_seq,
        "end": f"{report.last_seq}:{report.last_hash}",
    }


def export_audit(store: Store, asked: AdminRequest) -> Json:
    """Lines as they are in the log, the oldest first, from a moment on and of some kinds; ``next`` goes on,
    also where an answer found none."""
    body = asked.body
    kinds = tuple(filter(None, body.get("kind", "").split(",")))
    found = read_page(
        store.state_dir / DIRECTORY, body.get("since", ""), kinds, body.get("after"), body.get("limit")
    )
    return {"lines": found.lines, "next": found.next}
