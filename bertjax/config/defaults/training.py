"""`train`, `optimizer`, `schedule` and what goes with a run."""

from __future__ import annotations

from ml_collections import ConfigDict, config_dict


def train_group() -> ConfigDict:
    train = ConfigDict()
    # Updates of the weights; warmup, intervals and the schedule follow it.
    train.num_steps = 1_000_000
    # Rows in one update, over all devices and microbatches.
    train.batch_size = 256
    # Rows at the beginning, which grow to `batch_size` by as many at a time (each size is compiled), over the first
    # `batch_ramp_steps` updates (None = a tenth of the run); None = no ramp. The learning rate does not follow.
    train.initial_batch_size = config_dict.placeholder(int)
    train.batch_ramp_steps = config_dict.placeholder(int)
    # Phases that come first, one after the other: "STEPS:KEY=VALUE,KEY=VALUE" or "90%:...", such as
    # "90%:data.seq_len=128" (BERT). What no phase sets, and what comes after them, is as the rest of the config says.
    train.phases = ()
    # Parts of a batch that go through the model one after the other: less memory, the same update.
    train.microbatches = 1
    # Updates that go to the devices in one piece: pays for small models, whose update is over before the host has sent
    # the next one. Intervals should be multiples of it: an evaluation, a checkpoint or a line of metrics ends a piece,
    # and what is left is sent one by one. A signal is heard between pieces.
    train.steps_per_dispatch = 1
    # Type of the products; weights and sums stay float32. "auto" = bfloat16 on accelerators
    # and on processors that multiply it fast (avx512_bf16, amx_bf16), else float32.
    train.compute_dtype = "auto"
    # Updates between two lines of metrics; about 200 lines a run.
    train.log_interval_steps = (train.get_ref("num_steps") + 199) // 200
    # Random bits of dropout: "threefry" is the same on every mesh and machine, "rbg" is faster on accelerators.
    train.dropout_prng = "threefry"
    # When a loss, a gradient or a weight is no finite number: "raise" stops the run with a report, "skip" leaves that
    # update out and counts it, "rollback" takes the newest checkpoint up again, behind the batch at fault. The batch
    # itself goes to `faults/` in the work folder.
    train.on_nonfinite = "raise"
    # skip: updates left out one after the other, rollback: returns to the same checkpoint, after which the run stops.
    train.max_nonfinite = 5
    # A loss counts as a spike when it lies above the median of the 128 before it by more than this many of their
    # standard deviations (by the median, too), such as 10: it is counted, printed, and with "rollback" undone.
    # None = nobody looks.
    train.spike_factor = config_dict.placeholder(float)
    # Batches never to train on, by their number: "57" or "57-60" (both ends). All others stay what they are.
    train.skip_batches = ()
    return train


def optimizer_group() -> ConfigDict:
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
    optimizer.lr_mults = ()
    # Rates that shrink by this factor from each layer to the one below, the embeddings lowest; `rates` come first.
    # None = all layers learn alike.
    optimizer.layerwise_lr_decay = config_dict.placeholder(float)
    # Its power at the last layer: 1 (FinBERT), 2 (ELECTRA's code), 0 (ULMFiT: the last layer has the whole rate).
    optimizer.layerwise_lr_decay_top = 1
    # Rate of the embeddings; those of the layers rise from it to `learning_rate`, which heads have, by equal factors
    # (fastai's slice(bottom_lr, learning_rate)). None = all learn alike, or as `layerwise_lr_decay` says.
    optimizer.bottom_lr = config_dict.placeholder(float)
    # Gradual unfreezing: heads learn from the start, the last layer after so many updates, the next below it after
    # twice as many, ..., the embeddings last. None = all learn from the start.
    optimizer.unfreeze_every = config_dict.placeholder(int)
    # The same by name, "REGEX=UPDATE" over whole paths: what matches moves from that update on; the first match counts,
    # before `unfreeze_every`. "encoder/embeddings/.*=1000000000" never moves.
    optimizer.unfreeze = ()
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
    # Type in which the means of gradients and of their squares are kept, "float32" or "bfloat16": 4 bytes a parameter
    # instead of 8 (muon: 2 instead of 4), rounded up or down by chance, for rounded to the nearest they stand still.
    optimizer.moments_dtype = "float32"
    return optimizer


