"""The frozen description of an encoder: sizes and choices, checked once. Needs no jax."""

from __future__ import annotations

import dataclasses

from bertjax.errors import UserError, require_one_of

ACTIVATIONS = ("gelu", "gelu_new", "relu", "silu")  # Hugging Face's words: gelu = erf, gelu_new = tanh
INITIALIZERS = ("truncated_normal", "normal")
REMAT_POLICIES = ("none", "full", "dots")
DTYPES = ("float32", "bfloat16")
CHOICES: dict[str, tuple[str, ...]] = {
    "hidden_act": ACTIVATIONS,
    "initializer": INITIALIZERS,
    "remat": REMAT_POLICIES,
    "compute_dtype": DTYPES,
    "result_dtype": DTYPES,
    "position_embedding": ("learned", "sinusoidal", "none"),
    "attention_position": ("none", "rotary", "disentangled", "relative"),
    "embedding_norm": ("before", "after", "none"),
    "norm_placement": ("post", "pre"),
    "attention_bias": ("all", "query_value", "none"),
    "feed_forward": ("dense", "glu"),
    "attention_implementation": ("auto", "xla", "tiled", "cudnn", "splash", "interpret"),
    "mlm_head": ("transform", "bias", "tied"),
    "rtd_head": ("dense", "summary"),
    "pooling": ("first", "last", "mean"),
    "classifier_dense": ("pooler", "own", "none"),
}


# Fields that change how a model is trained, drawn, named or run, never what it computes.
FREE_FIELDS = frozenset(
    (
        *("family", "labels", "padded_vocab_size", "initializer", "initializer_range", "scale_residual_init"),
        *("compute_dtype", "result_dtype", "attention_implementation", "remat", "unroll"),
        *("hidden_dropout", "attention_dropout", "embedding_dropout", "attention_output_dropout"),
        *("feed_forward_dropout", "activation_dropout", "output_dropout", "classifier_dropout"),
    )
)
# Fields that only heads read.
HEAD_FIELDS = frozenset(
    (
        *("pooler_act", "mlm_head", "mlm_act", "head_dense_bias", "mlm_bias", "enhanced_decoder", "rtd_head"),
        *("span_positions", "span_position_size", "pooling", "classifier_dense", "classifier_act", "classifier_norm"),
        "token_classifier_dense",
    )
)


