"""Programs that let one tool measure, each in a process of its own: see measure_peers.py."""
