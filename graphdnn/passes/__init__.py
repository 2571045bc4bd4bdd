"""Graph to graph, graph to candidate regions, candidates to cover."""
