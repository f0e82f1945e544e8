"""Benchmarks: `python -m benchmarks NAME`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # benchmarks import each other by their plain names
sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "tools"))
