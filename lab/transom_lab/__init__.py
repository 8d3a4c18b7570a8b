"""Test and measuring equipment for Transom: simulator, fault world, fuzzer, stories, micro-benchmarks."""
