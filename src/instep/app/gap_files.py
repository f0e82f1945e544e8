"""The tables a gap leaves behind: every curve and every compared run, as parquet."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from instep.gap.records import Gap


def write_curves(folder: Path, gap: Gap) -> Path:
    """curves.parquet: kind (gap, floor), channel, unit, horizon [s], its name, value, low, high, n."""
    rows: list[dict[str, object]] = []
    for kind, curves in (("gap", gap.curves), ("floor", gap.floor)):
        for curve in curves.values():
            for horizon, name, e in zip(curve.horizons, curve.names(), curve.estimates, strict=True):
                place = {"kind": kind, "channel": curve.name, "unit": curve.unit, "seconds": horizon, "horizon": name}
                rows.append({**place, "value": e.value, "low": e.low, "high": e.high, "n": e.n})
    path = folder / "curves.parquet"
    if not rows:
        return path
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def write_runs(folder: Path, gap: Gap) -> Path | None:
    """runs.parquet: run, time [s], and each channel as measured (real.NAME) and as replayed (sim.NAME)."""
    if not gap.pairs:
        return None
    path = folder / "runs.parquet"
    labels = gap.pairs[0].real.spec.q.labels
    names = pa.array([pair.name or str(i) for i, pair in enumerate(gap.pairs)])
    counts = [len(pair.real) for pair in gap.pairs]
    codes = pa.array(np.repeat(np.arange(len(gap.pairs), dtype=np.int32), counts))
    columns = {"run": pa.DictionaryArray.from_arrays(codes, names)}
    columns["time"] = pa.array(np.concatenate([np.asarray(pair.real.t, np.float32) for pair in gap.pairs]))
    for i, label in enumerate(labels):
        for side in ("real", "sim"):
            values = np.concatenate([getattr(pair, side).q[:, i].astype(np.float32) for pair in gap.pairs])
            columns[f"{side}.{label}"] = pa.array(values)
    # Floats of sensors do not repeat: dictionaries would cost time and save nothing.
    pq.write_table(pa.table(columns), path, use_dictionary=False, compression="zstd", compression_level=1)
    return path
