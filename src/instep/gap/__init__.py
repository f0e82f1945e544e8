"""Measure and judge."""
