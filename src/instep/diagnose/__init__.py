"""Say why two worlds differ: failure modes, candidate causes, attribution."""
