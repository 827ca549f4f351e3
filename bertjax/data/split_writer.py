"""One split of a prepared corpus on its way to the disk."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np

from bertjax.data.corpus import CorpusShard, SplitSize, offsets
from bertjax.data.parts import SplitPart


class SplitWriter:
    """Appends documents of one split to Arrow files of about `shard_tokens` tokens, hashing them.

    `finish` adds what `datasets.load_from_disk` needs to open the files as one data set.
    """

    def __init__(self, folder: Path, name: str, dtype: np.dtype, fingerprint: str, shard_tokens: int) -> None:
        import datasets

        self._folder, self._name, self._fingerprint = folder / name, name, fingerprint
        self._shard_tokens = shard_tokens
        columns = {
            "input_ids": datasets.List(datasets.Value(dtype.name)),
            "sentence_lengths": datasets.List(datasets.Value("int32")),
        }
        self._features = datasets.Features(columns)
        self._save_empty_dataset()
        self.shards: list[CorpusShard] = []
        self._dropped = 0
        self._hashes = [hashlib.sha256() for _ in range(3)]
        self._begin_shard()

    def add(self, part: SplitPart) -> None:
        """Adds the documents of a part; a shard ends with the document that reaches `shard_tokens`."""
        ids, sentence_lengths, document_sentences, dropped = part
        self._dropped += dropped
        for hash_, array in zip(self._hashes, (ids, sentence_lengths, document_sentences), strict=True):
            hash_.update(array.astype("<i4").tobytes())  # three streams: the limits of parts leave no trace
        if not len(document_sentences):
            return
        import pyarrow as pa

        ends = offsets(document_sentences)
        token_ends = offsets(sentence_lengths)[ends]
        columns = [
            pa.ListArray.from_arrays(token_ends.astype(np.int32), pa.array(ids)),
            pa.ListArray.from_arrays(ends.astype(np.int32), pa.array(sentence_lengths.astype(np.int32))),
        ]
        table = pa.Table.from_arrays(columns, schema=self._features.arrow_schema)
        first = 0
        while first < len(document_sentences):
            if self._sizes[2] >= self._shard_tokens:
                self._end_shard()
                self._begin_shard()
            limit = token_ends[first] + self._shard_tokens - self._sizes[2]
            stop = min(int(np.searchsorted(token_ends, limit)), len(document_sentences))
            self._writer.write_table(table.slice(first, stop - first))
            sizes = [offsets_[stop] - offsets_[first] for offsets_ in (ends, token_ends)]
            self._sizes += (stop - first, *sizes)
            first = stop

    def finish(self) -> SplitSize:
        """Ends the last shard, writes the list of shards that `datasets` reads, and returns the size of the split."""
        self._end_shard()
        state = json.loads((self._folder / "state.json").read_text())
        state |= {
            "_data_files": [{"filename": Path(shard.file).name} for shard in self.shards],
            "_fingerprint": self._fingerprint,  # else it would name the time of day
        }
        (self._folder / "state.json").write_text(json.dumps(state, indent=2, sort_keys=True), encoding="utf-8")
        digest = hashlib.sha256(b"".join(hash_.digest() for hash_ in self._hashes)).hexdigest()
        documents, sentences, tokens = np.sum([shard[1:4] for shard in self.shards], axis=0).tolist()
        return SplitSize(documents, sentences, tokens, self._dropped, digest)

    def _begin_shard(self) -> None:
        from datasets.arrow_writer import ArrowWriter

        self._path = self._folder / f"data-{len(self.shards):05d}.arrow"
        self._writer = ArrowWriter(path=str(self._path), features=self._features)
        self._sizes = np.zeros(3, np.int64)

    def _end_shard(self) -> None:
        self._writer.finalize()
        name = f"{self._name}/{self._path.name}"
        documents, sentences, tokens = self._sizes.tolist()
        with self._path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        self.shards.append(CorpusShard(name, documents, sentences, tokens, digest))

    def _save_empty_dataset(self) -> None:
        """Writes `state.json` and `dataset_info.json` as the installed `datasets` does."""
        import datasets

        silent = datasets.are_progress_bars_disabled()
        datasets.disable_progress_bars()
        try:
            empty = datasets.Dataset.from_dict({name: [] for name in self._features}, features=self._features)
            empty.save_to_disk(str(self._folder), num_shards=1)
        finally:
            if not silent:
                datasets.enable_progress_bars()
        for path in self._folder.glob("*.arrow"):
            path.unlink()
