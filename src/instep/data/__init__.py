"""Episodes on disk."""
