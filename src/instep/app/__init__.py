"""The doors: command line, report, demo, robot."""
