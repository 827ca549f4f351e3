"""Runs exports with remote code in a process that has torch and transformers, and neither bertjax nor jax.

Usage: python remote_code_lab.py FOLDER [encode | pairs]. FOLDER has exports with `inputs.npz`, and receives
`outputs.npz`; pairs: those in it have an encoder and a decoder.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

for blocked in ("bertjax", "jax", "flax"):
    sys.modules[blocked] = None  # type: ignore[assignment]

import numpy as np  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

OUTPUTS = {
    "AutoModel": ("last_hidden_state", "pooler_output"),
    "AutoModelForPreTraining": ("prediction_logits", "seq_relationship_logits", "replaced_token_logits"),
    "AutoModelForMaskedLM": ("logits",),
    "AutoModelForCausalLM": ("logits",),
    "AutoModelForSequenceClassification": ("logits",),
    "AutoModelForTokenClassification": ("logits",),
    "AutoModelForQuestionAnswering": ("start_logits", "end_logits"),
}


def load(folder: Path, auto: str, **options: Any) -> Any:
    """Returns a model whose weights all come from the folder."""
    model, info = getattr(transformers, auto).from_pretrained(
        folder, trust_remote_code=True, output_loading_info=True, **options
    )
    assert not info["missing_keys"] and not info["mismatched_keys"], (folder, auto, info)
    return model


def run(folder: Path, eager: bool) -> None:
    """Writes the outputs of all classes, for every batch of `inputs.npz`."""
    arrays = {name: torch.from_numpy(array) for name, array in np.load(folder / "inputs.npz").items()}
    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=True)
    outputs: dict[str, np.ndarray] = {}
    for auto in config.auto_map:
        if auto not in OUTPUTS:
            continue
        for attention in ("sdpa", "eager") if auto == "AutoModel" and eager else ("sdpa",):
            model = load(folder, auto, attn_implementation=attention)
            columns = inspect.signature(model.forward).parameters  # `Trainer` drops others from a data set
            assert {"input_ids", "attention_mask", "token_type_ids"} <= set(columns), (auto, columns)
            assert type(model).__module__.startswith("transformers_modules."), type(model)
            for padding in ("none", "some"):
                mask = None if padding == "none" else arrays["attention_mask"]
                types = arrays.get("token_type_ids")
                inputs = {"input_ids": arrays["input_ids"], "attention_mask": mask, "token_type_ids": types}
                with torch.no_grad():
                    out = model(**inputs, output_hidden_states=True)
                for name in OUTPUTS[auto]:
                    outputs[f"{padding}/{auto}/{attention}/{name}"] = out[name].numpy()
                for index, states in enumerate(out.hidden_states):
                    outputs[f"{padding}/{auto}/{attention}/hidden_states[{index}]"] = states.numpy()
    np.savez(folder / "outputs.npz", **outputs)


def train(folder: Path) -> None:
    """Trains a few steps; checkpointed layers have the same gradients."""
    ids = torch.from_numpy(np.load(folder / "inputs.npz")["input_ids"])
    auto = next(auto for auto in ("AutoModelForMaskedLM", "AutoModelForCausalLM") if auto in auto_classes(folder))
    model = load(folder, auto).train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if config := getattr(module, "config", None):  # a decoder has one
            config.attention_dropout = 0.0
    gradients = []
    for options in (None, {"use_reentrant": True}, {"use_reentrant": False}):
        if options is not None:
            model.gradient_checkpointing_enable(options)
            model.enable_input_require_grads()
        model.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
    for others in gradients[1:]:
        assert others.keys() == gradients[0].keys()
        for name, gradient in others.items():
            torch.testing.assert_close(gradient, gradients[0][name])
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for _ in range(12):
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.96 * losses[0], losses


def auto_classes(folder: Path) -> dict[str, str]:
    return transformers.AutoConfig.from_pretrained(folder, trust_remote_code=True).auto_map


def save_again(folder: Path) -> None:
    """Saves the bare model, a masked LM and a classifier with other labels, and loads them again."""
    for name, auto, options in (
        ("bare", "AutoModel", {}),
        ("again", "AutoModelForPreTraining", {}),
        ("five", "AutoModelForSequenceClassification", {"num_labels": 5, "ignore_mismatched_sizes": True}),
    ):
        out = folder.parent.parent / f"{name}-{folder.name}"
        model = getattr(transformers, auto).from_pretrained(folder, trust_remote_code=True, **options)
        model.save_pretrained(out)
        again = load(out, auto)
        ids = torch.from_numpy(np.load(folder / "inputs.npz")["input_ids"])
        for one, other in zip(model.eval()(ids).to_tuple(), again(ids).to_tuple(), strict=True):
            if one is not None:
                torch.testing.assert_close(one, other)


def use(folder: Path) -> None:
    """Fills masks, or generates, as pipelines do; a table of tokens grows with its output."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    if "AutoModelForCausalLM" in auto_classes(folder):
        model = load(folder, "AutoModelForCausalLM")
        inputs = tokenizer(["a b c d"], return_tensors="pt")
        generated = model.generate(**inputs, max_new_tokens=3, do_sample=False)
        for length in range(4, 7):
            expected = model(input_ids=generated[:, :length]).logits[0, -1].argmax()
            assert generated[0, length] == expected
        return
    fill = transformers.pipeline("fill-mask", str(folder), trust_remote_code=True)
    model, inputs = fill.model, tokenizer(["a b [MASK] d"], return_tensors="pt")
    with torch.no_grad():
        best = model(**inputs).logits[0, 2].topk(3).indices.tolist()
    assert [each["token"] for each in fill("a b [MASK] d", top_k=3)] == best
    model.resize_token_embeddings(model.config.vocab_size + 5)
    assert model(**inputs).logits.shape[-1] == model.config.vocab_size


