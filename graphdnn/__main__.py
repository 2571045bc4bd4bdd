"""`python -m graphdnn` is the command `graphdnn`."""

import sys

from graphdnn.commands.cli import main

if __name__ == "__main__":
    sys.exit(main())
