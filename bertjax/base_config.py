"""Every key that a config may set, with its default: BERT's recipe (arXiv:1810.04805, appendix A.2).

A config file starts from `base_config()` and changes what it wants changed. A key that is not here cannot be set,
neither there nor on the command line. A key whose default is `None` (a placeholder) can be given `None` again.
Numbers derived from others are references, so that they follow an override of what they are derived from.
"""

from __future__ import annotations

from ml_collections import ConfigDict, config_dict


def base_config() -> ConfigDict:
    """A new, locked config with every declared key."""
    config = ConfigDict()

    # Seeds everything random: weights, order of the data, pairs, masks, dropout.
    config.seed = 0
    # A folder (ours or Hugging Face's) to take weights from, and nothing else, when the work folder has no checkpoint.
    config.init_from = config_dict.placeholder(str)
    # Where it has another tokenizer: "refuse", or "remap" = pieces of the same text keep their embeddings, others begin
    # as the mean of those into which its tokenizer cuts them.
    config.init_embeddings = "refuse"
    # Where it has fewer positions: "tile" repeats its table, "interpolate" spreads it. A longer table is cut.
    config.init_positions = "tile"
    # Print parameters, FLOPs, memory, tokens and epochs; train nothing, write nothing.
    config.dry_run = False
    # "any", "cpu", "gpu" or "tpu": naming one and not getting it is an error, so that no run is slow in silence.
    config.platform = "any"

    config.model = _model()
    config.generator = _generator()
    config.objective = _objective()
    config.data = _data()
    config.train = train = _train()
    config.optimizer = _optimizer()
    config.schedule = _schedule(train)
    config.eval = _eval(train)
    config.checkpoint = _checkpoint(train)
    config.mesh = _mesh()
    config.export = _export()
    config.logging = _logging()
    config.profile = _profile()
    return config.lock()


def make_tiny(config: ConfigDict) -> None:
    """Turns a recipe into one for a look at a family: two layers of 128, minutes on two CPU cores, then exported.

    The maths stays that of the family; sizes, data and optimizer become much like those of configs/quickstart.py.
    """
    config.model.num_layers = 2
    config.model.hidden_size = 128
    config.model.num_heads = 4
    config.model.intermediate_size = 512
    config.model.initializer_range = 0.05  # 0.02 is too little for so narrow a model
    config.model.hidden_dropout = 0.0  # too short a run to learn anything by heart
    config.model.attention_dropout = 0.0
    config.data.vocab_size = 4096
    config.data.seq_len = 64
    config.train.num_steps = 1500
    config.train.batch_size = 32
    config.train.batch_start = config.train.batch_ramp_steps = None
    config.train.phases = ()
    config.optimizer.name = "adamw"
    config.optimizer.learning_rate = 2e-3
    config.optimizer.b2 = 0.98
    config.optimizer.eps = 1e-8
    config.optimizer.clip_norm = 1.0
    config.optimizer.bias_correction = True
    config.schedule.name = "linear"
    config.schedule.warmup_steps = (config.train.get_ref("num_steps") + 9) // 10
    for key in ("end_share", "power", "decay_steps", "period_steps", "factor"):
        config.schedule[key] = None
    config.eval.interval_steps = (config.train.get_ref("num_steps") + 9) // 10
    config.eval.num_batches = 16
    config.export.at_end = True


