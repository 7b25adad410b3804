"""What the benchmarks found, one file each, and the page that is made of them."""
