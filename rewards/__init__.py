"""What a text is worth: scoring, alignment, task verifiers and the calibration reward."""
