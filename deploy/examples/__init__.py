"""Models of your own, as examples: copy one and change it."""