def _model() -> ConfigDict:
    """A published size and what to change of it; sizes of the vocabulary come from the tokenizer."""
    model = ConfigDict()
    # A name of bertjax/models/zoo.py, such as "bert-base" or "bert-6x512". Every None below takes the preset's value.
    model.preset = "bert-base"
    # Whose Hugging Face classes an export gets where they can hold the model: bert roberta albert distilbert electra
    # deberta deberta-v2 xlnet modernbert gpt2; "bertjax" = our own format.
    model.family = config_dict.placeholder(str)
    # Sizes: width of the residual stream, layers, heads (must divide the width), width inside the feed-forward block.
    model.hidden_size = config_dict.placeholder(int)
    model.num_layers = config_dict.placeholder(int)
    model.num_heads = config_dict.placeholder(int)
    model.intermediate_size = config_dict.placeholder(int)
    # Width of a head where it is not hidden_size / num_heads.
    model.head_size = config_dict.placeholder(int)
    # Width of the embeddings where they are projected to hidden_size (ALBERT's factorisation), the bias of that
    # projection, and where their norm stands: "before" the projection, "after" it, "none".
    model.embedding_size = config_dict.placeholder(int)
    model.embedding_projection_bias = config_dict.placeholder(bool)
    model.embedding_norm = config_dict.placeholder(str)
    # Multiply word embeddings by the root of their width; make the embeddings of padding zero.
    model.embedding_scale = config_dict.placeholder(bool)
    model.mask_embeddings = config_dict.placeholder(bool)
    # Absolute positions: "learned", "sinusoidal" or "none". Positions inside attention: "none", "rotary",
    # "disentangled" (DeBERTa) or "relative" (XLNet).
    model.position_embedding = config_dict.placeholder(str)
    model.attention_position = config_dict.placeholder(str)
    # Longest example that the model can ever read, in tokens; rows of the position table before the first position.
    model.max_position_embeddings = config_dict.placeholder(int)
    model.position_offset = config_dict.placeholder(int)
    # Rows of the token type table: 2 tells the first segment from the second, 0 has no table.
    model.type_vocab_size = config_dict.placeholder(int)
    # Rotary: wave length base of layers that see the whole row, and of those with a window.
    model.rotary_base = config_dict.placeholder(float)
    model.rotary_local_base = config_dict.placeholder(float)
    # Disentangled: terms of the score beside content ("c2p", "p2c"); whether content projections serve positions, too;
    # rows per side of a logarithmic table (0 = a row per distance); largest distance told; a norm on the table.
    model.relative_terms = config_dict.placeholder(tuple)
    model.relative_share_key = config_dict.placeholder(bool)
    model.relative_buckets = config_dict.placeholder(int)
    model.relative_max_distance = config_dict.placeholder(int)
    model.relative_norm = config_dict.placeholder(bool)
    # Relative: scores tell same from other segment; distances are cut to this (-1 = not).
    model.relative_segments = config_dict.placeholder(bool)
    model.relative_clamp = config_dict.placeholder(int)
    # Relative: most tokens of earlier rows that are remembered, and how many of a row's first tokens are (XLNet's
    # mem_len and reuse_len; objective.name=plm takes 3/4 and 1/2 of a row where they are None); whether the second half
    # of every batch is text read backwards.
    model.mem_len = config_dict.placeholder(int)
    model.reuse_len = config_dict.placeholder(int)
    model.bi_data = config_dict.placeholder(bool)
    # Width (odd) and activation of a convolution of the embeddings, added after the first layer; 0 = none.
    model.conv_kernel_size = config_dict.placeholder(int)
    model.conv_act = config_dict.placeholder(str)
    # A token sees only those before it, and itself.
    model.causal = config_dict.placeholder(bool)
    # Local layers see window // 2 tokens on either side; layers 0, n, 2n, ... see the whole row (n = global_every).
    model.window = config_dict.placeholder(int)
    model.global_every = config_dict.placeholder(int)
    # Biases of attention: "all", "query_value" (DeBERTa v1) or "none".
    model.attention_bias = config_dict.placeholder(str)
    # "dense" (two products) or "glu" (gated: three), and whether they have biases.
    model.feed_forward = config_dict.placeholder(str)
    model.feed_forward_bias = config_dict.placeholder(bool)
    # "gelu" (erf), "gelu_new" (tanh, what Google's code computes), "relu" or "silu".
    model.hidden_act = config_dict.placeholder(str)
    # Norms "post" the residual sum or "pre" each block; their bias; whether the first layer's attention has one.
    model.norm_placement = config_dict.placeholder(str)
    model.norm_bias = config_dict.placeholder(bool)
    model.first_attention_norm = config_dict.placeholder(bool)
    # Added to the variance before its root.
    model.layer_norm_eps = config_dict.placeholder(float)
    # Layers share parameters in this many groups (ALBERT: 1), each of `inner_layers` layers run in a row.
    model.num_groups = config_dict.placeholder(int)
    model.inner_layers = config_dict.placeholder(int)
    # Share dropped of every block's output, and of the attention probabilities; [0, 1). The next three are as
    # `hidden_dropout` unless set; the last three are inside the feed-forward block, of the last hidden state, and
    # before a classifier.
    model.hidden_dropout = config_dict.placeholder(float)
    model.attention_dropout = config_dict.placeholder(float)
    model.embedding_dropout = config_dict.placeholder(float)
    model.attention_output_dropout = config_dict.placeholder(float)
    model.feed_forward_dropout = config_dict.placeholder(float)
    model.activation_dropout = config_dict.placeholder(float)
    model.output_dropout = config_dict.placeholder(float)
    model.classifier_dropout = config_dict.placeholder(float)
    # "truncated_normal" (cut at two sigma, not rescaled) or "normal", its sigma, and whether products that end a block
    # are drawn with sigma / sqrt(2 num_layers).
    model.initializer = config_dict.placeholder(str)
    model.initializer_range = config_dict.placeholder(float)
    model.scale_residual_init = config_dict.placeholder(bool)
    # Activation of the pooler.
    model.pooler_act = config_dict.placeholder(str)
    # Masked-word head: "transform" (dense, activation, norm, scores, bias), "bias" (scores, bias) or "tied" (scores);
    # its activation where not hidden_act; biases of its dense layer (and of classifiers') and of its scores.
    model.mlm_head = config_dict.placeholder(str)
    model.mlm_act = config_dict.placeholder(str)
    model.head_dense_bias = config_dict.placeholder(bool)
    model.mlm_bias = config_dict.placeholder(bool)
    # Masked words are read from the last layer run twice over absolute positions (DeBERTa).
    model.enhanced_decoder = config_dict.placeholder(bool)
    # Replaced-token head: "dense" (ELECTRA) or "summary" (DeBERTa v3).
    model.rtd_head = config_dict.placeholder(str)
    # Span-boundary head: places of a span that are told apart, and the width of their embeddings.
    model.span_positions = config_dict.placeholder(int)
    model.span_position_size = config_dict.placeholder(int)
    # Classifiers: what stands for an example ("first", "last", "mean"), the dense layer on it ("pooler", "own",
    # "none"), its activation and norm, whether token heads have it, too; names of the labels.
    model.summary = config_dict.placeholder(str)
    model.summary_dense = config_dict.placeholder(str)
    model.summary_act = config_dict.placeholder(str)
    model.summary_norm = config_dict.placeholder(bool)
    model.token_dense = config_dict.placeholder(bool)
    model.labels = config_dict.placeholder(tuple)
    # How attention is computed: "auto", "xla", "cudnn" (GPU), "splash" (TPU), "interpret" (splash on a CPU, for tests).
    model.attention_implementation = config_dict.placeholder(str)
    # Backward pass: "none" keeps every activation, "dots" keeps the products with weights, "full" only layer inputs.
    model.remat = config_dict.placeholder(str)
    # Layers in one body of the scan: larger compiles longer and may run faster. None = all on a CPU, else 1.
    model.unroll = config_dict.placeholder(int)
    return model


