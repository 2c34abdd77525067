"""What is reproduced: the bounds of the paper and of its authors' program, apart from our own."""
