"""Images to scenes."""
