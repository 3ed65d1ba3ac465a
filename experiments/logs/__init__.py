"""Logs that other programs leave: steps of trainers and times of collectives, and the calibration that they correct."""
