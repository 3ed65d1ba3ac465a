"""c_interface: the exchange for programs that are not in Python."""
