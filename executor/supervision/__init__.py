"""supervision: processes of a job: how they start, what they tell of themselves, who ends them."""
