"""What was decided about a graph and why, as data (`CompileReport`) and as text."""
