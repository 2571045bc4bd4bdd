"""Rules by family.  Each tuple is tried in its order, most specific first."""
