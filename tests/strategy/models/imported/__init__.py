"""Tests of programs of other frameworks."""
