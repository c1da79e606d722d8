"""One worker of a scheme against plain TensorFlow: what `bash run.sh --check` does."""
