"""A step that all workers make together: the barrier on the parameter servers."""
