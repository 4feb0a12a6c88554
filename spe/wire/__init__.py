"""Bytes <-> elements, messages and states.  No sockets here."""
