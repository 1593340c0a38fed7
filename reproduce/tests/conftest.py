"""Results of these tests go to a store of their own."""

from suite import *  # noqa: F403
