"""The kernels of CPUs and GPUs: which calls they serve, and how."""
