"""Shapes that vary: one function, compiled anew for each signature of its inputs, with sizes rounded up where asked."""
