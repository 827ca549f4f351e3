"""An encoder-decoder that starts a task: one network, whose decoder reads the text itself."""

from __future__ import annotations

from bertjax.experiment.load import SourceModel
from bertjax.hf.encoder_decoder.family import family_of, with_family
from bertjax.hf.keymaps import find_family
from bertjax.io.tree_paths import flatten_tree, unflatten_tree


def with_decoder(source: SourceModel, chosen: bool = False) -> SourceModel:
    """Returns an encoder-decoder as one network, whose decoder reads the text itself, as its classes for tasks do.

    It stays an encoder where no class of `transformers` holds both so (Marian), or some hold the encoder alone (T5).

    Args:
        source: the model.
        chosen: takes the decoder although there are classes of the encoder alone.

    Raises:
        UserError: the classes cannot hold the model.
    """
    config, decoder = source.encoder_decoder, source.decoder
    family = None if config is None else family_of(with_family(config))
    classes = None if family is None else find_family(family.name)
    if config is None or decoder is None or family is None or classes is None:
        return source
    has_encoders = bool(classes.architectures.keys() - classes.decoder_classes)
    if family.limitation(config) or not classes.decoder_classes or (has_encoders and not chosen):
        return source
    start, end = config.decoder_start_token_id, source.tokenizer.sep_id
    ids = {"eos_token_id": end, "decoder_start_token_id": end if start is None else start}
    values = family.render_config(config) | ids | {"architectures": [classes.decoder_classes[0]]}
    leaves = flatten_tree(decoder.params["encoder"])
    remaining = unflatten_tree({path: leaf for path, leaf in leaves.items() if "word_embeddings" not in path})
    params = {**source.params, "decoder": {"encoder": remaining}}
    single = classes.parse_config(values, "init_from: config.json")
    return source._replace(config=single, params=params, decoder=None, encoder_decoder=None)
