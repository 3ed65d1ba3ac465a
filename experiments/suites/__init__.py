"""Suites: lists of experiments as data, and what runs them one by one into the run store."""
