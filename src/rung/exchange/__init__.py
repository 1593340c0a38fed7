"""Problems and submissions in other projects' formats, and rungs exported to them."""
