"""frontend: graphs and global tensors, for programs that their users write."""
