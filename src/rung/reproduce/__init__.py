"""The five documents: their studies, climbs and attention over ranks."""
