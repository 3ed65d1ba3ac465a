"""Our CUDA kernels on the host: the same sources, compiled by g++ under the address sanitiser, a fibre per thread."""
