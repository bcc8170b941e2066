"""Tools that the Makefile calls: the environment, a browser for the tests, the example of the first page."""
