"""Fuzzers. A module ``fuzz_NAME`` here offers ``fuzz(random, inputs) -> int``.

It tries about ``inputs`` inputs drawn from ``random`` alone, returns how many there were (frames, for the
protocol), and raises if anything but a documented error comes out. `tests.fuzz.runner` runs them: small as
tests (``test_fuzzers.py``), at length by ``tests/run fuzz``.
"""
