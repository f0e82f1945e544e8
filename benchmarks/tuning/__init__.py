"""Parts of the tune benchmark: worlds with known parameters, jobs of one process each, peers."""
