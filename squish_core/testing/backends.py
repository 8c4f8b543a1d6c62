class BackendSuite:
    pass
