"""Webhooks in the store: events that wait for their delivery, and the secrets that sign them."""
