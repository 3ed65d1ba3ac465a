"""`python -m experiments` is the command `sbplan`."""

from experiments.entry import leave, main

if __name__ == "__main__":
    leave(main())
