"""Guess."""
