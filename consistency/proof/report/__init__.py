"""Renders the proof: the report's data model, its page, its texts."""
