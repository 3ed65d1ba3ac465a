"""Long randomised checks, each a command: `python -m tests.campaigns NAME --cases N --seed S --json`."""
