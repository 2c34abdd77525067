"""The reproduced bounds: those of the paper and of its authors' program, kept apart from our own."""
