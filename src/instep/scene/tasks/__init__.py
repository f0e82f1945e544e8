"""Tasks: what should be done in a scene, how far it is done, and what went wrong."""
