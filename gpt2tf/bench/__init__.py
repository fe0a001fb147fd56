"""Benchmarks: speed and memory, beside what the machine can do and beside peers."""