def _generator() -> ConfigDict:
    """objective.name=rtd: the network whose words `model`, the discriminator, is to find. None = as the model has it.

    Its keys are those of `model`; widths and depth that are not set are the model's times the two shares.
    """
    generator = _model()
    # A published size to begin with, instead of the model's own values.
    generator.preset = config_dict.placeholder(str)
    # Width of the generator as a share of the model's (ELECTRA: 1/4, base 1/3); its heads are as wide as the model's.
    generator.width_share = 1.0
    # Layers of the generator as a share of the model's (DeBERTa v3: 1/2).
    generator.depth_share = 1.0
    return generator


def _objective() -> ConfigDict:
    objective = ConfigDict()
    # What is learned: "mlm" hides tokens and, with `pair`, judges pairs of segments; "clm" predicts the next token;
    # "plm" predicts some tokens in a random order, each from those before it and all that are not predicted (XLNet).
    # "distill" learns what a trained model does (DistilBERT, MiniLM, TinyBERT); "contrastive" tells a text's twin from
    # other texts (SimCSE); "rtd" tells original words from those of a generator, which learns, too (ELECTRA);
    # "mixture" gives every objective of `mixture` its own rows of the batch.
    objective.name = "mlm"
    # What is hidden together: "token" one piece, "whole_word" the pieces of a word, "ngram" up to `max_ngram` words
    # (ALBERT), "ngram_window" the same, one n-gram in every window of n / mask_rate words (DeBERTa), "span" up to
    # `max_span` words (SpanBERT), "frequency" one piece, rare ones more often (DistilBERT).
    objective.masking = "token"
    # True: new masks every time an example comes. False: the masks repeat every `data.dupe_factor` epochs.
    objective.dynamic = True
    # Share of an example's tokens (special ones counted, even where they are never chosen) that are predicted.
    objective.mask_rate = 0.15
    # The share at the end of the run, reached linearly; None = `mask_rate` throughout. Held-out text keeps `mask_rate`.
    objective.mask_rate_final = config_dict.placeholder(float)
    # How the share becomes a number: "round" (BERT), "ceil" of the share of what may be chosen (SpanBERT), "random" =
    # floor(share + U[0, 1)) (RoBERTa), "random_words" the same of its words (fairseq's whole words), "bernoulli" =
    # every token for itself (ModernBERT).
    objective.mask_count = "round"
    # Most predictions in an example; None = what the share asks for in a full row, which never binds.
    objective.max_predictions = config_dict.placeholder(int)
    # [CLS] and [SEP] may be chosen (RoBERTa, ModernBERT), and unknown pieces may (all but DeBERTa and DistilBERT).
    objective.mask_specials = False
    objective.mask_unknown = True
    # Positions are drawn with replacement (ELECTRA): with 15 %, 14 % differ; one drawn twice counts twice in the loss.
    objective.mask_with_replacement = False
    # Longest n-gram in words (plm: see `ngram_words`); their lengths n have probabilities in proportion to 1 / n.
    objective.max_ngram = 3
    # Longest span in words, and p of the geometric distribution of lengths, truncated there and scaled to sum to 1.
    objective.max_span = 10
    objective.span_p = 0.2
    # "frequency": a piece that the corpus has c times is drawn with weight c ** -frequency_power.
    objective.frequency_power = 0.7
    # Of the chosen tokens, the share replaced by [MASK] and the share replaced by a random piece; the rest is kept.
    objective.mask_token_rate = 0.8
    objective.random_token_rate = 0.1
    # Who shares one such decision: every "token" has its own, all of a "word" (fairseq), all neighbours: "span".
    objective.mask_decision = "token"
    # Random pieces are "uniform" over the vocabulary, specials too (BERT), or "unigram": as frequent as in the corpus
    # (SpanBERT); the first `random_first_id` ids are never drawn (RoBERTa: 4).
    objective.random_source = "uniform"
    objective.random_first_id = 0
    # plm: tokens predicted in a row; None = a sixth of it (85 of 512).
    objective.num_predict = config_dict.placeholder(int)
    # plm: tokens that are permuted together: rows (form segments: their two parts) are cut into blocks of this size,
    # which are predicted one after the other. None = no smaller blocks.
    objective.perm_size = config_dict.placeholder(int)
    # plm: an n-gram stands in a context of n * mask_alpha // mask_beta tokens.
    objective.mask_alpha = 6
    objective.mask_beta = 1
    # plm: n-grams are n words (True) or, as in the released code, n pieces from the start of a word on.
    objective.ngram_words = False
    # mixture: "NAME@WEIGHT" of "mlm" and "clm", which share one network; weights are shares of the rows and of the loss.
    objective.mixture = ("mlm@15", "clm@1")
    # A hidden word is predicted from the state of the token before it, as a causal model does (GPT-BERT).
    objective.predict_next = False
    # "nsp": does the second segment follow the first (data.form = "nsp_pairs")? "sop": are the two in order (data.form
    # = "sop_pairs")? "none": no such question.
    objective.pair = "nsp"
    # Factors of the losses (each a mean) in the sum that is minimised: masked words, pairs, and SpanBERT's words told
    # from the boundaries of their span (0 = no such head). contrastive: mlm_weight 0 = no such head.
    objective.mlm_weight = 1.0
    objective.pair_weight = 1.0
    objective.span_boundary = 0.0
    # rtd: factor of the discriminator's loss, beside `mlm_weight` of the generator's.
    objective.disc_weight = 50.0
    # rtd: what the generator's logits are divided by before its words are drawn.
    objective.temperature = 1.0
    # rtd: what generator and discriminator share. "embeddings": word, position and type tables and their norm, taught
    # by both (ELECTRA). "gdes": the discriminator's word and position tables are what it learns itself plus the
    # generator's, which it leaves alone (DeBERTa v3). "none": nothing. "all": everything but the heads.
    objective.sharing = "embeddings"
    # rtd: where a position was drawn k times (`mask_with_replacement`), the mean of k words' ids stands there, rounded
    # down, as in ELECTRA's code: an unrelated piece, if they differ. False = one word.
    objective.average_repeats = False
    # distill: folder of the teacher (ours or Hugging Face's), which must have the pieces of `data.tokenizer`.
    objective.teacher = config_dict.placeholder(str)
    # distill: the teacher's layers that the student's start as, one for each, beside embeddings and heads, such as
    # 0,2,4,7,9,11 (DistilBERT); None = all is drawn afresh.
    objective.teacher_layers = config_dict.placeholder(tuple)
    # distill: False shows both the text as it is, for losses that ask for no word (the later TinyBERT).
    objective.masked_text = True
    # distill: factors of its losses beside `mlm_weight`, 0 = none. Soft: the teacher's distribution of words; cosine:
    # the angle of the last states (DistilBERT). Relations: those below (MiniLM). Hidden: the states of all layers and
    # the embeddings, through a learned projection where widths differ; attention: scores of all layers (TinyBERT).
    objective.soft_weight = 5.0
    objective.cosine_weight = 1.0
    objective.relations_weight = 0.0
    objective.hidden_weight = 0.0
    objective.attention_weight = 0.0
    # distill: what logits are divided by on both sides; where words are compared: at "all" tokens or the "masked" ones.
    objective.soft_temperature = 2.0
    objective.soft_positions = "all"
    # distill: "attention" = the probabilities of attention, head by head; "qq", "kk", "vv", "qk" and so on = how alike
    # queries, keys and values of two tokens are, in `relation_heads` parts (None = the teacher's heads).
    objective.relations = ("qq", "kk", "vv")
    objective.relation_heads = config_dict.placeholder(int)
    # distill: the teacher's layer (the first is 0) whose relations the student's last one learns; None = its last.
    objective.relation_layer = config_dict.placeholder(int)
    # contrastive: what stands for a text: its "first" token, behind a dense layer while training, or the "mean" of all.
    objective.pooling = "first"
    # contrastive: what cosines are divided by.
    objective.contrast_temperature = 0.05
    return objective


