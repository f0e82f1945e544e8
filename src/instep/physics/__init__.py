"""Engines, each a Simulator."""
