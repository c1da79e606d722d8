"""What every program of this collection needs, and no training scheme is about."""
