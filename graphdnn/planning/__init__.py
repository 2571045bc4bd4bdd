"""From a graph to a cover with plans: by estimates, by timing, within limits on memory and time."""
