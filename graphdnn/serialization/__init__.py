"""Saved executables: one file that holds a compiled graph, written by `Executable.save` and read by `graphdnn.load`."""
