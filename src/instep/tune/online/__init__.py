"""Online."""
