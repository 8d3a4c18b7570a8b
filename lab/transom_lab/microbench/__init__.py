"""Micro-benchmarks of the kernels, the memory core and the scheduler, each without the rest of the engine."""
