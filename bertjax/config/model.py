"""The description of an encoder: architecture, heads, and how both are computed."""

from __future__ import annotations

import dataclasses

from bertjax.config.fields import PRESET, Setting, Settings, dotted, names_where, setting, settings_of
from bertjax.errors import UserError

ACTIVATIONS = ("gelu", "gelu_new", "relu", "silu")  # Hugging Face's words: gelu = erf, gelu_new = tanh
HEAD_ACTIVATIONS = ("tanh", *ACTIVATIONS)
DTYPES = ("float32", "bfloat16")
CLASSIFIERS = ("sequence_classification", "token_classification", "question_answering")


def _rotary(config: ArchitectureConfig) -> bool:
    return config.attention_position == "rotary"


def _disentangled(config: ArchitectureConfig) -> bool:
    return config.attention_position == "disentangled"


def _relative(config: ArchitectureConfig) -> bool:
    return config.attention_position == "relative"


def _learned(config: ArchitectureConfig) -> bool:
    return config.position_embedding == "learned"


def _dropout(default: float | None, help: str) -> float:
    return setting(default, at_least=0.0, below=1.0, phase=True, computes=False, help=help)


@dataclasses.dataclass(frozen=True)
class ArchitectureConfig(Settings, group="model"):
    """The encoder itself: sizes, embeddings, positions, attention, feed-forward block, sharing, dropout, initial draw.

    `vocab_size` is the tokenizer's true size.
    """

    family: str = setting(
        "bert",
        computes=False,
        help="Hugging Face family whose classes an export gets if they can hold the model: bert roberta albert "
        "distilbert electra deberta deberta-v2 xlnet modernbert gpt2; bertjax: our own format.",
    )
    vocab_size: int = setting(30522, at_least=1, key=False, transfer=True, help="Tokens of the tokenizer.")
    hidden_size: int = setting(768, at_least=1, help="Width of the residual stream.")
    num_layers: int = setting(12, at_least=1, help="Layers.")
    num_heads: int = setting(12, at_least=1, help="Attention heads; must divide hidden_size unless head_size is set.")
    head_size: int | None = setting(None, at_least=1, help="Width of a head; None: hidden_size / num_heads.")
    intermediate_size: int = setting(3072, at_least=1, help="Width inside the feed-forward block.")

    embedding_size: int | None = setting(
        None,
        at_least=1,
        help="Width of the word table, which is projected to hidden_size (ALBERT's factorisation); None: hidden_size, "
        "not factorised.",
    )
    embedding_projection_bias: bool = setting(
        True, read_if=lambda config: config.embedding_size is not None, help="Bias of that projection."
    )
    embedding_norm: str = setting(
        "before",
        choices=("before", "after", "none"),
        help="Norm of the embeddings: before the projection (ALBERT, ELECTRA), after it (DeBERTa), none (GPT-2).",
    )
    embedding_scale: bool = setting(
        False, help="Multiply word embeddings by the root of their width (arXiv:1706.03762, section 3.4)."
    )
    zero_pad_embeddings: bool = setting(False, help="Padding embeds as zero (DeBERTa).")
    position_embedding: str = setting(
        "learned", choices=("learned", "sinusoidal", "none"), help="Absolute positions, added to the embeddings."
    )
    max_position_embeddings: int = setting(
        512,
        at_least=1,
        transfer=True,
        read_if=lambda config: _learned(config) or config.enhanced_decoder,
        help="Longest example that the model can read, in tokens.",
    )
    position_offset: int = setting(
        0,
        at_least=0,
        read_if=_learned,
        help="Rows of the position table before the first position (RoBERTa: pad id + 1).",
    )
    type_vocab_size: int = setting(
        2, at_least=0, transfer=True, help="Rows of the token type table: 2 for two segments; 0: no table."
    )

    attention_position: str = setting(
        "none",
        choices=("none", "rotary", "disentangled", "relative"),
        help="Positions inside attention: none, rotary, disentangled (DeBERTa), relative (XLNet).",
    )
    global_rope_theta: float = setting(
        10_000.0, transfer=True, phase=True, read_if=_rotary, help="Rotary: base of layers with global attention."
    )
    local_rope_theta: float = setting(
        10_000.0,
        transfer=True,
        phase=True,
        read_if=lambda config: _rotary(config) and config.local_attention > 0,
        help="Rotary: base of layers with local attention.",
    )
    pos_att_type: tuple[str, ...] = setting(
        ("c2p", "p2c"),
        read_if=_disentangled,
        help="Disentangled: terms of the score besides content to content: c2p (content to position), p2c.",
    )
    share_att_key: bool = setting(
        False, read_if=_disentangled, help="Disentangled: the projections of content serve positions as well."
    )
    position_buckets: int = setting(
        0,
        at_least=0,
        transfer=True,
        read_if=_disentangled,
        help="Disentangled: rows per side of a logarithmic table; 0: a row per distance.",
    )
    max_relative_positions: int | None = setting(
        None,
        at_least=1,
        transfer=True,
        read_if=_disentangled,
        help="Disentangled: largest distance that is distinguished; None: max_position_embeddings.",
    )
    norm_relative_embeddings: bool = setting(
        False, read_if=_disentangled, help="Disentangled: norm on the table of relative embeddings."
    )
    relative_segments: bool = setting(
        False, read_if=_relative, help="Relative: scores depend on whether two tokens are of one segment (XLNet)."
    )
    clamp_len: int = setting(
        -1, transfer=True, read_if=_relative, help="Relative: distances are clamped to this; -1: not clamped."
    )
    mem_len: int | None = setting(
        None,
        at_least=1,
        transfer=True,
        read_if=_relative,
        help="Relative: upper limit of tokens of earlier sequences that a layer remembers; None: all it is passed, "
        "with objective.name=plm 3/4 of a sequence.",
    )
    reuse_len: int | None = setting(
        None,
        at_least=1,
        transfer=True,
        read_if=_relative,
        help="Relative: the first tokens of a sequence, which are remembered; None: all, in the format segments half.",
    )
    bi_data: bool = setting(
        False,
        transfer=True,
        read_if=_relative,
        help="Relative: the second half of a batch is text in reverse, with reversed distances (XLNet).",
    )
    conv_kernel_size: int = setting(
        0,
        at_least=0,
        help="Width (odd) of a convolution of the embeddings, added after the first layer (DeBERTa v2 xlarge); "
        "0: none.",
    )
    conv_act: str = setting(
        "gelu",
        choices=HEAD_ACTIVATIONS,
        read_if=lambda config: config.conv_kernel_size > 0,
        help="Activation of that convolution.",
    )

    causal: bool = setting(False, transfer=True, help="A token attends only to itself and those before it.")
    local_attention: int = setting(
        0,
        at_least=0,
        transfer=True,
        phase=True,
        help="Window of local layers: local_attention // 2 tokens on either side; 0: every layer is global.",
    )
    global_attn_every_n_layers: int = setting(
        1,
        at_least=1,
        transfer=True,
        read_if=lambda config: config.local_attention > 0,
        help="With local_attention: layers 0, n, 2n, ... are global.",
    )
    attention_bias: str = setting(
        "all", choices=("all", "query_value", "none"), help="Biases of attention: all, query_value (DeBERTa v1), none."
    )
    feed_forward: str = setting(
        "dense", choices=("dense", "glu"), help="dense: two matrices; glu: gated, three matrices."
    )
    feed_forward_bias: bool = setting(True, help="Biases of the feed-forward block.")
    hidden_act: str = setting(
        "gelu_new",
        choices=ACTIVATIONS,
        help="Activation of the feed-forward block: gelu (erf), gelu_new (tanh, as in Google's code), relu, silu.",
    )
    norm_placement: str = setting(
        "post", choices=("post", "pre"), help="post: norm of the residual sum; pre: before each block and at the end."
    )
    norm_bias: bool = setting(True, help="Biases of the norms.")
    first_attention_norm: bool = setting(
        True, help="false: the attention of the first layer reads its input without a norm (ModernBERT)."
    )
    layer_norm_eps: float = setting(1e-12, at_least=0.0, transfer=True, help="Added to the variance in norms.")

    num_groups: int | None = setting(
        None,
        at_least=1,
        help="Groups of layers that share parameters (ALBERT: 1); None: every layer has its own parameters.",
    )
    inner_layers: int = setting(
        1,
        at_least=1,
        read_if=lambda config: config.num_groups is not None,
        help="Layers per group, run one after the other.",
    )

    hidden_dropout: float = _dropout(0.1, "Dropout of every block's output.")
    attention_dropout: float = _dropout(0.1, "Dropout of the attention probabilities.")
    embedding_dropout: float | None = _dropout(None, "Dropout of the embeddings; None: hidden_dropout.")
    attention_output_dropout: float | None = _dropout(None, "Dropout of attention's output; None: hidden_dropout.")
    feed_forward_dropout: float | None = _dropout(
        None, "Dropout of the feed-forward block's output; None: hidden_dropout."
    )
    activation_dropout: float = _dropout(0.0, "Dropout inside the feed-forward block, after the activation.")
    output_dropout: float = _dropout(0.0, "Dropout of the last hidden state (XLNet).")

    initializer: str = setting(
        "truncated_normal",
        choices=("truncated_normal", "normal"),
        computes=False,
        help="Initial weights: truncated_normal (cut at two sigma, not rescaled) or normal.",
    )
    initializer_range: float = setting(0.02, at_least=0.0, computes=False, help="Their standard deviation.")
    scale_residual_init: bool = setting(
        False, computes=False, help="Divide it by sqrt(2 num_layers) for the matrices that end a block."
    )
    pad_token_id: int = setting(
        0,
        key=False,
        transfer=True,
        read_if=lambda config: _learned(config) and config.position_offset > 0,
        help="Id of the padding token.",
    )


