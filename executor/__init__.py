"""executor: a program under the wall clock."""
