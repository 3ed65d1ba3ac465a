"""`python -m experiments` is the command `sbplan`."""

import sys

from experiments.entry import main

if __name__ == "__main__":
    sys.exit(main())
