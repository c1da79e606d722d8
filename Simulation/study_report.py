def publish(studies):
    pass
