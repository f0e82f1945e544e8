"""Robots: drivers, links, limits, recordings and imperfections."""
