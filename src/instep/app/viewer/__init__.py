"""The web viewer: messages, what is shown of scenes and recordings, and the server of its page."""
