"""Encodes and decodes elements, messages and states.  Does not use sockets."""
