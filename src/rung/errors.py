"""The one kind of error that a user of rung is meant to see."""


class RungError(Exception):
    """A foreseeable mistake, told in one sentence: the thing, the reason, the mend."""
