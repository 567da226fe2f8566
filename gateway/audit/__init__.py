"""The audit log: who did what, when, and where it ran; never content.

One JSON object a line in segments, each line naming the SHA-256 of the one before; a head beside them, signed
with the gateway's key, names the last. So whatever is changed, removed, added or put elsewhere afterwards is
found (:mod:`gateway.audit.verify`). Any process that has the state may append, one at a time.
"""

from gateway.audit.acts import take_up
from gateway.audit.figures import AuditFigures
from gateway.audit.files import AuditFiles, AuditUnwritable, Keep
from gateway.audit.opening import audit_files, audit_writer, take_up_acts, trusted_keys
from gateway.audit.records import Head, Signer
from gateway.audit.requests import RequestFacts, facts_of
from gateway.audit.verify import Anchor, Report, verify
from gateway.audit.writer import AuditSettings, AuditWriter

__all__ = [
    "Anchor",
    "AuditFigures",
    "AuditFiles",
    "AuditSettings",
    "AuditUnwritable",
    "AuditWriter",
    "Head",
    "Keep",
    "Report",
    "RequestFacts",
    "Signer",
    "audit_files",
    "audit_writer",
    "facts_of",
    "take_up",
    "take_up_acts",
    "trusted_keys",
    "verify",
]
