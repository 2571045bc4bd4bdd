"""The cuDNN engine: one region becomes one cuDNN operation graph.  Nothing else in graphdnn imports `cudnn`."""
