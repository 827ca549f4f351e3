"""One split of a prepared corpus on its way to the disk."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from bertjax.data.corpus import SplitSize, offsets
from bertjax.data.shards import SplitShard


class SplitWriter:
    """Appends documents of one split to an Arrow file, hashing them, and saves it as a dataset at the end."""

    def __init__(self, folder: Path, name: str, dtype: np.dtype, fingerprint: str) -> None:
        import datasets
        from datasets.arrow_writer import ArrowWriter

        self._folder, self._raw, self._fingerprint = folder / name, folder / f"{name}.raw.arrow", fingerprint
        columns = {
            "input_ids": datasets.List(datasets.Value(dtype.name)),
            "sentence_lengths": datasets.List(datasets.Value("int32")),
        }
        self._features = datasets.Features(columns)
        self._writer = ArrowWriter(path=str(self._raw), features=self._features)
        self._sizes = np.zeros(4, dtype=np.int64)
        self._hashes = [hashlib.sha256() for _ in range(3)]

    def add(self, part: SplitShard) -> None:
        ids, sentence_lengths, document_sentences, dropped = part
        self._sizes += (len(document_sentences), len(sentence_lengths), len(ids), dropped)
        for hash_, array in zip(self._hashes, (ids, sentence_lengths, document_sentences), strict=True):
            hash_.update(array.astype("<i4").tobytes())  # three streams: the limits of parts leave no trace
        if not len(document_sentences):
            return
        import pyarrow as pa

        ends = offsets(document_sentences)
        columns = [
            pa.ListArray.from_arrays(offsets(sentence_lengths)[ends].astype(np.int32), pa.array(ids)),
            pa.ListArray.from_arrays(ends.astype(np.int32), pa.array(sentence_lengths.astype(np.int32))),
        ]
        self._writer.write_table(pa.Table.from_arrays(columns, schema=self._features.arrow_schema))

    def finish(self) -> SplitSize:
        import datasets

        self._writer.finalize()
        table = datasets.table.MemoryMappedTable.from_file(str(self._raw))
        whole = datasets.Dataset(table, fingerprint=self._fingerprint)  # else it would name the time of day
        silent = datasets.are_progress_bars_disabled()
        datasets.disable_progress_bars()
        try:
            whole.save_to_disk(str(self._folder), num_shards=None if len(whole) else 1)
        finally:
            if not silent:
                datasets.enable_progress_bars()
        del whole, table
        self._raw.unlink()
        digest = hashlib.sha256(b"".join(hash_.digest() for hash_ in self._hashes)).hexdigest()
        documents, sentences, tokens, dropped = self._sizes.tolist()
        return SplitSize(documents, sentences, tokens, dropped, digest)
