"""What a graph is: types, operations with their one executable definition, immutable graphs, regions."""