@dataclasses.dataclass(frozen=True)
class EncoderConfig:
    """One Transformer encoder; every published model is a value of this class.

    `vocab_size` is the true size of the tokenizer; `padded_vocab_size` (training only) is what the tables hold.
    Raises `UserError` for sizes and mixtures that cannot be built.
    """

    family: str = "bert"  # whose classes and names an export gets, where they can hold this model
    vocab_size: int = 30522
    hidden_size: int = 768
    num_layers: int = 12
    num_heads: int = 12
    head_size: int | None = None  # None = hidden_size / num_heads
    intermediate_size: int = 3072

    # Embeddings: word + absolute position + token type, norm, dropout, projection.
    embedding_size: int | None = None  # None = hidden_size without a projection; a number = factorised, projected
    embedding_projection_bias: bool = True
    embedding_norm: str = "before"  # before the projection (ALBERT, ELECTRA), after it (DeBERTa), none (GPT-2, XLNet)
    embedding_scale: bool = False  # word embeddings times sqrt(width) (arXiv:1706.03762, section 3.4)
    zero_pad_embeddings: bool = False  # padding embeds as zero (DeBERTa)
    position_embedding: str = "learned"
    max_position_embeddings: int = 512  # longest example, in tokens
    position_offset: int = 0  # rows of the position table before the first position (RoBERTa: pad id + 1)
    type_vocab_size: int = 2  # 0 = no token type embeddings

    # Positions inside attention.
    attention_position: str = "none"
    global_rope_theta: float = 10_000.0  # of layers that see the whole row
    local_rope_theta: float = 10_000.0  # of layers with a window
    pos_att_type: tuple[str, ...] = ("c2p", "p2c")  # disentangled: content to position, position to content
    share_att_key: bool = False  # disentangled: the content projections project positions, too
    position_buckets: int = 0  # disentangled: rows per side of a logarithmic table; 0 = one row a distance
    max_relative_positions: int | None = None  # disentangled: None = max_position_embeddings
    norm_relative_embeddings: bool = False  # disentangled: the table is normed before use
    relative_segments: bool = False  # relative: scores also tell same from other segment (XLNet)
    clamp_len: int = -1  # relative: distances beyond are cut to this; -1 = none
    mem_len: int | None = (
        None  # relative: tokens of earlier rows that a layer may remember; None = all that it is given
    )
    reuse_len: int | None = None  # relative: the first tokens of a row, which are remembered; None = all
    bi_data: bool = False  # relative: the second half of a batch is text read backwards, its distances turned (XLNet)
    conv_kernel_size: int = 0  # convolution of the embeddings, added after layer 0 (DeBERTa v2 xlarge); 0 = none
    conv_act: str = "gelu"

    # Attention, feed-forward, norms.
    causal: bool = False
    local_attention: int = (
        0  # tokens that a local layer sees: window // 2 on either side, and itself; 0 = every layer sees all
    )
    global_attn_every_n_layers: int = 1  # with a window: layers 0, n, 2n, ... see the whole row
    attention_bias: str = "all"
    feed_forward: str = "dense"
    feed_forward_bias: bool = True
    hidden_act: str = "gelu_new"
    norm_placement: str = "post"  # pre: x + block(norm(x)), and a last norm
    norm_bias: bool = True
    first_attention_norm: bool = True  # False: the first layer's attention reads its input as it is (ModernBERT)
    layer_norm_eps: float = 1e-12

    # Sharing: None = every layer has its own parameters (ALBERT: groups, each of `inner_layers` run in a row).
    num_groups: int | None = None
    inner_layers: int = 1

    # Dropout rates; None = as `hidden_dropout`.
    hidden_dropout: float = 0.1
    attention_dropout: float = 0.1  # of the probabilities
    embedding_dropout: float | None = None
    attention_output_dropout: float | None = None
    feed_forward_dropout: float | None = None
    activation_dropout: float = 0.0  # inside the feed-forward block, after the activation
    output_dropout: float = 0.0  # of the last hidden state (XLNet)
    classifier_dropout: float | None = None

    initializer: str = "truncated_normal"
    initializer_range: float = 0.02
    scale_residual_init: bool = False  # output projections of the blocks drawn with sigma / sqrt(2 num_layers)
    pad_token_id: int = 0

    # Heads.
    pooler_act: str = "tanh"
    mlm_head: str = "transform"  # dense, activation, norm, tied table, bias; or only tied table and bias; or only table
    mlm_act: str | None = None  # None = hidden_act
    head_dense_bias: bool = True  # bias of the dense layers of the masked-word, summary and token heads
    mlm_bias: bool = True
    enhanced_decoder: bool = False  # masked words are read from the last layer run twice over positions (DeBERTa)
    rtd_head: str = "dense"  # dense, activation, score (ELECTRA); or norm of summary + token first (DeBERTa v3)
    span_positions: int = 20  # rows of the span-boundary head's position table (SpanBERT)
    span_position_size: int = 200
    pooling: str = "first"  # the vector that stands for an example: its first token, its last, the mean of all
    classifier_dense: str = "pooler"  # before the classifier: the model's pooler, a dense layer of its own, nothing
    classifier_act: str = "tanh"
    classifier_norm: bool = False
    token_classifier_dense: bool = False  # the summary's dense layer also before the heads on every token (ModernBERT)
    labels: tuple[str, ...] = ("LABEL_0", "LABEL_1")

    padded_vocab_size: int | None = None
    # How it is computed, never what it computes. Products read `compute_dtype` and write `result_dtype`, the type of
    # the activations between them; statistics (softmax, norms, losses) are float32 always.
    compute_dtype: str = "float32"
    result_dtype: str = "float32"
    attention_implementation: str = "auto"
    remat: str = "none"
    unroll: int = 1

    def __post_init__(self) -> None:
        _check_sizes(self)
        for name, allowed in CHOICES.items():
            require_one_of(f"model.{name}", getattr(self, name), allowed)
        for name in ("conv_act", "pooler_act", "classifier_act", "mlm_act"):
            value = getattr(self, name)
            known = (None, "tanh", *ACTIVATIONS)
            _require(value in known, f"model.{name} must be one of {', '.join(known[1:])}, not {value!r}")
        _check_mixture(self)

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads if self.head_size is None else self.head_size

    @property
    def embedding_dim(self) -> int:
        """Width of the word table."""
        return self.hidden_size if self.embedding_size is None else self.embedding_size

    @property
    def table_size(self) -> int:
        """Rows of the word table as it is held in memory."""
        return self.vocab_size if self.padded_vocab_size is None else self.padded_vocab_size

    @property
    def num_labels(self) -> int:
        return len(self.labels)

    @property
    def max_distance(self) -> int:
        """Disentangled attention: the largest distance that is told from the next."""
        return self.max_position_embeddings if self.max_relative_positions is None else self.max_relative_positions

    def is_local(self, layer: int) -> bool:
        """Whether this layer sees only its window."""
        return self.local_attention > 0 and layer % self.global_attn_every_n_layers != 0

    def group_of(self, layer: int) -> int:
        """Which group of shared parameters a layer uses.

        The quotient is rounded as in transformers' AlbertTransformer: where it is a whole number but for rounding, as
        in layer 9 of 18 in 14 groups, another order of the operations would take the next group.
        """
        assert self.num_groups is not None
        return int(layer / (self.num_layers / self.num_groups))

    def rate(self, name: str) -> float:
        """A dropout rate, `hidden_dropout` where the config leaves it open."""
        value = getattr(self, name)
        return self.hidden_dropout if value is None else value


