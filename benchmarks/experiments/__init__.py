"""The evaluation of the DPC paper, with this system: `python -m benchmarks.experiments NAME --out FOLDER`."""
