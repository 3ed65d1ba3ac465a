"""How ranks move arrays to one another: one interface, and one file per medium."""
