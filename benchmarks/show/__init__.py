"""What an issue promises, measured: each module writes docs/results/NAME.json."""
