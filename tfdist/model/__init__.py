"""A model and its variables, built again on the values that a scheme trains."""
