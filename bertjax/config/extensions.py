"""Lists what packages can add to bertjax, by entry points or `package.module:Name`; see `docs/extending.md`.

Each is one object. Every registry has the group of entry points in its second argument. No other table lists such
names.
"""

from __future__ import annotations

from typing import Any

from bertjax.config.registry import Registry

OBJECTIVES: Registry[Any] = Registry(
    "objective.name",
    "bertjax.objectives",
    {
        "mlm": "bertjax.objectives.mlm:Mlm",
        "clm": "bertjax.objectives.clm:Clm",
        "plm": "bertjax.objectives.plm.objective:Plm",
        "rtd": "bertjax.objectives.rtd.objective:Rtd",
        "distillation": "bertjax.objectives.distillation.objective:Distillation",
        "contrastive": "bertjax.objectives.contrastive:Contrastive",
        "mixture": "bertjax.objectives.mixture:ObjectiveMixture",
        "span_corruption": "bertjax.objectives.denoising.span_corruption:SpanCorruption",
        "infilling": "bertjax.objectives.denoising.infilling:Infilling",
        "tsdae": "bertjax.objectives.denoising.tsdae:Tsdae",
        "retromae": "bertjax.objectives.denoising.retromae:RetroMae",
        "task": "bertjax.tasks.objective:TaskObjective",
    },
    base="bertjax.objectives.base:Objective",
    required=("title",),
    methods=("counts", "loss", "heads", "loss_weights"),
    prefix="objective",
    hints={
        "mlm": "bert roberta spanbert masked masked_lm masked_language_modeling masked_language_modelling",
        "clm": "gpt gpt2 causal causal_lm causal_language_modeling causal_language_modelling lm",
        "plm": "xlnet permutation permuted permutation_language_modeling permutation_language_modelling",
        "rtd": "electra deberta_v3 replaced_token_detection discriminator",
        "distillation": "distil distill distilbert minilm tinybert kd knowledge_distillation",
        "contrastive": "simcse simclr infonce",
        "span_corruption": "t5 spans span_masking",
        "infilling": "bart denoising text_infilling",
        "task": "finetune finetuning fine_tuning",
    },
)

_FAMILY_MODULES = {
    "bert roberta albert distilbert electra deberta modernbert neobert gpt2 xlnet mpnet esm splinter": "{}:FAMILY",
    "mobilebert roc_bert": "{}:FAMILY",
    "roformer rembert ultrabert xmod big_bird esmc ltg_bert t5gemma squeezebert convbert": "{}:FAMILY",
    "bert-generation": "bert_generation:FAMILY",
    "deberta-v2": "deberta:FAMILY_V2",
    "gpt_bert": "ltg_bert:GPT_BERT",
    "nucleotide_transformer": "esm:NUCLEOTIDE_TRANSFORMER",
    "modernbert-decoder": "modernbert:DECODER",
    "xlm-roberta xlm-roberta-xl camembert data2vec-text ernie": "same_tensors:FAMILIES.{}",
    "roberta-prelayernorm megatron-bert": "same_tensors:FAMILIES.{}",
    "nomic_bert jina_embeddings_v3 gte": "rotary_bert:FAMILIES.{}",
    "mosaic_bert jina_bert": "alibi_bert:FAMILIES.{}",
    "llama mistral qwen2 qwen3 eurobert": "llama:FAMILIES.{}",
    "gemma gemma2 gemma3_text": "gemma:FAMILIES.{}",
    "t5 mt5 umt5": "t5:FAMILIES.{}",
    "xlm flaubert": "xlm:FAMILIES.{}",
    "bart mbart mvp plbart": "bart:FAMILIES.{}",
    "luke ibert": "read_as_roberta:FAMILIES.{}",
}

FAMILIES: Registry[Any] = Registry(
    "model.family",
    "bertjax.families",
    {
        name: f"bertjax.hf.keymaps.{path.format(name)}"
        for names, path in _FAMILY_MODULES.items()
        for name in names.split()
    },
    base="bertjax.hf.keymaps.family:Family",
    classes=False,
)

ENCODER_DECODERS: Registry[Any] = Registry(
    "the family of an encoder-decoder",
    "bertjax.encoder_decoders",
    {
        name: f"bertjax.hf.encoder_decoder.{path}"
        for name, path in {
            "bart": "bart:BART",
            "marian": "bart:MARIAN",
            "t5": "t5:T5",
            "encoder-decoder": "encoder_decoder_model:ENCODER_DECODER_MODEL",
            "mbart": "bart:MBART",
            "pegasus": "bart:PEGASUS",
            "m2m_100": "bart_variants:M2M_100",
            "mt5": "t5:MT5",
            **{name: f"bart_variants:FAMILIES.{name}" for name in ("mvp", "plbart", "blenderbot", "blenderbot-small")},
        }.items()
    },
    base="bertjax.hf.encoder_decoder.family:EncoderDecoderFamily",
    classes=False,
)

TASK_KINDS: Registry[Any] = Registry(
    "task.kind",
    "bertjax.tasks",
    {
        "classification": "bertjax.tasks.classification:Classification",
        "multilabel": "bertjax.tasks.multilabel:Multilabel",
        "regression": "bertjax.tasks.regression:Regression",
        "multiple_choice": "bertjax.tasks.multiple_choice:MultipleChoice",
        "tokens": "bertjax.tasks.tokens:TokenClassification",
        "qa": "bertjax.tasks.qa:QuestionAnswering",
        "seq2seq": "bertjax.tasks.seq2seq:Seq2SeqTask",
    },
    base="bertjax.tasks.base:TaskKind",
    required=("name", "title", "head", "main_metric"),
    methods=lambda kind: ("compute_metrics",) if kind.has_targets else ("loss", "compute_metrics"),
    prefix="task",
    hints={
        "classification": "text_classification sequence_classification sentiment sst2 sst_2 nli mnli qnli rte mrpc qqp "
        "cola glue",
        "multilabel": "multi_label multilabel_classification multi_label_classification goemotions",
        "regression": "sts stsb sts_b similarity score",
        "multiple_choice": "swag hellaswag race dream arc copa multiplechoice choices",
        "tokens": "ner pos conll tagging token_classification chunking",
        "qa": "squad question_answering extractive_qa",
        "seq2seq": "translation summarization summarisation text2text generation",
    },
)

ATTENTION: Registry[Any] = Registry(
    "model.attention_class",
    "bertjax.attention",
    {},
    base="bertjax.models.attention:Attention",
    methods=("scores",),
    prefix="model",
)

_SOURCE_KINDS = ["builtin", "text", "lines", "files", "jsonl", "parquet", "arrow", "tar", "fasta", "hub"]
_SOURCE_KINDS += ["tsv", "csv", "parallel", "conll", "squad"]

SOURCES: Registry[Any] = Registry(
    "a source",
    "bertjax.sources",
    {name: f"bertjax.config.sources:KINDS.{name}" for name in _SOURCE_KINDS},
    base="bertjax.config.sources:SourceKind",
    classes=False,
    required=("where",),
)

REGISTRIES = {each.key: each for each in (OBJECTIVES, FAMILIES, ENCODER_DECODERS, TASK_KINDS, ATTENTION, SOURCES)}
"""The registries by the key whose values they name."""
