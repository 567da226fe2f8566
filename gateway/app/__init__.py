"""Puts a gateway together from its settings, and lets it run."""
