"""Ours beside what people would take instead: same engine, same load, one machine, one run.

Each round starts every peer anew, runs all workloads through it and stops it; every second round goes the
other way round; what is told are medians over the rounds. Engine and load are two small C programs (``src``),
so that they are never what is measured. Where there are two cores, every process of a peer shares the first
one and the engine and the load have the second, so that a latency holds all that a peer costs; or what of a
tunnel runs at its far end, which is another machine in service, is moved to the second one. CPU is user
and system time of all processes of a peer.
"""
