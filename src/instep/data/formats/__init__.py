"""Readers of foreign recording formats."""
