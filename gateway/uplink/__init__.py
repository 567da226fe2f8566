"""This gateway as an agent of another gateway, its parent (PROTOCOL §7.6)."""
