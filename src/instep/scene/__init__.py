"""What is there: a folder with a model, its roles, cameras and parameters."""
