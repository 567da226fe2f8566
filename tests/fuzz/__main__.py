"""``python -m tests.fuzz``: the fuzzers at length, then the OpenAPI document by schemathesis (alone:
``described``), then every Hypothesis test with many examples.

A failure prints the command that runs its round again.
"""

import argparse
import os
import subprocess
import sys
import time

from tests.fuzz import described, runner

_REPORT_S = 10.0


def _rounds(chosen: tuple[str, ...], arguments: argparse.Namespace) -> int:
    tried: dict[str, int] = dict.fromkeys(chosen, 0)
    began_s = told_s = time.monotonic()
    work = runner.run(chosen, arguments.inputs, arguments.seconds, arguments.seed, arguments.workers)
    for done in work:
        tried[done.name] += done.inputs
        if done.failure is not None:
            again = f"python -m tests.fuzz {done.name} --once --seed {done.seed}"
            sys.stdout.write(f"{done.name} failed; again with: {again}\n{done.failure}")
            return 1
        if time.monotonic() - told_s > _REPORT_S:
            told_s = time.monotonic()
            sys.stdout.write(f"{sum(tried.values()):>12,} inputs after {told_s - began_s:.0f} s\n")
            sys.stdout.flush()
    for name, inputs in tried.items():
        sys.stdout.write(f"{name:<24}{inputs:>14,} inputs, no undocumented error\n")
    sys.stdout.write(f"{'together':<24}{sum(tried.values()):>14,} in {time.monotonic() - began_s:.0f} s\n")
    return 0


def _machines() -> int:
    """Every Hypothesis test with the profile ``long``."""
    command = [sys.executable, "-m", "pytest", "tests", "-q", "-m", "hypothesis"]
    return subprocess.run(command, env=os.environ | {"HYPOTHESIS_PROFILE": "long"}, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/run fuzz", description=__doc__)
    parser.add_argument("fuzzers", nargs="*", help=f"of {', '.join(runner.names())}; default all")
    parser.add_argument("--inputs", type=int, default=10_000_000, help="how many together")
    parser.add_argument("--seconds", type=float, default=3600.0, help="at most this long")
    parser.add_argument("--examples", type=int, default=100, help="of schemathesis, for each operation")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--once", action="store_true", help="one round, here, from --seed")
    arguments = parser.parse_args()
    if arguments.fuzzers == ["described"]:
        return described.run(arguments.examples, arguments.seconds)
    chosen = tuple(arguments.fuzzers) or runner.names()
    if unknown := set(chosen) - set(runner.names()):
        parser.error(f"no such fuzzer: {', '.join(sorted(unknown))}")
    if not chosen:
        parser.error("there are no fuzzers")
    if arguments.once:
        done = runner.run_round(chosen[0], arguments.seed)
        sys.stdout.write(done.failure or f"{done.inputs} inputs, no undocumented error\n")
        return 1 if done.failure else 0
    code = _rounds(chosen, arguments)
    if code or arguments.fuzzers:
        return code
    return described.run(arguments.examples, arguments.seconds) or _machines()


if __name__ == "__main__":
    sys.exit(main())
