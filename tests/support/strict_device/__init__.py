"""A device with streams that forbids what no event allows, and does the rest in any order that events allow."""
