"""Tests of Hugging Face's configs."""
