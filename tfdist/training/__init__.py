"""The program around a scheme: sessions, checkpoints, tests, what a run prints and records."""
