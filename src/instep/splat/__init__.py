"""Appearance: 3D Gaussians on bodies."""