@dataclasses.dataclass(frozen=True)
class HeadsConfig(Settings, group="model"):
    """The heads: those of pretraining and those of tasks."""

    pooler_act: str = setting("tanh", choices=HEAD_ACTIVATIONS, heads=("pooler",), help="Activation of the pooler.")
    mlm_head: str = setting(
        "transform",
        choices=("transform", "bias", "tied"),
        heads=("mlm",),
        help="transform: dense layer, activation, norm, scores, bias; bias: scores, bias; tied: scores.",
    )
    mlm_act: str | None = setting(
        None, choices=HEAD_ACTIVATIONS, heads=("mlm",), help="Activation of the masked-token head; None: hidden_act."
    )
    head_dense_bias: bool = setting(
        True, heads=("mlm", *CLASSIFIERS), help="Bias of the dense layers of masked-token head and classifiers."
    )
    mlm_bias: bool = setting(True, heads=("mlm",), help="Bias of the masked-token head's scores.")
    enhanced_decoder: bool = setting(
        False,
        heads=("mlm",),
        help="Masked tokens are predicted from the last layer run twice over absolute positions (DeBERTa).",
    )
    rtd_head: str = setting(
        "dense",
        choices=("dense", "summary"),
        heads=("rtd",),
        help="Replaced-token head: dense (ELECTRA), or summary: norm of summary + token first (DeBERTa v3).",
    )
    span_positions: int = setting(
        20, at_least=1, heads=("span_boundary",), help="Span-boundary head: positions of a span that are distinguished."
    )
    span_position_size: int = setting(
        200, at_least=1, heads=("span_boundary",), help="Span-boundary head: width of their embeddings."
    )
    pooling: str = setting(
        "first",
        choices=("first", "last", "mean"),
        heads=("pooler", "pair", "sequence_classification"),
        help="Vector of an example: its first token, its last, or the mean of all.",
    )
    classifier_dense: str = setting(
        "pooler",
        choices=("pooler", "own", "none"),
        heads=("sequence_classification",),
        help="Layer before a classifier: the model's pooler, a dense layer of its own, none.",
    )
    classifier_act: str = setting(
        "tanh", choices=HEAD_ACTIVATIONS, heads=CLASSIFIERS, help="Activation of a classifier's own dense layer."
    )
    classifier_norm: bool = setting(False, heads=CLASSIFIERS, help="Norm after it.")
    token_classifier_dense: bool = setting(
        False,
        heads=("token_classification", "question_answering"),
        help="Heads on every token have that dense layer as well (ModernBERT).",
    )
    classifier_dropout: float | None = _dropout(None, "Dropout before a classifier; None: hidden_dropout.")
    labels: tuple[str, ...] = setting(("LABEL_0", "LABEL_1"), computes=False, help="Names of a classifier's labels.")


