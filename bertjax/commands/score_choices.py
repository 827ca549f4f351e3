"""Classify texts by the likelihood of each class, without or with few examples in the prompt."""

from __future__ import annotations

import argparse

from bertjax.commands.shared_flags import add_batch_tokens, add_model
from bertjax.errors import UserError

EXAMPLE = (
    "bertjax score-choices --model hub:gpt2 --in test.tsv --template 'Review: {text} It was {choice}' "
    "--choices negative=terrible positive=great"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags of the command."""
    add_model(parser)
    add = parser.add_argument
    add("--in", dest="source", required=True, metavar="FILE", help="labelled tsv, csv or jsonl, or KIND:WHERE")
    add("--template", required=True, metavar="TEXT", help="prompt with columns in braces, which ends with {choice}")
    add("--choices", nargs="+", required=True, metavar="LABEL[=WORDS]", help="labels, and what stands for them")
    add("--label-column", default="label", metavar="COLUMN", help="name of the label column (default: label)")
    add("--train", metavar="FILE", help="labelled examples to begin every prompt with")
    add("--shots", type=int, default=0, metavar="K", help="number of them (default 0)")
    add("--seed", type=int, default=0, metavar="N", help="of their choice (default 0)")
    add("--norm", default="tokens", choices=("tokens", "characters", "none"), help="log-likelihood per (default token)")
    add("--out", metavar="FILE", help="a .jsonl file for the scores of every example; -: standard output")
    add_batch_tokens(parser)


def run(options: argparse.Namespace) -> None:
    """Prints accuracy and macro-F1 of a zero-shot or few-shot classification.

    Raises:
        UserError: `--choices` names a label twice.
    """
    from bertjax.experiment.score_choices import ChoiceTask, score_choices

    choices: dict[str, str] = {}
    for each in options.choices:
        label, equals, words = each.partition("=")
        if label in choices:
            raise UserError(f"--choices names {label} twice")
        choices[label] = words if equals else label
    task = ChoiceTask(options.template, choices, options.label_column, options.norm)
    flags = options.train, options.shots, options.seed, options.out, options.batch_tokens
    score_choices(options.model, options.source, task, *flags)
