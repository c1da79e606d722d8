"""What every program of this collection needs, and no training scheme is about."""

from tfdist.start import standard_streams  # noqa: F401  (before anything else opens a file)
