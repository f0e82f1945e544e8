"""Close the gap."""
