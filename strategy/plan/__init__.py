"""plan: the one artefact of a search, its file, and what verifies it."""
