"""The dynamic twin."""
