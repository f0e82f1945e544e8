"""The parts of SciPy that are used here, typed as arrays."""
