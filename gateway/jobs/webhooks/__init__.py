"""Webhooks: where they may go, what is sent, and who sends it when."""
