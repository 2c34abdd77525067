"""Feature networks behind one small registry."""
