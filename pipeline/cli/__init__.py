"""The command line: arguments, one call, one print."""
