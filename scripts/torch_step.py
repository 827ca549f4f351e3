"""The training step of a config in transformers and PyTorch, for measure_steps.py --torch.

Sequences of real tokens without padding or packing, its best case: attention needs no mask and takes the flash kernel.
bfloat16 autocast, fused AdamW, clipping, dropout of the config, random weights and tokens, every layer compiled,
and the vocabulary's scores at predicted tokens alone. The batch is halved while it does not fit into memory.
"""

from __future__ import annotations

import dataclasses
import gc
import time
from typing import Any

import torch
import transformers
from ml_collections import ConfigDict

from bertjax.config.model import encoder_config, float32_config
from bertjax.experiment.config import read_objective
from bertjax.hf.export_plan import plan_export
from bertjax.tools.benchmark_report import run_metrics
from bertjax.tools.interleaved_timing import TimedRun, interleave

HEADS = {"bert": ("cls",), "modernbert": ("head", "decoder")}


class TorchStep:
    """Trains a masked language model of transformers on random tokens."""

    def __init__(self, cfg: ConfigDict, batch_size: int):
        self._shape = batch_size, cfg.data.seq_len
        self._device = "cuda" if torch.cuda.is_available() and cfg.platform != "cpu" else "cpu"
        self._num_predicted = round(read_objective(cfg).masking.mask_rate * cfg.data.seq_len)
        model = dataclasses.replace(float32_config(encoder_config(cfg)), pad_token_id=0)
        values = plan_export(model, ("mlm",)).config_json
        config = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
        torch.manual_seed(0)
        self._model = transformers.AutoModelForMaskedLM.from_config(config, attn_implementation="sdpa")
        self._model.to(self._device, torch.float32).train()
        self._vocab_size, self._clip_norm = config.vocab_size, cfg.optimizer.clip_norm
        self._head = torch.nn.Sequential(*(getattr(self._model, name) for name in HEADS[config.model_type]))
        for layer in next(each for each in self._model.modules() if isinstance(each, torch.nn.ModuleList)):
            layer.compile()
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)

    def run(self, steps: int) -> TimedRun:
        began = time.perf_counter()
        for _ in range(steps):
            self._step()
        if self._device == "cuda":
            torch.cuda.synchronize()
        tokens = steps * self._shape[0] * self._shape[1]
        return TimedRun(steps, time.perf_counter() - began, tokens, tokens)

    def _step(self) -> None:
        ids = torch.randint(0, self._vocab_size, self._shape, device=self._device)
        positions = torch.rand(self._shape, device=self._device).topk(self._num_predicted, dim=1).indices
        labels, masked = ids.gather(1, positions), ids.scatter(1, positions, 1)
        with torch.autocast(self._device, torch.bfloat16):
            hidden = self._model.base_model(input_ids=masked).last_hidden_state
            hidden = hidden.gather(1, positions[..., None].expand(-1, -1, hidden.shape[-1]))
            loss = torch.nn.functional.cross_entropy(self._head(hidden).flatten(0, 1).float(), labels.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._clip_norm or float("inf"))
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)


def measure(cfg: ConfigDict, repeats: int, steps: int, warmup: int) -> dict[str, Any]:
    """Returns metrics by the names of `bertjax benchmark`."""
    torch.set_float32_matmul_precision("high")
    torch._dynamo.config.recompile_limit = 64  # layers share their code
    batch_size = cfg.train.batch_size
    while True:
        try:
            return _measure(cfg, batch_size, repeats, steps, warmup)
        except RuntimeError as error:
            if "out of memory" not in str(error).lower() or batch_size == 1:
                raise
        batch_size //= 2
        print(f"out of memory; now {batch_size} sequences", flush=True)


def _measure(cfg: ConfigDict, batch_size: int, repeats: int, steps: int, warmup: int) -> dict[str, Any]:
    gc.collect()
    torch._dynamo.reset()
    has_gpu = torch.cuda.is_available()
    if has_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    trainer = TorchStep(cfg, batch_size)
    trainer.run(warmup)
    compiled = time.perf_counter() - began
    metrics = run_metrics(interleave([trainer], repeats, steps)[0])
    print(f"{metrics['tokens_per_second']['median']:,.0f} tokens/s", flush=True)
    return metrics | {
        "batch_size": batch_size,
        "compile_seconds": compiled,
        "peak_bytes": torch.cuda.max_memory_allocated() if has_gpu else 0,
        "device_kind": torch.cuda.get_device_name() if has_gpu else "cpu",
        "versions": f"transformers {transformers.__version__}, torch {torch.__version__}",
    }
