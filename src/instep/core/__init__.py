"""The foundation: states, worlds, episodes, knobs, statistics. NumPy only."""
