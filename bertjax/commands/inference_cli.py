"""Flags and calls of the commands that only ask a trained model something; what is heavy is imported when called."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

USES = ("predict", "pseudo-label", "fill-mask", "embed", "eval-sts", "eval-minimal-pairs")
"""What only asks a trained model something."""
KINDS = ("classification", "regression", "tokens", "qa")
IN_HELP = "jsonl, txt (a text a line), tsv, csv, conll, json (SQuAD), or KIND:WHERE as in task.train; -: stdin"
MODEL_HELP = "a Hugging Face folder, an export, or the work folder of a run"


def add_uses(command: Callable[[str, str], argparse.ArgumentParser]) -> None:
    """Declares their flags; `command` makes a parser of a name and a description."""
    _add_predict(command("predict", "what a finetuned model says of the examples of files"))
    _add_label(command("pseudo-label", "labels of a larger model for texts without any, and how far to trust them"))
    sub = command("fill-mask", "what a model puts behind the [MASK]s of sentences")
    sub.add_argument("sentences", nargs="*", metavar="SENTENCE", help="none, or -: lines of the standard input")
    sub.add_argument("--model", type=Path, required=True, metavar="FOLDER", help=MODEL_HELP)
    sub.add_argument("--top-k", type=int, default=5, metavar="N", help="pieces for each mask (default 5)")
    sub.add_argument("--jsonl", action="store_true", help="print a JSON object for each sentence")
    sub = command("embed", "one vector for every text of a file")
    sub.add_argument("--model", type=Path, required=True, metavar="FOLDER", help=MODEL_HELP)
    sub.add_argument("--in", dest="source", required=True, metavar="FILE", help="one text a line, or .jsonl; -: stdin")
    sub.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="ends in .npz (holds `vectors`), .npy or .jsonl"
    )
    sub.add_argument("--field", default="text", metavar="NAME", help="of .jsonl: where the text is (default text)")
    sub.add_argument(
        "--normalize",
        action=argparse.BooleanOptionalAction,
        help="scale vectors to length one (default: as the folder says, else not)",
    )
    _add_reading(sub)
    sub = command("eval-sts", "how cosines of pairs of texts agree with what people say (STS)")
    sub.add_argument("--model", type=Path, required=True, metavar="FOLDER", help=MODEL_HELP)
    sub.add_argument(
        "--pairs", nargs="+", required=True, metavar="SOURCE", help="tsv:, csv:, jsonl: or hub:, as in task.train"
    )
    sub.add_argument("--text", metavar="COLUMN", help="of the first text (default: text)")
    sub.add_argument("--pair", default="pair", metavar="COLUMN", help="of the second (default: pair)")
    sub.add_argument("--label", metavar="COLUMN", help="of the similarity, on any scale (default: label)")
    sub.add_argument("--no-header", action="store_true", help=".tsv and .csv name no columns: give numbers, 0 = first")
    _add_reading(sub)
    sub = command("eval-minimal-pairs", "how often a model prefers the right one of two sentences (BLiMP)")
    sub.add_argument("--model", type=Path, required=True, metavar="FOLDER", help=MODEL_HELP)
    sub.add_argument(
        "--pairs", nargs="+", required=True, metavar="FILE", help=".jsonl with sentence_good, sentence_bad"
    )
    sub.add_argument(
        "--score",
        choices=("pll", "within-word", "likelihood"),
        help="pll hides each token in turn, within-word the rest of its word, too (default: likelihood of causal "
        "models, else pll)",
    )
    sub.add_argument(
        "--group-by", metavar="FIELD", help="group pairs by it (default: phenomenon, linguistics_term or UID)"
    )
    sub.add_argument("--out", type=Path, metavar="FILE", help="a .jsonl file for the scores of every pair")
    sub.add_argument("--batch-tokens", type=int, metavar="N", help="tokens of a batch: less takes less memory")


def _add_reading(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--pooling", choices=("mean", "cls"), help="default: as the folder or run says, else mean")
    sub.add_argument(
        "--max-length", type=int, metavar="N", help="tokens that are read of a text (default: all that the model can)"
    )
    sub.add_argument("--batch-tokens", type=int, metavar="N", help="tokens of a batch: less takes less memory")


def _add_columns(sub: argparse.ArgumentParser) -> None:
    for name, usual in (("text", "text"), ("pair", "none"), ("label", "label"), ("id", "id of .jsonl, else none")):
        sub.add_argument(f"--{name}", metavar="COLUMN", help=f"its column (default: as finetuned, else {usual})")
    sub.add_argument("--no-header", action="store_true", help=".tsv and .csv name no columns: give numbers, 0 = first")
    sub.add_argument("--max-length", type=int, metavar="N", help="tokens read of an example (default: as finetuned)")
    sub.add_argument("--batch-tokens", type=int, metavar="N", help="tokens of a batch: less takes less memory")


def _add_predict(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--model", type=Path, required=True, metavar="FOLDER", help=MODEL_HELP)
    sub.add_argument("--in", dest="source", nargs="+", required=True, metavar="FILE", help=IN_HELP)
    sub.add_argument("--out", required=True, metavar="FILE", help="a .jsonl file; -: the standard output")
    sub.add_argument("--kind", choices=KINDS, help="where a model has the heads of several tasks")
    sub.add_argument("--score", action="store_true", help="print the figures against the labels of the input")
    sub.add_argument("--with-input", action="store_true", help="write the texts beside what is said of them")
    sub.add_argument(
        "--top-k", type=int, metavar="N", help="probabilities or answers written (default: all, 5 answers)"
    )
    sub.add_argument("--no-answer", action="store_true", help="questions may have no answer (SQuAD 2.0)")
    _add_columns(sub)


def _add_label(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--model", type=Path, metavar="FOLDER", help=f"a classifier: {MODEL_HELP}")
    sub.add_argument(
        "--labels-file", metavar="FILE", help="or .jsonl of a language model: text or id, label, confidence"
    )
    sub.add_argument("--labels", metavar="A,B", help="of --labels-file (default: those of the gold sample)")
    sub.add_argument("--in", dest="source", nargs="+", default=[], metavar="FILE", help=IN_HELP)
    sub.add_argument("--out", type=Path, required=True, metavar="FILE", help=".jsonl or .tsv, to train on")
    sub.add_argument("--min-confidence", type=float, metavar="P", help="keep labels of at least this probability")
    sub.add_argument("--max-per-class", type=int, metavar="N", help="keep at most N of a label, the surest")
    sub.add_argument("--balance", action="store_true", help="keep as many of each label as there are of the rarest")
    sub.add_argument("--gold", metavar="FILE", help="a sample that people have labelled (.tsv, .csv, .jsonl)")
    _add_columns(sub)


def _run_on_examples(options: argparse.Namespace) -> None:
    from bertjax.commands.predict import PredictOptions, predict

    of_both = (options.text, options.pair, options.label, options.id, False if options.no_header else None)
    if options.command == "predict":
        no_answer = True if options.no_answer else None
        chosen = PredictOptions(
            options.kind, *of_both, options.max_length, no_answer, options.top_k, options.batch_tokens
        )
        predict(options.model, options.source, options.out, chosen, options.score, options.with_input)
        return
    from bertjax.commands.pseudo_label import LabelSource, Selection, label

    chosen = PredictOptions(None, *of_both, options.max_length, tokens=options.batch_tokens)
    labels = tuple(name.strip() for name in (options.labels or "").split(",") if name.strip())
    choice = Selection(options.min_confidence, options.max_per_class, options.balance)
    label(
        LabelSource(options.model, options.labels_file, labels),
        options.source,
        options.out,
        options.gold,
        choice,
        chosen,
    )


def run_use(options: argparse.Namespace) -> int:
    """Runs one of them; returns its exit code."""
    if options.command in ("predict", "pseudo-label"):
        _run_on_examples(options)
    elif options.command == "fill-mask":
        from bertjax.commands.fill_mask import fill_mask

        fill_mask(options.model, options.sentences, options.top_k, options.jsonl)
    elif options.command == "embed":
        from bertjax.commands.embed import EmbedOptions, embed

        chosen = EmbedOptions(options.pooling, options.normalize, options.max_length, options.batch_tokens)
        embed(options.model, options.source, options.out, options.field, chosen)
    elif options.command == "eval-sts":
        from bertjax.commands.embed import EmbedOptions
        from bertjax.commands.eval_sts import similarity

        chosen = EmbedOptions(options.pooling, None, options.max_length, options.batch_tokens)
        columns = options.text, options.pair, options.label
        similarity(options.model, options.pairs, columns, not options.no_header, chosen)
    else:
        from bertjax.commands.eval_minimal_pairs import minimal_pairs

        minimal_pairs(options.model, options.pairs, options.score, options.group_by, options.out, options.batch_tokens)
    return 0
