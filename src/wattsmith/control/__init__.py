"""Changes the machine and puts it back."""
