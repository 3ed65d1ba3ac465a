"""Configurations of other trainers, read as what is trained and how it is cut, and written from plans."""
