"""Why an output is tentative, late or silent now: a chain from the client to the cause, out of statuses.  Pure."""
