"""The experiment closing: every way to close the gap on the same perturbed robots, with what it costs."""
