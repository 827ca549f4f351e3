"""LLM2Vec's first steps: a decoder sees both sides and learns masked next-token prediction (arXiv:2404.05961).

    bertjax pretrain --config llm2vec:FOLDER --workdir runs/mntp --config.data.sources='text:corpus/*.txt'
    bertjax pretrain --config simcse:base ...  # their third step: sentence embeddings without labels

FOLDER is a Llama, Mistral, Qwen 2, Qwen 3 or Gemma, a folder or `hub:NAME` (princeton-nlp/Sheared-LLaMA-1.3B, ...); the
model's sizes, weights and tokenizer come from there. A masked token is predicted from the representation of the token
before it, where a decoder predicts it. An export has the decoder's classes and `is_causal: false` in config.json:
transformers 5 then lets every token see all others, older versions and other programs run it as a decoder. `smoke`
(two layers from scratch, minutes on a CPU) is the only size by name.

Hardware and time: not measured here.

Where this differs from the authors': all weights are trained, theirs by LoRA of rank 16; the rate is a common one for
that; their mask token is "_", here the tokenizer's or a new one, whose embedding is the mean of all. Batch and
masking are theirs (McGill-NLP/llm2vec:train_configs/mntp).
"""

from ml_collections import ConfigDict

from bertjax.config.defaults import base_config, make_smoke

SIZES = ("smoke",)


def get_config(source: str = "smoke") -> ConfigDict:
    """Masked next-token prediction with the decoder of this folder or name."""
    config = base_config()
    config.data.example_format = "block"
    config.data.lowercase = False
    config.data.seq_len = 512
    config.objective.mlm.masked_next_token = True
    config.objective.masking.mask_rate = 0.2
    config.objective.masking.mask_rounding = "bernoulli"
    config.train.batch_size = 32
    config.train.num_steps = 1000
    config.optimizer.learning_rate = 1e-5
    config.optimizer.bias_correction = True
    config.schedule.warmup_steps = config.train.get_ref("num_steps") // 20
    if source in SIZES:
        config.model.preset = "eurobert-210m"  # Llama's blocks
        config.model.family = "llama"
        config.model.classifier_dense = "none"
        config.model.pooling = "mean"
        config.data.tokenizer = "bpe"
        config.data.tokenizer_family = "roberta"
        make_smoke(config)
        config.model.num_key_value_heads = 2
        return config
    from bertjax.experiment.continued import copy_architecture

    copy_architecture(config, source)
    config.model.causal = False
    config.model.pooling = "mean"  # the last token no longer is the only one that has seen all
    config.model.classifier_bias = True
    config.data.tokenizer = source
    config.init_embeddings = "remap"
    return config
