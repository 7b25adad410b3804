"""Parts of report_corpus.py: tampered variants, and the official checker as a peer."""
