"""Models to copy from, each one file in the interface of `models`: --model=NAME takes one."""