@dataclasses.dataclass(frozen=True)
class ComputeConfig(Settings, group="model"):
    """Types, kernels and layout of a computation, never its result; the defaults are those of a model that is loaded.

    Matrix multiplications read `compute_dtype` and write `result_dtype`, the type of the activations between them;
    statistics (softmax, norms, losses) are float32 always.
    """

    padded_vocab_size: int | None = setting(
        None, at_least=1, key=False, computes=False, help="Rows of the word table in training; None: vocab_size."
    )
    compute_dtype: str = setting("float32", choices=DTYPES, key=False, computes=False, help="Inputs of matmuls.")
    result_dtype: str = setting("float32", choices=DTYPES, key=False, computes=False, help="Results of matmuls.")
    attention_implementation: str = setting(
        "auto",
        choices=("auto", "xla", "tiled", "cudnn", "splash", "interpret"),
        computes=False,
        help="Attention kernel: xla, tiled (a few heads at a time: CPU), cudnn (GPU), splash (TPU), interpret (splash "
        "on a CPU, for tests).",
    )
    remat: str = setting(
        "none",
        choices=("none", "full", "dots"),
        computes=False,
        phase=True,
        help="Backward pass: none keeps every activation, dots the results of matmuls with weights, full only the "
        "inputs of layers.",
    )
    unroll: int | None = setting(
        None,
        at_least=1,
        computes=False,
        phase=True,
        help="Layers per iteration of the scan: more compile longer and may run faster. None: all on a CPU without "
        "`remat`, else 1.",
    )


