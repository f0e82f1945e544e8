"""The foundation: states, worlds, episodes, parameters, statistics. NumPy only."""
