"""One file per verb of the command line; each verb is a typed function."""
