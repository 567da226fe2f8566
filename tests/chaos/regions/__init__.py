"""Game days: regions of child gateways that are cut off, killed and come back, with streams on them."""
