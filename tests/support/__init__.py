"""What several test files share: generators, oracles, monitors, small plans."""
