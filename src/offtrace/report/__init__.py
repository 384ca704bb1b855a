"""What the experiments show, for people: `offtrace.report.charts` draws it (needs the `report` extra)."""
