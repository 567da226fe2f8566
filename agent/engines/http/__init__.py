"""Engines that speak HTTP."""