@dataclasses.dataclass(frozen=True)
class PresetConfig(Settings, group="model"):
    """The preset that the model's values come from; every other key of `model` is one of `EncoderConfig`."""

    preset: str = setting(
        "bert-base",
        help='Published model whose values are used where a key is "preset", such as bert-base or bert-6x512 (see '
        "bertjax/config/presets.py). none: the defaults of `EncoderConfig` (configs of finetuning runs, which have the "
        "architecture of `init_from`).",
    )


@dataclasses.dataclass(frozen=True)
class GeneratorConfig(Settings, group="generator"):
    """objective.name=rtd: the network whose tokens `model`, the discriminator, judges; its other keys are `model`'s."""

    preset: str = setting(
        "model",
        help='Published model whose values are used where a key is "preset"; model: the values of `model`, with sizes '
        "times the two ratios.",
    )
    width_ratio: float = setting(
        1.0, above=0.0, help="Width relative to the model's (ELECTRA: 1/4, base 1/3); heads are as wide as the model's."
    )
    depth_ratio: float = setting(1.0, above=0.0, help="Layers relative to the model's (DeBERTa v3: 1/2).")


@dataclasses.dataclass(frozen=True)
class EncoderConfig(ComputeConfig, HeadsConfig, ArchitectureConfig):
    """One Transformer encoder with its heads; every published model is a value of this class.

    Raises:
        UserError: Sizes or choices that cannot be built.
    """

    def check(self) -> None:
        if self.head_size is None and self.hidden_size % self.num_heads:
            raise UserError(
                f"model.hidden_size {self.hidden_size} is not divisible by model.num_heads {self.num_heads}; head "
                f"counts that divide it: {_divisors_near(self.hidden_size, self.num_heads)} (or set model.head_size)"
            )
        if self.padded_vocab_size is not None and self.padded_vocab_size < self.vocab_size:
            raise UserError(
                f"padded_vocab_size {self.padded_vocab_size} is smaller than model.vocab_size {self.vocab_size}"
            )
        if not self.labels:
            raise UserError("model.labels must name at least one label")
        for refused, reason in _refusals(self):
            if refused:
                raise UserError(reason)

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.hidden_size // self.num_heads if self.head_size is None else self.head_size

    @property
    def embedding_dim(self) -> int:
        """Width of the word table."""
        return self.hidden_size if self.embedding_size is None else self.embedding_size

    @property
    def table_size(self) -> int:
        """Rows of the word table in memory."""
        return self.vocab_size if self.padded_vocab_size is None else self.padded_vocab_size

    @property
    def num_labels(self) -> int:
        return len(self.labels)

    @property
    def max_distance(self) -> int:
        """Disentangled attention: the largest distance that is distinguished."""
        return self.max_position_embeddings if self.max_relative_positions is None else self.max_relative_positions

    def is_local(self, layer: int) -> bool:
        """Returns whether this layer has local attention."""
        return self.local_attention > 0 and layer % self.global_attn_every_n_layers != 0

    def group_of(self, layer: int) -> int:
        """Returns the index of the group of shared parameters that a layer uses.

        The quotient is rounded as in transformers' AlbertTransformer: where it is a whole number but for rounding, as
        in layer 9 of 18 in 14 groups, another order of the operations would take the next group.
        """
        assert self.num_groups is not None
        return int(layer / (self.num_layers / self.num_groups))

    def rate(self, name: str) -> float:
        """Returns a dropout rate, `hidden_dropout` if it is None."""
        value = getattr(self, name)
        return self.hidden_dropout if value is None else value


