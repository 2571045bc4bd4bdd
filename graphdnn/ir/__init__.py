"""What a graph is: types, operations with their one executable definition, immutable graphs, regions."""

import time

LOADED = time.time()
"""When this process began to load the package's code, in seconds since the epoch: source that was written later is not
what runs."""
