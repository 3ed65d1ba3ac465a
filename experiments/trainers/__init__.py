"""Trainers: their configurations priced, searches within what they can say, and how much memory to keep free."""