def network_keys(group: str) -> dict[str, Setting]:
    """Returns {dotted key: declaration} of the keys of `model` or `generator` that a preset provides.

    A phase can change keys of `model` only: the generator takes its values from there.
    """
    return {
        dotted(group, name): dataclasses.replace(
            each, default=PRESET, inherits=True, phase=each.phase and group == "model"
        )
        for name, each in settings_of(EncoderConfig).items()
        if each.key
    }


def differences(one: EncoderConfig, other: EncoderConfig, heads: bool = True) -> list[str]:
    """Returns the names of the fields by which two models compute something else.

    Args:
        one: A model.
        other: Another model.
        heads: False compares the encoders alone.
    """
    names = names_where(EncoderConfig, lambda each: each.computes and (heads or not each.heads))
    return [name for name in names if getattr(one, name) != getattr(other, name)]


def float32_config(config: EncoderConfig) -> EncoderConfig:
    """Returns the same model at its true vocabulary size, computed in float32, as a model that is loaded."""
    return dataclasses.replace(config, **{name: each.default for name, each in settings_of(ComputeConfig).items()})


def _refusals(config: EncoderConfig) -> list[tuple[bool, str]]:
    position, shared = config.attention_position, config.num_groups is not None
    disentangled = position == "disentangled"
    terms = config.pos_att_type
    return [
        (
            position == "rotary" and config.head_dim % 2 == 1,
            f"attention_position=rotary rotates pairs of numbers: the head size {config.head_dim} must be even",
        ),
        (
            position == "relative" and config.hidden_size % 2 == 1,
            f"attention_position=relative needs an even hidden_size, not {config.hidden_size}",
        ),
        (
            config.position_embedding == "sinusoidal" and config.embedding_dim % 2 == 1,
            f"position_embedding=sinusoidal needs an even embedding width, not {config.embedding_dim}",
        ),
        (
            disentangled and (len(set(terms)) != len(terms) or not set(terms) <= {"c2p", "p2c"}),
            f"pos_att_type must be a subset of c2p, p2c, each once; not {', '.join(terms)}",
        ),
        (
            config.position_buckets > 0 and not disentangled,
            "position_buckets belongs to attention_position=disentangled",
        ),
        (
            disentangled and config.position_buckets > 0 and config.max_distance <= config.position_buckets // 2 + 1,
            f"position_buckets {config.position_buckets} must be less than twice max_relative_positions "
            f"{config.max_distance}: the far distances share logarithmic buckets",
        ),
        (
            config.relative_segments and position != "relative",
            "relative_segments belongs to attention_position=relative",
        ),
        (
            (config.mem_len is not None or config.reuse_len is not None or config.bi_data) and position != "relative",
            "mem_len, reuse_len and bi_data belong to attention_position=relative",
        ),
        (
            config.attention_bias != "none" and position == "relative",
            f"attention_bias={config.attention_bias} and attention_position=relative: the relative scores have biases "
            "of their own; set attention_bias=none",
        ),
        (
            config.global_attn_every_n_layers > 1 and config.local_attention == 0,
            "global_attn_every_n_layers needs local_attention for the other layers",
        ),
        (
            config.local_attention > 0 and config.global_attn_every_n_layers == 1,
            f"local_attention={config.local_attention} has no effect: with global_attn_every_n_layers=1 every layer is "
            "global",
        ),
        (
            not config.first_attention_norm and (config.norm_placement == "post" or shared),
            "first_attention_norm=false needs norm_placement=pre and layers with parameters of their own",
        ),
        (
            config.conv_kernel_size > 0 and (shared or config.conv_kernel_size % 2 == 0),
            "conv_kernel_size must be odd, and layer 0 must have parameters of its own (no num_groups)",
        ),
        (
            shared and not 1 <= (config.num_groups or 1) <= config.num_layers,
            f"num_groups must lie in 1 to num_layers, not {config.num_groups}",
        ),
        (config.inner_layers > 1 and not shared, "inner_layers needs num_groups: only shared groups have inner layers"),
        (config.causal and config.conv_kernel_size > 0, "conv_kernel_size sees the next token: not in causal models"),
        (config.causal and config.enhanced_decoder, "enhanced_decoder predicts masked words: causal models have none"),
        (
            position in ("disentangled", "relative") and config.attention_implementation not in ("auto", "xla"),
            f"attention_implementation={config.attention_implementation} and attention_position={position}: the "
            "kernels know no terms of positions; take auto or xla",
        ),
        (config.causal and config.local_attention > 0, "local_attention is two-sided: causal models cannot have it"),
        (
            config.enhanced_decoder and config.position_embedding != "none",
            "enhanced_decoder adds absolute positions late: position_embedding must be none",
        ),
        (
            config.enhanced_decoder and position == "relative",
            "enhanced_decoder and attention_position=relative: two streams tell masked words their positions already",
        ),
        (
            disentangled and config.position_buckets == 1,
            "position_buckets must be 0 (a row for every distance) or at least 2",
        ),
        (config.enhanced_decoder and shared, "enhanced_decoder runs the last layer again: not with num_groups"),
        (
            config.enhanced_decoder and (config.norm_placement == "pre" or config.num_layers < 2),
            "enhanced_decoder needs norm_placement=post and at least two layers",
        ),
    ]


def _divisors_near(number: int, heads: int) -> str:
    divisors = [d for d in range(1, min(number, 10_000) + 1) if number % d == 0]  # a file may claim a billion
    nearest = sorted(sorted(divisors, key=lambda d: abs(d - heads))[:4])
    return ", ".join(map(str, nearest))
