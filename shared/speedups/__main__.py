"""``python -m shared.speedups`` says whether the native functions are in use."""

import sys

from shared.speedups.build import describe_build

sys.stdout.write(f"== {describe_build()}\n")
