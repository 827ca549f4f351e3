"""`objective`: what is learned, and what is hidden for it."""

from __future__ import annotations

from ml_collections import ConfigDict, config_dict


def objective_group() -> ConfigDict:
    objective = ConfigDict()
    # What is learned: "mlm" hides tokens and, with `pair`, judges pairs of segments; "clm" predicts the next token;
    # "plm" predicts some tokens in a random order, each from those before it and all that are not predicted (XLNet).
    # "distill" learns what a trained model does (DistilBERT, MiniLM, TinyBERT); "contrastive" tells a text's twin from
    # other texts (SimCSE); "rtd" tells original words from those of a generator, which learns, too (ELECTRA);
    # "task" is finetuning: `task` says on what (`bertjax finetune`).
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
    # mixture: "NAME@WEIGHT" of "mlm" and "clm", which share a network; weights are shares of the rows and of the loss.
    objective.mixture = ("mlm@15", "clm@1")
    # A hidden word is predicted from the state of the token before it, as a causal model does (GPT-BERT).
    objective.predict_next = False
    # "nsp": does the second segment follow the first (data.example_format = "nsp_pairs")? "sop": are the two in order
    # (data.example_format
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
