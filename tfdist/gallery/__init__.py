"""Models to copy from, each a file with the interface of `model_file`: --model=NAME takes one."""
