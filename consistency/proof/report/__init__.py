"""What is rendered from the proof: the report's data model, its page, its words."""
