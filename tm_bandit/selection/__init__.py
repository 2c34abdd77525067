"""The bandit engine: select, sample, update, and an honest verdict."""
