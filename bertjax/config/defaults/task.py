"""`task`: what `bertjax finetune` reads, learns and scores (objective.name=task)."""

from __future__ import annotations

from ml_collections import ConfigDict, config_dict


def task_group() -> ConfigDict:
    task = ConfigDict()
    # "classification" of texts or pairs of texts, "regression", "tokens" (a label a word: entities, parts of speech) or
    # "qa" (answers are spans of a text).
    task.kind = "classification"
    # Labelled data, KIND:PATH; kinds: tsv, csv, jsonl, hub:NAME@SPLIT and, of words, conll, of questions, squad. Paths
    # may have patterns and end in .gz.
    task.train = ()
    # The same to score on, after every `1 / evals_per_epoch` epochs; () = only losses of the training data are shown.
    task.eval = ()
    # Columns, by name or number (0 = the first, -1 = the last); None = the habit of the kind: text, no pair, label; of
    # words tokens and tags, in CoNLL files columns 0 and -1; ids are line numbers.
    task.text = config_dict.placeholder(str)
    task.pair = config_dict.placeholder(str)
    task.label = config_dict.placeholder(str)
    task.id = config_dict.placeholder(str)
    # Names of the labels in the order of their numbers; () = those of the training data, sorted.
    task.labels = ()
    # The first line of tsv and csv files names their columns.
    task.header = True
    # Train on every pair a second time, the other way round (ELECTRA on MRPC and STS-B).
    task.swap_pairs = False
    # What the labels of words are: "iob2", "iob1" (read as IOB2), "plain" labels, or "auto": looked at.
    task.tags = "auto"
    # Tokens of an example, special pieces included, and which text gives way where it is longer: "longest_first",
    # "only_first" or "only_second".
    task.max_len = 128
    task.cut = "longest_first"
    # qa: tokens that two windows of a context share, most tokens of a question and of an answer, answers kept of every
    # question, whether there are questions without an answer (SQuAD 2.0), and by how much no answer must be the better
    # one to be given.
    task.doc_stride = 128
    task.max_question_len = 64
    task.max_answer_len = 30
    task.n_best = 20
    task.no_answer = False
    task.null_threshold = 0.0
    # Examples of an update, and passes over them: `train.batch_size`, rows into which they are packed, and
    # `train.num_steps` follow from these two.
    task.batch_size = 32
    task.epochs = 3.0
    # Examples share rows of `max_len` tokens; False = one a row.
    task.packing = True
    # Different numbers of rows that batches come in: with 1 all have as many as the fullest needs; with 2 or 3 there is
    # less padding, and the step is compiled so many times. None = 1 below 150 updates on a CPU (1,500 elsewhere), 2
    # below ten times as many, else 3.
    task.row_counts = config_dict.placeholder(int)
    # Evaluations and checkpoints an epoch.
    task.evals_per_epoch = 1.0
    # Weights of the classes in the loss: () none; ("balanced",) inversely as frequent, 1 on average over the examples;
    # ("sqrt",) its root (FinBERT's paper); or a number a label.
    task.class_weights = ()
    # Gradual unfreezing in epochs: the last layer joins the head after so many, the next one after twice as many, ...;
    # None = as `optimizer.unfreeze_every` has it.
    task.unfreeze_epochs = config_dict.placeholder(float)
    # Take architecture and tokenizer of `init_from`, and draw the weights: what pretraining is worth.
    task.from_scratch = False
    # What is scored at last and exported: the "last" weights, or the "best" by `checkpoint.best_metric` (None =
    # accuracy, pearson or f1 of `eval`, as the kind has it).
    task.take = "last"
    return task
