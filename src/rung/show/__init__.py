"""Tables, charts and the report page, drawn from given data."""
