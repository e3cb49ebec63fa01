"""The engine that plans and runs a study."""
