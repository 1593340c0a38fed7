"""Tables, charts and the report page, drawn from the data that they are handed."""
