"""Two runs side by side, or a run beside a table of the user's: are their results the same?"""