def differences(one: EncoderConfig, other: EncoderConfig, heads: bool = True) -> list[str]:
    """Names of the fields by which two models compute other things; `heads=False` looks at the encoders alone."""
    free = FREE_FIELDS if heads else FREE_FIELDS | HEAD_FIELDS
    names = (field.name for field in dataclasses.fields(EncoderConfig) if field.name not in free)
    return [name for name in names if getattr(one, name) != getattr(other, name)]


def _check_sizes(config: EncoderConfig) -> None:
    positive: tuple[str, ...] = ("vocab_size", "hidden_size", "num_layers", "num_heads", "intermediate_size")
    positive += ("max_position_embeddings", "unroll", "global_attn_every_n_layers", "inner_layers", "span_positions")
    for name in (*positive, "span_position_size"):
        _require(getattr(config, name) >= 1, f"model.{name} must be at least 1, not {getattr(config, name)}")
    for name in ("type_vocab_size", "position_offset", "position_buckets", "conv_kernel_size", "local_attention"):
        _require(getattr(config, name) >= 0, f"model.{name} must be at least 0, not {getattr(config, name)}")
    for name in ("head_size", "embedding_size", "num_groups", "max_relative_positions", "mem_len", "reuse_len"):
        value = getattr(config, name)
        _require(value is None or value >= 1, f"model.{name} must be at least 1, not {value}")
    for name in ("hidden", "attention", "embedding", "attention_output", "feed_forward", "activation", "output"):
        value = config.rate(f"{name}_dropout")
        _require(0.0 <= value < 1.0, f"model.{name}_dropout must lie in [0, 1), not {value}")
    _require(
        config.head_size is not None or config.hidden_size % config.num_heads == 0,
        f"model.hidden_size {config.hidden_size} is not divisible by model.num_heads {config.num_heads}; head counts "
        f"that divide it: {_divisors_near(config.hidden_size, config.num_heads)} (or set model.head_size)",
    )
    if config.padded_vocab_size is not None:
        _require(
            config.padded_vocab_size >= config.vocab_size,
            f"padded_vocab_size {config.padded_vocab_size} is smaller than model.vocab_size {config.vocab_size}",
        )
    _require(len(config.labels) >= 1, "model.labels must name at least one label")


def _check_mixture(config: EncoderConfig) -> None:
    """Raises `UserError` for parts that make no sense together, with the reason."""
    for refused, reason in _refusals(config):
        _require(not refused, reason)


def _refusals(config: EncoderConfig) -> list[tuple[bool, str]]:
    position, shared = config.attention_position, config.num_groups is not None
    disentangled = position == "disentangled"
    terms = config.pos_att_type
    return [
        (
            position == "rotary" and config.head_dim % 2 == 1,
            f"attention_position=rotary turns pairs of numbers: the head size {config.head_dim} must be even",
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


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise UserError(message)


def _divisors_near(number: int, wanted: int) -> str:
    divisors = [d for d in range(1, min(number, 10_000) + 1) if number % d == 0]  # a file may claim a billion
    nearest = sorted(sorted(divisors, key=lambda d: abs(d - wanted))[:4])
    return ", ".join(map(str, nearest))