def _data() -> ConfigDict:
    data = ConfigDict()
    # KIND:WHERE[#FIELD][@WEIGHT], such as "text:books/*.txt.gz@0.3"; kinds: builtin text lines files jsonl parquet hub.
    data.sources = ("builtin:python-docs",)
    # Held-out text, written the same way; () holds out documents of `sources`, chosen by the hash of their text.
    data.eval_sources = ()
    # Share of documents held out when `eval_sources` is ().
    data.eval_fraction = 0.01
    # "wordpiece", "bpe" or "unigram": trained on `sources`. Else the path of one: a folder, tokenizer.json, vocab.txt,
    # spiece.model.
    data.tokenizer = "wordpiece"
    # Whose special pieces and ids a trained tokenizer gets.
    data.tokenizer_family = "bert"
    # Pieces of a trained tokenizer, special ones included; the most that a given one may have.
    data.vocab_size = 30522
    # Lower-case and strip accents ("uncased"); of a given one only if it is a bare vocab.txt or spiece.model.
    data.lowercase = True
    # Tokens in a row, special ones included.
    data.seq_len = 128
    # What a row holds: "nsp_pairs" (two segments, the second random or what follows), "sop_pairs" (two segments that
    # follow each other, half of them swapped) or "block" (text cut to length). Rows that go on from batch to batch, for
    # models with a memory: "segments" (XLNet: `model.reuse_len` tokens, by default half of the row, then two segments)
    # or "stream" (text and nothing else).
    data.form = "nsp_pairs"
    # sop_pairs: True leaves out pieces of a single sentence; False pairs them with random text and calls that swapped,
    # as the released code of ALBERT does.
    data.sop_strict = False
    # Pairs: share of documents that aim at a random shorter length instead of `seq_len`.
    data.short_seq_prob = 0.1
    # Epochs after which pairs (and static masks) come again as they were.
    data.dupe_factor = 10
    # Invalid UTF-8: "strict" stops and names file and line, "replace" puts U+FFFD in its place.
    data.errors = "strict"
    # Where tokenizers and tokenised corpora are kept, named by their content and shared by all runs.
    data.cache_dir = "~/.cache/bertjax"
    return data


