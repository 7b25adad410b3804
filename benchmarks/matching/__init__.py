"""Parts of match_accuracy.py."""
