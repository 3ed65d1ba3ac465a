"""bounds: what no choice takes or holds less than: the work of every op, the layout problem of three layers."""