def _train() -> ConfigDict:
    train = ConfigDict()
    # Updates of the weights; warmup, intervals and the schedule follow it.
    train.num_steps = 1_000_000
    # Rows in one update, over all devices and microbatches.
    train.batch_size = 256
    # Rows at the beginning, which grow to `batch_size` by as many at a time (each size is compiled), over the first
    # `batch_ramp_steps` updates (None = a tenth of the run); None = no ramp. The learning rate does not follow.
    train.batch_start = config_dict.placeholder(int)
    train.batch_ramp_steps = config_dict.placeholder(int)
    # Phases that come first, one after the other: "STEPS:KEY=VALUE,KEY=VALUE" or "90%:...", such as
    # "90%:data.seq_len=128" (BERT). What no phase sets, and whatever comes after them, is as the rest of the config says.
    train.phases = ()
    # Parts of a batch that go through the model one after the other: less memory, the same update.
    train.microbatches = 1
    # Type of the products; weights and sums stay float32. "auto" = bfloat16 on accelerators
    # and on processors that multiply it fast (avx512_bf16, amx_bf16), else float32.
    train.compute_dtype = "auto"
    # Updates between two lines of metrics; about 200 lines a run.
    train.log_interval_steps = (train.get_ref("num_steps") + 199) // 200
    # Random bits of dropout: "threefry" is the same on every mesh and machine, "rbg" is faster on accelerators.
    train.dropout_prng = "threefry"
    return train


