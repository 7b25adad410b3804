"""Says what happened, under rules that others can check."""
