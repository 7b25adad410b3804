"""What the benchmarks of the feeder share."""
