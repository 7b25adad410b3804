"""What the record is held against: real networks, and how far they lie from what was measured."""
