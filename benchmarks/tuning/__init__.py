"""Parts of tune_replay.py."""
