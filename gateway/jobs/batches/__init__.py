"""Batches: their files read into jobs, and the answers of these written into files."""
