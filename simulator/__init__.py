"""simulator: a program under a virtual clock."""