def _optimizer() -> ConfigDict:
    optimizer = ConfigDict()
    # "adamw": Adam with decay decoupled from the gradient. "lamb" (ALBERT): every tensor of every layer moves in
    # proportion to its norm. "stable_adamw" (ModernBERT): a tensor slows down where its gradients jump; meant to run
    # with clip_norm 0. "muon": the matrices of the layers move by orthogonal ones, the rest by "adamw".
    optimizer.name = "adamw"
    # The highest rate, at the end of warmup.
    optimizer.learning_rate = 1e-4
    # Decay of the mean of gradients and of the mean of their squares; what is added to the root of the latter.
    optimizer.b1 = 0.9
    optimizer.b2 = 0.999
    optimizer.eps = 1e-6
    # Divide both means by their lack of history. BERT does not (google-research/bert:optimization.py), nor does ALBERT.
    optimizer.bias_correction = False
    # Share of a weight taken away at each update, times the learning rate; with "stable_adamw" times the share of
    # `learning_rate` that the schedule is at, so much smaller numbers do the same.
    optimizer.weight_decay = 0.01
    # Largest global norm of the gradient; 0 = no clipping.
    optimizer.clip_norm = 1.0
    # Parameters that are not decayed: regexes of whole paths such as "encoder/layers/3/attention/query/bias".
    optimizer.decay_exclude = (r".*/(bias|scale)",)
    # "REGEX=FACTOR" multiplies the learning rate of the parameters whose whole path matches; the first match counts.
    optimizer.rates = ()
    # Rates that shrink by this factor from each layer to the one below, the embeddings lowest; `rates` come first.
    # None = all layers learn alike.
    optimizer.layer_decay = config_dict.placeholder(float)
    # Its power at the last layer: 1 (FinBERT), 2 (ELECTRA's code), 0 (ULMFiT: the last layer has the whole rate).
    optimizer.layer_decay_top = 1
    # lamb: parameters whose update is not scaled to their norm; None = those of `decay_exclude`.
    optimizer.trust_exclude = config_dict.placeholder(tuple)
    # muon: parameters that it takes, each a matrix; None = the kernels of the layers.
    optimizer.muon_include = config_dict.placeholder(tuple)
    # muon: decay of the mean of gradients; None = 0.95.
    optimizer.muon_momentum = config_dict.placeholder(float)
    # muon: root mean square of its updates; None = 0.2, like those of Adam, so that both can share a learning rate
    # (arXiv:2502.16982). 0 = an orthogonal matrix times sqrt(max(1, out / in)), as first published, with rates ~ 0.02.
    optimizer.muon_rms = config_dict.placeholder(float)
    # Keep an exponential average of the weights with this decay, such as 0.9999 (4 bytes a parameter); it weighs less
    # at the start. `eval.use_ema` says what it is for. None = no average.
    optimizer.ema_decay = config_dict.placeholder(float)
    return optimizer


