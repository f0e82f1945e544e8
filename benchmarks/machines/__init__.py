"""Recorded machines of the recordings benchmark, one module per kind."""
