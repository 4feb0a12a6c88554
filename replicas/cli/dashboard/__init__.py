"""The page that shows a running cluster (docs/how-to/dashboard.md).

``frame`` says what the page shows at one moment, out of what ``spe top`` draws; ``timeline`` keeps the past; ``hub``
makes frames while the cluster runs; ``door`` accepts connections, at a limited rate; ``site`` answers them.  The page
itself is in ``static``.
"""
