"""YAML experiments; the header of each file is the command that runs it."""
