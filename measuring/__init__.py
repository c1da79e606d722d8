"""What measuring programs share: folders and their runs, hosts on one machine, tables, pictures."""
