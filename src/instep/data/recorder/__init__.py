"""The crash-safe recorder."""
