"""Reports: one self-contained HTML page and its figures; a module per kind of page."""
