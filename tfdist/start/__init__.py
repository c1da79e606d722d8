"""How a program starts: TensorFlow without banners, flags, console output, the launcher."""
