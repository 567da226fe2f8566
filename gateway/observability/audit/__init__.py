"""The audit log: who did what, when, and where it ran; never content.

One JSON object a line in segments, each line naming the SHA-256 of the one before; a head beside them, signed
with the gateway's key, names the last. So whatever is changed, removed, added or put elsewhere afterwards is
found (:mod:`gateway.observability.audit.verify`). Any process that has the state may append, one at a time.
What a running gateway alone needs, a writer and its figures, is imported from its modules: commands do
without.
"""

from gateway.observability.audit.acts import append_entries, append_pending_acts, audit_files, trusted_keys
from gateway.observability.audit.files import AuditFiles, AuditUnwritable, Retention
from gateway.observability.audit.records import RequestFacts, cost_of, facts_of, why_not
from gateway.observability.audit.verify import Anchor, AuditReport, verify

__all__ = [
    "Anchor",
    "AuditFiles",
    "AuditReport",
    "AuditUnwritable",
    "RequestFacts",
    "Retention",
    "append_entries",
    "append_pending_acts",
    "audit_files",
    "cost_of",
    "facts_of",
    "trusted_keys",
    "verify",
    "why_not",
]
