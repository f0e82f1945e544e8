"""Torque."""
