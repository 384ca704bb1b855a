"""Reports for people: charts, tables and one page (needs the `report` extra)."""
