"""Strides for every value: which images are channels-last, what each op needs, and conversions where readers differ."""
