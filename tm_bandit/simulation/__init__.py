"""Arms with a known truth, and the benchmark that runs every policy and bound on them."""
