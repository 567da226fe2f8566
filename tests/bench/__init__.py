"""Loads with figures: in full by ``python -m tests.bench``, small in ``tests/integration/test_load.py``."""
