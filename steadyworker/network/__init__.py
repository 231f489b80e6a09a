"""
The parts that adapters for brokers on a network share.

These parts are the base of an adapter, the I/O thread, URLs, back-off, errors, and the life of a consuming connection.
"""
