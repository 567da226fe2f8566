"""The training of the demo model and its corpus; `README.md` says how to run it."""
