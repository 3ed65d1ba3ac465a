"""Closed-form models of step time and memory of training jobs on real clusters, and their calibration."""
