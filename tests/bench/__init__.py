"""Loads with figures: ``python -m tests.bench`` runs them in full, ``tests/integration/test_load.py`` small."""
