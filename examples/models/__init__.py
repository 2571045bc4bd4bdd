"""Real networks written with the builder, shared by examples, tests and benchmarks."""
