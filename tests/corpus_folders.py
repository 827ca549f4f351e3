"""Prepared corpora whose files tests overwrite."""

import hashlib
import json
from pathlib import Path


def update_digests(folder: Path) -> None:
    """Writes the digests of overwritten shards into meta.json, as if they had been prepared like that."""
    meta = json.loads((folder / "meta.json").read_text())
    for shards in meta["shards"].values():
        for shard in shards:
            shard[-1] = hashlib.sha256((folder / shard[0]).read_bytes()).hexdigest()
    (folder / "meta.json").write_text(json.dumps(meta))
