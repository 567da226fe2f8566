"""Plain data and errors that several rooms speak of."""
