"""Gaussian and camera files."""
