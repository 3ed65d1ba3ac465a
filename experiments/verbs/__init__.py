"""One verb of the command per file: `add_arguments(parser)` and `run(args) -> int`."""
