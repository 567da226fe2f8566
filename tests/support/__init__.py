"""What tests stand on: a manual clock, a scripted engine, a faulty network, real processes, leak checks."""
