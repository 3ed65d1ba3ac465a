"""The version of the distribution, of the command and of what its ranks must share."""

VERSION = "0.1.0"
