class CodecSuite:
    pass
