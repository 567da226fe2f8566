"""What runs Trunkline elsewhere, and the scripts that make what is shipped; not installed."""
