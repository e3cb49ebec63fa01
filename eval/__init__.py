"""What is measured; never changes a weight."""
