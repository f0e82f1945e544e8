"""Scripted experts of the tasks."""