def schedule_group(train: ConfigDict) -> ConfigDict:
    schedule = ConfigDict()
    # After warmup: "bert" (linear to the end, counted from step 0, with a small fall where warmup ends), "electra" (the
    # same decay times the warmup: no fall), "linear" (from the end of warmup), "polynomial", "cosine", "wsd" (constant,
    # then 1 - sqrt), "constant", "inverse_sqrt" (Noam), "step", "exponential", "cyclical" (triangles, without warmup),
    # "slanted_triangular" (ULMFiT: warmup is its rise, a tenth of the run in the paper). "rising_linear" and
    # "rising_exponential" go up from `end_lr_ratio` to the peak: range tests, which `bertjax lr-find` makes.
    schedule.name = "bert"
    # Updates over which the rate rises from 0; 1 % of the run (10,000 of 1,000,000).
    schedule.warmup_steps = train.get_ref("num_steps") // 100
    # Lowest share of the peak rate, at the end or between cycles; None = 0, or 1/32 of "slanted_triangular".
    schedule.end_lr_ratio = config_dict.placeholder(float)
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


def eval_group(train: ConfigDict) -> ConfigDict:
    evaluation = ConfigDict()
    # Updates between two evaluations; 0 = only at the end.
    evaluation.interval_steps = (train.get_ref("num_steps") + 19) // 20
    # Most held-out batches in one evaluation: always the same ones, with the same masks.
    evaluation.num_batches = 32
    # Rows in one of them.
    evaluation.batch_size = train.get_oneway_ref("batch_size")
    # End the run when `checkpoint.best_metric` was not better than before for so many evaluations; None = never.
    evaluation.patience = config_dict.placeholder(int)
    # Evaluate, show and export the averaged weights, where the run keeps them (`optimizer.ema_decay`), not the last.
    evaluation.use_ema = True
    # Sentences with [MASK] whose most likely fillings are shown after each evaluation.
    evaluation.fill_mask = ()
    return evaluation


def checkpoint_group(train: ConfigDict) -> ConfigDict:
    checkpoint = ConfigDict()
    # Updates between two checkpoints (there is always one at the end), and minutes after which one is due anyway.
    checkpoint.interval_steps = (train.get_ref("num_steps") + 19) // 20
    checkpoint.interval_minutes = config_dict.placeholder(float)
    # How many of the newest to keep; beside them, for ever, those whose step is a multiple of `keep_every`.
    checkpoint.keep = 3
    checkpoint.keep_every = config_dict.placeholder(int)
    # Keep the best by this figure too: a key of metrics.jsonl such as "eval/mlm_loss"; smaller is better
    # unless it ends in the name of a score: accuracy, f1, precision, recall, matthews, pearson, spearman, exact_match.
    checkpoint.best_metric = config_dict.placeholder(str)
    return checkpoint


def export_group() -> ConfigDict:
    export = ConfigDict()
    # Write `export/`, a Hugging Face folder, into the work folder when the run ends.
    export.at_end = False
    return export


def logging_group() -> ConfigDict:
    """metrics.jsonl is always written."""
    logging = ConfigDict()
    # Write TensorBoard events into the work folder.
    logging.tensorboard = True
    # Weights & Biases project to report to (extra `wandb`).
    logging.wandb_project = config_dict.placeholder(str)
    return logging


def report_group() -> ConfigDict:
    """`report.html` of the work folder, written anew after every evaluation."""
    report = ConfigDict()
    # Write it, and look into the model for it: the fillings of `eval.fill_mask` at every evaluation; attention and
    # nearest pieces four times in a run. False = nothing; `bertjax report` can still draw the figures later.
    report.enabled = True
    # Sentence whose attention is shown, its first 24 tokens; None = the first of `eval.fill_mask`, "" = none.
    report.sentence = config_dict.placeholder(str)
    # Pieces whose neighbours among the word vectors are shown; () = eight frequent words.
    report.tokens = ()
    return report


def profile_group() -> ConfigDict:
    profile = ConfigDict()
    # Record a trace of these updates, FIRST:LAST (both recorded, counted from 1), such as "10:15", into `profile/` of
    # the work folder, for TensorBoard and Perfetto; the first few updates compile and warm up. None = never.
    profile.steps = config_dict.placeholder(str)
    return profile