def _schedule(train: ConfigDict) -> ConfigDict:
    schedule = ConfigDict()
    # After warmup: "bert" (linear to the end, counted from step 0, with a small fall where warmup ends), "electra" (the
    # same decay times the warmup: no fall), "linear" (from the end of warmup), "polynomial", "cosine", "wsd" (constant,
    # then 1 - sqrt), "constant", "inverse_sqrt" (Noam), "step", "exponential", "cyclical" (triangles, without warmup),
    # "slanted_triangular" (ULMFiT: warmup is its rise, a tenth of the run in the paper).
    schedule.name = "bert"
    # Updates over which the rate rises from 0; 1 % of the run (10,000 of 1,000,000).
    schedule.warmup_steps = train.get_ref("num_steps") // 100
    # Lowest share of the peak rate, at the end or between cycles; None = 0, or 1/32 of "slanted_triangular".
    schedule.end_share = config_dict.placeholder(float)
    # polynomial: power of what is left of the run; None = 1, a straight line.
    schedule.power = config_dict.placeholder(float)
    # wsd: updates of the fall at the end; None = a tenth of the run.
    schedule.decay_steps = config_dict.placeholder(int)
    # Updates between two drops (step), over which the rate falls by `factor` (exponential), or of one cycle, up and
    # down (cyclical); None = a quarter of the run.
    schedule.period_steps = config_dict.placeholder(int)
    # What a period multiplies the rate by, or, of "cyclical", its height (0.5 = "triangular2"); None = 0.1, cyclical 1.
    schedule.factor = config_dict.placeholder(float)
    return schedule


def _eval(train: ConfigDict) -> ConfigDict:
    evaluation = ConfigDict()
    # Updates between two evaluations; 0 = only at the end.
    evaluation.interval_steps = (train.get_ref("num_steps") + 19) // 20
    # Most held-out batches in one evaluation: always the same ones, with the same masks.
    evaluation.num_batches = 32
    # Rows in one of them.
    evaluation.batch_size = train.get_oneway_ref("batch_size")
    # Evaluate, show and export the averaged weights, where the run keeps them (`optimizer.ema_decay`), not the last.
    evaluation.use_ema = True
    # Sentences with [MASK] whose most likely fillings are shown after each evaluation.
    evaluation.fill_mask = ()
    return evaluation


def _checkpoint(train: ConfigDict) -> ConfigDict:
    checkpoint = ConfigDict()
    # Updates between two checkpoints (there is always one at the end), and minutes after which one is due anyway.
    checkpoint.interval_steps = (train.get_ref("num_steps") + 19) // 20
    checkpoint.interval_minutes = config_dict.placeholder(float)
    # How many of the newest to keep; beside them, for ever, those whose step is a multiple of `keep_every`.
    checkpoint.keep = 3
    checkpoint.keep_every = config_dict.placeholder(int)
    # Keep the best by this figure too: a key of metrics.jsonl such as "eval/mlm_loss"; smaller is better
    # unless its name ends in "accuracy".
    checkpoint.best_metric = config_dict.placeholder(str)
    return checkpoint


def _mesh() -> ConfigDict:
    """How devices share the work; the product of the three is the number of devices, -1 = those that remain."""
    mesh = ConfigDict()
    # Rows are split; weights are copied.
    mesh.data = -1
    # Rows are split, and so are weights and optimizer state: gathered layer by layer.
    mesh.fsdp = 1
    # Heads and feed-forward widths are split.
    mesh.tensor = 1
    return mesh


def _export() -> ConfigDict:
    export = ConfigDict()
    # Write `export/`, a Hugging Face folder, into the work folder when the run ends.
    export.at_end = False
    return export


def _logging() -> ConfigDict:
    """metrics.jsonl is always written."""
    logging = ConfigDict()
    # Write TensorBoard events into the work folder.
    logging.tensorboard = True
    # Weights & Biases project to report to (extra `wandb`).
    logging.wandb_project = config_dict.placeholder(str)
    return logging


def _profile() -> ConfigDict:
    profile = ConfigDict()
    # Record a trace of the device from this update on; None = never.
    profile.start_step = config_dict.placeholder(int)
    # Updates recorded.
    profile.num_steps = 5
    return profile
