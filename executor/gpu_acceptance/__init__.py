"""GPU acceptance: all that a first device must show, by one command: `python -m executor.gpu_acceptance --json OUT`."""
