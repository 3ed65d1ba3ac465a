"""Hugging Face's configs (`config.json`) as models: a table per family says what its keys mean."""
