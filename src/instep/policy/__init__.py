"""What decides: scripted policies, and later trained and remote ones."""
