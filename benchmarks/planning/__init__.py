"""Parts of plan_quality.py."""
