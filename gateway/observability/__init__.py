"""Metrics, logs and the audit log."""
