"""Limits that several gateways keep together: the rules, and the engines that hold what was leased."""
