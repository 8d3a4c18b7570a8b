"""Micro-benchmarks of kernels, memory core and scheduler."""
