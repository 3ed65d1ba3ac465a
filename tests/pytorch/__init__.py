"""What PyTorch itself computes: figures that it gave once, and the program that makes them again."""
