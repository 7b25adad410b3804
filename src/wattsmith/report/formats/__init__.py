"""Readers and writers for the files of MLPerf Power, to the last byte: what is read can be written back unchanged."""
