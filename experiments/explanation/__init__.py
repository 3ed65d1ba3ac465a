"""Why a plan takes as long as it does, and why another was not chosen."""
