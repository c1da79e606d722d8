"""What a scheme is written with: the seam, pulls and pushes, tables, rules for local steps."""
