"""The commands, the study engine and the report."""
