"""What goes in and out: problems and submissions of other judges, rungs in other people's formats."""