def run_pair(folder: Path) -> None:
    """Writes the outputs of an encoder with a decoder; generates, trains, and saves it again."""
    inputs = {name: torch.from_numpy(array) for name, array in np.load(folder / "inputs.npz").items()}
    source = {name: array for name, array in inputs.items() if not name.startswith("decoder_")}
    auto, outputs = "AutoModelForSeq2SeqLM", {}
    for attention in ("eager", "sdpa"):
        model = load(folder, auto, attn_implementation=attention)
        with torch.no_grad():
            out = model(**inputs, output_hidden_states=True)
        outputs[f"{attention}/logits"] = out.logits.numpy()
        for network in ("encoder", "decoder"):
            states = getattr(out, f"{network}_hidden_states")
            outputs |= {f"{attention}/{network}[{index}]": state.numpy() for index, state in enumerate(states)}
    np.savez(folder / "outputs.npz", **outputs)
    options = {"max_new_tokens": 4, "do_sample": False}
    greedy, beams = model.generate(**source, **options), model.generate(**source, **options, num_beams=3)
    assert greedy.shape == beams.shape == (len(source["input_ids"]), 5)
    with torch.no_grad():
        best = model(**source, decoder_input_ids=greedy[:, :-1]).logits.argmax(-1)
        likelihood = [
            model(**source, decoder_input_ids=each[:, :-1]).logits.log_softmax(-1).gather(2, each[:, 1:, None]).sum()
            for each in (greedy, beams)
        ]
    assert torch.equal(greedy[:, 1:], best) and likelihood[1] >= likelihood[0] - 1e-4
    labels = inputs["decoder_input_ids"].masked_fill(inputs["decoder_attention_mask"] == 0, -100)
    shifted = torch.cat([torch.full_like(labels[:, :1], model.config.decoder_start_token_id), labels[:, :-1]], dim=1)
    out = model(**source, labels=labels)
    logits = model(**source, decoder_input_ids=shifted.clamp(min=0)).logits
    torch.testing.assert_close(out.loss, torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()))
    gradients = []
    for checkpointed in (False, True):
        if checkpointed:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train().zero_grad()
        torch.manual_seed(0)
        model(**source, labels=labels).loss.backward()
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys() and any("cross_attention" in name for name in gradients[0])
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient)
    again = folder.parent.parent / f"again-{folder.name}"
    model.save_pretrained(again)
    with torch.no_grad():
        np.testing.assert_allclose(load(again, auto)(**inputs).logits.numpy(), outputs["sdpa/logits"], atol=1e-5)


def encode(folder: Path) -> None:
    """Writes the vectors of a folder of sentence-transformers."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), trust_remote_code=True, device="cpu")
    np.save(folder.parent / "vectors.npy", model.encode(["a b c", "d", "e f g h i j k"]))


def main() -> None:
    torch.set_num_threads(1)  # several threads wait for each other longer than tiny layers take
    if sys.argv[2:] == ["encode"]:
        encode(Path(sys.argv[1]))
        return
    folders = sorted(path for path in Path(sys.argv[1]).iterdir() if path.is_dir())
    if sys.argv[2:] == ["pairs"]:
        for folder in folders:
            run_pair(folder)
        return
    for folder in folders:
        run(folder, eager=folder in folders[:3])
    for folder in folders[:4]:
        train(folder)
    for folder in folders[:2]:
        save_again(folder)
    for folder in folders[:3]:
        use(folder)


if __name__ == "__main__":
    main()
