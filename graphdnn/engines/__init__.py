"""Ways to run a region: the contract, and one folder an engine."""
