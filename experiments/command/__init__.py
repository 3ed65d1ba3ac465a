"""What verbs share: flags, what is said and where it is written, and how they end."""
