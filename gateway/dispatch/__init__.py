"""Carries requests out: admission, assignment, attempts, failover, recovery, preemption, loading."""
