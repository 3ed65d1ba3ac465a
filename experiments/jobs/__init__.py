"""MPI jobs: what every rank of training, profiling and timing does."""
