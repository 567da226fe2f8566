"""Several gateways on one PostgreSQL store and one Redis, with faults of processes and of the paths between.

``plan`` draws faults from a seed · ``house`` has the processes and paths · ``strikes`` does to them what was
drawn · ``load`` are the clients · ``findings`` holds what they saw against what must hold · ``run`` is one
run.
"""
