"""Runs each stream's request at an engine, and reads its usage."""
