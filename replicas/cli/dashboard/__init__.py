"""The page that shows a running cluster (docs/how-to/dashboard.md).

``frame`` makes the contents of the page at one moment from the sight of ``spe top``; ``timeline`` keeps the past;
``hub`` makes frames while the cluster runs; ``door`` accepts connections at a limited rate; ``site`` answers requests.
The page itself is in ``static``.
"""
