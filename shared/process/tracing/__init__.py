"""Traces: which requests have one, what of them is recorded, and how it leaves the process."""
