"""Kernels that may be faster than those of edgeloss/_kernels/triton. No GPU has run them.

Each is launched with the arguments of the kernels that it would replace, in a call of the loss that has run. A kernel
of the package that ran on a GPU is replaced only by one that ran faster there.
"""
