"""LeRobot datasets, versions 3.0 and 2.1."""
