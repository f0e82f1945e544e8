"""Reality and its imperfections: robots, links, recordings, followers."""
