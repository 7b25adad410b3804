"""The page that a person keeps open: power, jobs, machines, the record, matches and plans."""
