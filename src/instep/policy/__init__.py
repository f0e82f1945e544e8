"""What decides."""
