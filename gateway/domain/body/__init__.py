"""Edits of a request's body, as places in its bytes. Pure."""
